# SPDX-License-Identifier: Apache-2.0
"""When NVML is queried, and which samples change the capacity."""

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

import pytest

from nvshared.errors import GPULost, NvshareError
from nvshared.lanes import Lanes
from nvshared.machine.capacity import YOUNG_MOST, Allowances, Capacity
from nvshared.machine.nvml import Process, Sample
from nvshared.scheduler.actions import Load
from nvshared.scheduler.events import CapacityChanged, Loaded, Memory, MemoryChanged, Tick
from nvshared.sharing.budget import Lending
from nvshared.sharing.gpu import GPU
from nvshared.sharing.sampler import Sampler, take_samples
from nvshared.units import GIB, MIB, SECOND
from tests.unit.scripted import (
    FACTS,
    NO_RESERVE,
    OTHER,
    SETTINGS,
    Noted,
    Scripted,
    Time,
    joined,
    script,
)


class Bench:
    """A card, and open NVML queries that the test answers."""

    def __init__(self) -> None:
        self.time = Time()
        self.gpu = GPU(FACTS, SETTINGS, NO_RESERVE, self.time.clock, self.time.timer)
        self.open: list[Callable[[Sample | NvshareError], None]] = []
        sampler = Sampler(
            lambda _: Sample(), lambda _key, _call, answer: self.open.append(answer),
            self.time.clock, self.time.timer)
        sampler.add(self.gpu)

    def answer(self, used: int) -> None:
        self.open.pop()(Sample(memory_used=used))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    script(monkeypatch)
    return Bench()


def test_sample_request_for_a_card_without_clients_waits_for_a_new_sample(bench: Bench) -> None:
    seen: list[int] = []
    bench.time.pass_by(100 * SECOND)
    assert bench.open == []

    def look(who: int) -> None:
        bench.gpu.request_sample(lambda: seen.append(who))

    look(1)
    look(2)
    assert len(bench.open) == 1
    assert seen == []
    bench.answer(5 * GIB)
    assert seen == [1, 2]
    assert bench.gpu.sample.memory_used == bench.gpu.capacity.outside == 5 * GIB
    look(3)                             # a fresh sample is used again
    assert seen == [1, 2, 3]
    assert bench.open == []
    bench.time.pass_by(SECOND)
    look(4)
    bench.answer(7 * GIB)
    assert seen == [1, 2, 3, 4]
    assert bench.gpu.sample.memory_used == bench.gpu.capacity.outside == 7 * GIB
    bench.time.pass_by(100 * SECOND)
    assert bench.open == []


def test_sample_request_for_an_unresponsive_or_lost_card_ends_without_a_sample(
        bench: Bench) -> None:
    seen: list[int] = []
    bench.gpu.request_sample(lambda: seen.append(1))
    bench.time.pass_by(SECOND)
    bench.gpu.request_sample(lambda: seen.append(2))
    assert seen == [2]
    bench.open.pop()(GPULost("GPU is lost"))
    assert seen == [2, 1]
    bench.gpu.request_sample(lambda: seen.append(3))
    assert seen == [2, 1, 3]
    assert bench.open == []


async def test_sample_request_for_a_card_that_never_answers_ends_after_the_timeout(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvshared.sharing.sampler.PATIENCE", SECOND // 100)
    await take_samples([bench.gpu, bench.gpu])
    assert len(bench.open) == 1


def test_card_is_sampled_when_a_client_joins_and_each_interval_until_the_client_leaves(
        bench: Bench) -> None:
    client = joined(bench.gpu, 1, Noted())
    bench.time.pass_by(SECOND // 10)
    for _ in range(3):
        bench.answer(GIB)
        assert bench.open == []
        bench.time.pass_by(SECOND)
    assert bench.gpu.capacity.outside == GIB
    bench.answer(GIB)
    bench.gpu.leave(client)
    bench.time.pass_by(SECOND // 10)
    bench.answer(0)
    bench.time.pass_by(100 * SECOND)
    assert bench.open == []


@pytest.mark.parametrize("disturbance", ["figures", "order before", "order after", "gone"])
def test_sample_taken_during_a_move_does_not_change_the_memory_of_other_processes(
        bench: Bench, disturbance: str) -> None:
    client = joined(bench.gpu, 1, Noted(), Memory(resident=5 * GIB))
    Scripted.latest.decide = lambda event: [Load(1, 1, 0, 0)] if isinstance(event, Tick) else []
    if disturbance == "order before":
        bench.gpu.tell(Tick())
    bench.time.pass_by(SECOND)
    match disturbance:
        case "figures":
            bench.gpu.tell(MemoryChanged(1, Memory(resident=6 * GIB)))
        case "order before":
            bench.gpu.tell(Loaded(1, client.memory, 1, 0))
        case "order after":
            bench.gpu.tell(Tick())
        case "gone":
            bench.gpu.leave(client)
    bench.answer(7 * GIB)
    assert bench.gpu.capacity.outside == 0
    assert bench.gpu.sample.memory_used == 7 * GIB


@pytest.mark.parametrize("trouble", ["no answer", "failure", "order"])
def test_reserve_for_new_contexts_ends_after_a_time_without_usable_nvml_samples(
        bench: Bench, trouble: str) -> None:
    bench.gpu.capacity.allowances = Allowances(reserve=0, context_reserve=GIB)
    joined(bench.gpu, 1, Noted())
    if trouble == "order":
        Scripted.latest.decide = lambda event: [Load(1, 1, 0, 0)] if isinstance(event, Tick) else []
        bench.gpu.tell(Tick())
    for _ in range(10):
        assert bench.gpu.capacity.bytes == FACTS.memory_total - 2 * GIB
        bench.time.pass_by(SECOND)
        if trouble == "failure":
            bench.open.pop()(NvshareError("NVML is in a bad mood"))
        elif trouble == "order":
            bench.answer(GIB)
    assert bench.gpu.capacity.bytes == FACTS.memory_total - GIB
    told = [event for event in Scripted.latest.events if isinstance(event, CapacityChanged)]
    assert told[-1].bytes == FACTS.memory_total - GIB


def test_card_with_failing_queries_is_still_queried_and_logged_at_begin_and_end(
        bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    joined(bench.gpu, 1, Noted())
    for _ in range(15):
        bench.time.pass_by(SECOND)
        bench.open.pop()(NvshareError("NVML is in a bad mood"))
    assert not bench.gpu.lost
    bench.time.pass_by(SECOND)
    bench.answer(GIB)
    begin, end = caplog.messages
    assert begin.startswith("fault gpu-silent: ")
    assert "NVML is in a bad mood; see what nvidia-smi" in begin
    assert end == "fault gpu-silent is over: NVML does not answer questions about GPU 0"


def test_sampler_queries_other_cards_while_a_card_does_not_answer(
        monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    time = Time()
    hangs = threading.Event()
    answered: SimpleQueue[Callable[[], None]] = SimpleQueue()

    faults: list[Exception] = [ValueError("a fault of pynvml"), NvshareError("no")]

    def ask(uuid: str) -> Sample:
        if uuid == FACTS.uuid:
            hangs.wait()
        elif faults:
            raise faults.pop()
        return Sample(memory_used=GIB)

    lanes = Lanes("nvml", 2, answered.put, time.clock, time.timer)
    sampler = Sampler(ask, lanes.run, time.clock, time.timer)
    gpus = [GPU(f, SETTINGS, NO_RESERVE, time.clock, time.timer) for f in (FACTS, OTHER)]
    for number, gpu in enumerate(gpus):
        sampler.add(gpu)
        joined(gpu, number, Noted())
    for used in (None, None, GIB, GIB):
        time.pass_by(SECOND)
        answered.get()()
        assert gpus[1].sample.memory_used == used
        gpus[1].sample = Sample()
    assert gpus[0].sample == Sample()
    hangs.set()
    answered.get()()
    assert gpus[0].sample.memory_used == GIB


def test_card_that_does_not_answer_has_an_empty_sample_and_after_ten_seconds_a_fault(
        bench: Bench) -> None:
    joined(bench.gpu, 1, Noted())
    bench.time.pass_by(SECOND)
    bench.answer(7 * GIB)
    bench.time.pass_by(3 * SECOND)
    joined(bench.gpu, 2, Noted())
    bench.gpu.request_sample(lambda: None)
    assert len(bench.open) == 1
    assert (bench.gpu.sample, bench.gpu.fault) == (Sample(), "")
    bench.time.pass_by(8 * SECOND)
    assert (len(bench.open), bench.gpu.fault) == (1, "NVML does not answer questions about it")
    bench.answer(7 * GIB)
    assert (bench.gpu.sample.memory_used, bench.gpu.fault) == (7 * GIB, "")
    bench.time.pass_by(SECOND // 2)
    assert bench.gpu.sample.memory_used == 7 * GIB


@pytest.mark.parametrize("answer", [NvshareError("no"), Sample(trouble="no")])
def test_card_is_faulty_after_three_failed_samples_until_a_good_sample(
        bench: Bench, answer: Sample | NvshareError) -> None:
    for number in range(3):
        assert bench.gpu.fault == ""
        bench.gpu.request_sample(lambda: None)
        bench.open.pop()(answer)
        bench.time.pass_by(SECOND * (number + 1))
    assert bench.gpu.fault == "no"
    bench.gpu.request_sample(lambda: None)
    bench.answer(GIB)
    assert bench.gpu.fault == ""


def test_lending_card_without_clients_is_sampled_for_memory_of_other_processes(
        monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    time = Time()
    answers: dict[str, Callable[[Sample], None]] = {}
    sampler = Sampler(
        lambda _: Sample(), lambda uuid, _call, answer: answers.update({uuid: answer}),
        time.clock, time.timer)
    lending = Lending(time.timer)
    lending.use("auto")
    near, far = (
        GPU(replace(facts, linked=frozenset({other.uuid})), SETTINGS, NO_RESERVE, time.clock,
            time.timer)
        for facts, other in ((FACTS, OTHER), (OTHER, FACTS)))
    for gpu in (near, far):
        sampler.add(gpu)
        lending.add(gpu)

    def sample(*pids: int) -> bool | None:
        time.pass_by(SECOND)
        answers.pop(far.facts.uuid)(Sample(processes=tuple(Process(pid, GIB, 0) for pid in pids)))
        return far.neighbour.alone

    time.pass_by(10 * SECOND)
    assert not answers
    client = joined(near, 1, Noted())
    borrower = client.peer.pid
    assert sample(borrower)
    assert sample(borrower, 99)         # the process may be about to send HELLO
    assert sample(borrower, 98)
    assert not sample(borrower, 98)
    assert not sample(borrower, 97)
    assert sample()
    near.leave(client)
    assert sample()
    time.pass_by(10 * SECOND)
    assert far.facts.uuid not in answers


CONTEXT = 600 * MIB


def test_capacity_never_exceeds_the_configured_size_that_clients_are_offered() -> None:
    card = Capacity(64 * GIB, Allowances(configured=16 * GIB))
    assert card.bytes == card.offered == 16 * GIB
    card.sampled(60 * GIB, 0)
    assert card.bytes == 4 * GIB - 256 * MIB - CONTEXT
    assert card.offered == 16 * GIB


def test_capacity_counts_memory_of_other_processes_after_a_second_sample_confirms_a_rise() -> None:
    card = Capacity(64 * GIB)
    for used, held, outside in ((1, 0, 1), (9, 3, 1), (9, 3, 6), (2, 0, 2)):
        card.sampled(used * GIB, held * GIB)
        assert card.outside == outside * GIB


def test_memory_of_other_processes_does_not_rise_while_memory_of_clients_grows() -> None:
    card = Capacity(64 * GIB)
    card.sampled(1 * GIB, 0)
    for held in range(0, 20 * GIB, GIB):
        card.sampled(held + 2 * GIB, held)
        assert card.outside == 1 * GIB
    for outside in (1, 20):
        card.sampled(40 * GIB, 20 * GIB)
        assert card.outside == outside * GIB


def test_capacity_reserves_a_context_for_a_new_client_until_two_samples_show_the_context() -> None:
    card = Capacity(64 * GIB, Allowances(reserve=0))
    assert card.bytes == 64 * GIB - CONTEXT     # reserved for the first client's context
    card.joined(1)
    assert card.bytes == 64 * GIB - 2 * CONTEXT
    card.sampled(500 * MIB, 0)
    assert card.bytes == 64 * GIB - 2 * CONTEXT
    card.sampled(500 * MIB, 0)
    assert card.bytes == 64 * GIB - 500 * MIB - CONTEXT
    card.joined(2)
    card.forget(2)
    card.forget(2)
    assert card.bytes == 64 * GIB - 500 * MIB - CONTEXT


def test_first_sample_counts_memory_beyond_contexts_of_new_clients_as_that_of_others() -> None:
    card = Capacity(64 * GIB)
    card.joined(1)
    card.sampled(20 * GIB, 0)
    assert card.outside == 20 * GIB - CONTEXT


def test_context_reserve_grows_with_the_connections_of_a_user_up_to_a_bound() -> None:
    capacity = Capacity(16 * GIB, Allowances(reserve=0, context_reserve=GIB))
    for client in range(100):
        capacity.joined(client, "user:1000")
    assert capacity.bytes == (16 - YOUNG_MOST - 1) * GIB
    capacity.joined(100, "user:1001")
    assert capacity.bytes == (16 - YOUNG_MOST - 2) * GIB
    for client in range(101, 104):      # clients of root
        capacity.joined(client)
    assert capacity.bytes == (16 - YOUNG_MOST - 5) * GIB
    for client in range(104):
        capacity.forget(client)
    assert capacity.bytes == 15 * GIB
