# SPDX-License-Identifier: Apache-2.0
"""What the colocation benchmark measures, and what it makes of what it has measured."""

import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from bench.colocation import measure, pair, table
from bench.colocation.card import SHRUNK, Card
from bench.colocation.job import Done, Rates, Work
from bench.colocation.notebooks import Cell, Day, percentile, schedule, size
from bench.colocation.options import VARIANTS, Wanted, parse
from bench.colocation.pair import Trial
from bench.colocation.progress import Progress
from bench.colocation.report import Failure, Report, name
from bench.colocation.thesis import (
    AUTO,
    PROGRAMS,
    PUBLISHED,
    QUANTA,
    SCALE,
    SHAPES,
    WITHOUT,
    Way,
    measured_for,
    ways,
)
from nvshared.errors import NvshareError
from nvshared.machine.capacity import Capacity
from nvshared.scheduler.demand import margin
from nvshared.units import GIB, MIB

H200 = Card("NVIDIA H200", False, "", 139 * GIB, 1.0, 1.0, 100 * GIB, {})
SIMULATED = Card("a simulated GPU", True, "", 512 * MIB, SHRUNK, 0.1, 8 * GIB, {})
RATES = Rates(units=500.0, steps=100.0)
MACHINE = {
    "date": "2026-11-21T13:40:00+00:00", "gpu": "none", "cpu": "x", "cores": 2, "kernel": "6",
}


def trial(program: str = "big_50", way: Way | None = None, seconds: float = 15.0) -> Trial:
    """One that was right."""
    done = Done(seconds, 5.0, seconds - 5.0, "d")
    chosen = Way("auto", 2.0) if way is None else way
    trace = {"handovers": 3, "stop_to_run_ms": {"median": 431.0}} if chosen != WITHOUT else {}
    return Trial(program, "sequence", chosen, seconds, (done, done), 20.0, True, trace)


def report(*trials: Trial, card: Card = H200) -> Report:
    return Report(MACHINE, card, SCALE, QUANTA, trials=list(trials))


def shown(what: Report) -> str:
    out = io.StringIO()
    table.show(what, Console(file=out, width=80))
    return out.getvalue()


@pytest.mark.parametrize("card", [H200, SIMULATED], ids=["real", "simulated"])
def test_two_big_programs_do_not_fit_and_two_small_ones_do(card: Card) -> None:
    for program in PROGRAMS.values():
        assert program.size(card) <= card.capacity
        assert program.fit_together(card) == program.name.startswith("small")


def test_sizes_are_the_thesiss_in_whole_megabytes() -> None:
    assert H200.capacity == 16 * GIB
    assert PROGRAMS["big_50"].size(H200) == 15_300_000_000 // MIB * MIB
    assert SIMULATED.capacity == 128 * MIB


@pytest.mark.parametrize(("program", "cpu", "gpu"), [("big_50", 10, 10), ("small_90", 2, 18)])
def test_the_work_is_divided_as_the_name_says(program: str, cpu: float, gpu: float) -> None:
    scale = gpu / 650
    work = PROGRAMS[program].work(H200, RATES, scale, "sequence")
    assert (work.units, work.steps, work.bursts) == (cpu * 500, gpu * 100, 1)
    assert PROGRAMS[program].seconds(H200, scale) == pytest.approx(cpu + gpu)


def test_alternating_is_the_same_work_in_periods_of_four_seconds_and_at_least_three() -> None:
    program = PROGRAMS["big_90"]
    long = program.work(H200, RATES, 36 / 650, "alternating")
    assert long.bursts == 10
    assert replace(long, bursts=1) == program.work(H200, RATES, 36 / 650, "sequence")
    short = program.work(H200, RATES, 1 / 650, "alternating")
    assert (short.units, short.steps, short.bursts) == (1.2 * 500, 10.8 * 100, 3)


def test_the_gpu_always_has_something_to_do() -> None:
    assert Rates(units=1.0, steps=0.1).work(0.2, 0.2).steps == 1


def test_quanta_that_end_no_turn_are_measured_once() -> None:
    assert ways(PROGRAMS["big_50"], H200, QUANTA, SCALE) == [
        Way("auto", 1.0), Way("auto", 2.0), Way("auto", 5.0), Way("auto", 1000.0)
    ]
    assert measured_for(PROGRAMS["big_50"], H200, QUANTA, SCALE, 30.0) == 1000.0


def test_the_daemon_may_choose_the_quantum() -> None:
    assert ways(PROGRAMS["big_90"], H200, (AUTO, 2.0, 1000.0), SCALE)[0] == Way("auto", AUTO)
    assert Way("auto", AUTO).setting(0.1) == "auto"
    assert Way("auto", 2.0).setting(0.1) == "200ms"
    found = report(trial(way=Way("auto", AUTO)))
    found.quanta = (AUTO, 2.0)
    assert "TQ auto" in shown(found)
    assert found.document()["thesis"]["trials"][0]["way"] == {"mode": "auto", "tq": "auto"}


def test_all_quanta_differ_for_programs_as_long_as_the_thesiss() -> None:
    assert [way.tq for way in ways(PROGRAMS["big_90"], H200, QUANTA, 1.0)] == list(QUANTA)


def test_programs_that_fit_are_shared_freely_and_with_forced_turns() -> None:
    assert ways(PROGRAMS["small_50"], H200, QUANTA, SCALE) == [
        WITHOUT, Way("auto", 1.0), Way("on", 2.0)
    ]
    assert ways(PROGRAMS["small_50"], H200, (30.0,), SCALE)[-1] == Way("on", 30.0)


@settings(deadline=None)
@given(
    quanta=st.sets(st.floats(0.1, 1e4), min_size=1, max_size=6).map(lambda one: tuple(sorted(one))),
    program=st.sampled_from(sorted(PROGRAMS)), scale=st.floats(1e-4, 1.0),
)
def test_every_quantum_has_a_figure(
    quanta: tuple[float, ...], program: str, scale: float
) -> None:
    chosen = ways(PROGRAMS[program], H200, quanta, scale)
    assert len(set(chosen)) == len(chosen)
    for tq in quanta:
        assert Way("auto", measured_for(PROGRAMS[program], H200, quanta, scale, tq)) in chosen


def test_notebooks_of_an_h200_have_twenty_gib() -> None:
    chosen = size(139 * GIB, 108 * GIB)
    assert chosen.chosen == chosen.wanted == 20 * GIB
    assert chosen.why == "as wanted"


def test_notebooks_are_smaller_where_the_host_has_little_memory() -> None:
    chosen = size(139 * GIB, 32 * GIB)
    assert chosen.wanted == 20 * GIB
    assert 14 * GIB < chosen.chosen < 17 * GIB
    assert "host" in chosen.why


@settings(deadline=None)
@given(total=st.integers(512, 200 << 10), host=st.integers(64, 2 << 20), number=st.integers(1, 20))
def test_all_notebooks_can_be_promised_their_memory(total: int, host: int, number: int) -> None:
    total, host = total * MIB, host * MIB
    card = Capacity(total)
    for client in range(number):
        card.joined(client)
    there = card.bytes + host - margin(host, number)
    try:
        chosen = size(total, host, number)
    except NvshareError:
        assert there < 2 * MIB * number
    else:
        assert 0 < number * chosen.chosen <= there
        assert chosen.chosen <= chosen.wanted


@settings(deadline=None)
@given(number=st.integers(1, 12), cells=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_a_notebooks_cells_lie_in_order_within_its_time(
    number: int, cells: int, seed: int
) -> None:
    times = schedule(number, cells, seed=seed)
    assert len(times) == number
    for notebook in times:
        assert len(notebook) == cells
        assert list(notebook) == sorted(notebook)
        assert notebook[0] > 0
        assert notebook[-1] <= cells * 40.0 * (1 + 1e-9)


def test_the_schedule_is_that_of_its_seed_and_its_pauses_are_exponential() -> None:
    assert schedule(10, 3) == schedule(10, 3)
    assert schedule(10, 3) != schedule(10, 3, seed=41)
    [times] = schedule(1, 20_000)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    mean = fmean(pauses)
    assert mean == pytest.approx(40.0, rel=0.01)
    # The standard deviation of an exponential distribution is its mean.
    assert fmean((pause - mean) ** 2 for pause in pauses) ** 0.5 == pytest.approx(40.0, rel=0.05)


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_the_percentile_is_a_value_and_not_below_so_many(values: list[float]) -> None:
    found = percentile(values, 0.99)
    assert found in values
    assert sum(value <= found for value in values) >= 0.99 * len(values)
    assert sum(value < found for value in values) < 0.99 * len(values)


def test_the_99th_percentile_of_few_is_the_largest() -> None:
    assert percentile([1.0, 3.0, 2.0], 0.99) == 3.0
    assert percentile([float(value) for value in range(1, 201)], 0.99) == 198.0


class Stub:
    """A program, or a daemon, that answers at once."""

    def __init__(self, digest: str = "", settings: list[dict[str, str]] | None = None) -> None:
        self.digest = digest
        self.settings = [] if settings is None else settings
        self.environment = {"shared": "yes"}

    async def fill(self) -> float:
        return 0.0

    async def work(self, work: Work, limit: float) -> Done:
        assert limit >= 120.0
        return Done(1.0, 0.5, 0.5, f"{self.digest} after {work.steps}")

    async def change(self, **settings: str) -> None:
        self.settings.append(settings)

    def trace(self) -> list[object]:
        return []

    def figures(self, known: int, least: int) -> dict[str, int]:
        assert known == 0
        return {"least": least}

    def step(self, words: str) -> None:
        assert "small_50" in words


@pytest.mark.parametrize("spoilt", [None, 1, 2])
async def test_both_copies_are_compared_with_themselves_alone(
    spoilt: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[dict[str, str]] = []

    @asynccontextmanager
    async def job(size: int, seed: int, environment: Mapping[str, str]) -> AsyncIterator[Stub]:
        wrong = "shared" in environment and seed == spoilt
        yield Stub("wrong" if wrong else f"{size} bytes of {seed}")

    @asynccontextmanager
    async def service(
        folder: Path, environment: Mapping[str, str], **gpu: str
    ) -> AsyncIterator[Stub]:
        assert gpu == {"capacity": str(16 * GIB), "swap_budget": str(100 * GIB)}
        yield Stub(settings=settings)

    monkeypatch.setattr(pair, "job", job)
    monkeypatch.setattr(pair, "service", service)
    program = PROGRAMS["small_50"]
    planned = pair.plan(H200, program, RATES, SCALE, SHAPES, ways(program, H200, QUANTA, SCALE))
    shown = cast(Progress, Stub())
    before = await pair.alone(H200, planned, shown)
    assert before.serial == 2.0
    trials: list[Trial] = []
    await pair.together(H200, planned, before, Path("nowhere"), shown, trials.append)
    assert [(one.way.mode, one.shape, one.right) for one in trials] == [
        ("none", "sequence", True), ("none", "alternating", True),
        ("auto", "sequence", spoilt is None), ("on", "sequence", spoilt is None),
        ("auto", "alternating", spoilt is None), ("on", "alternating", spoilt is None),
    ]
    assert trials[0].trace == {}
    assert trials[2].trace == {"least": 256 * MIB}
    assert settings == [
        {"tq": "1000ms", "anti_thrash": "auto"}, {"tq": "2000ms", "anti_thrash": "on"}
    ] * 2


def day(*cells: Cell) -> Day:
    times = [(0.0, 8.0), (1.0,)]
    figures = {"handovers": 7, "in_alone_gbps": 50.0}
    return Day(size(139 * GIB, 32 * GIB), 2.0, True, False, times, cells, figures)


def test_a_notebook_that_waits_twice_as_long_says_so() -> None:
    found = day(
        Cell(1, 0.0, 2.0, 1.0, True), Cell(2, 1.0, 1.5, 1.0, True), Cell(1, 9.0, 4.5, 1.5, True)
    )
    assert found.median == 2.0
    assert found.percentile_99 == 3.0
    assert found.right


def test_one_wrong_result_makes_all_of_it_wrong() -> None:
    assert report(trial()).right
    assert not report(trial(), replace(trial(), right=False)).right
    wrong_cell = report(trial())
    wrong_cell.day = day(Cell(1, 0.0, 1.0, 1.0, True), Cell(2, 0.0, 1.0, 1.0, False))
    assert not wrong_cell.right
    failed = report(trial())
    failed.failures.append(Failure("notebooks", "out of memory"))
    assert not failed.right


def test_the_figure_of_a_way_is_the_median_of_its_rounds() -> None:
    found = report(*(trial(seconds=seconds) for seconds in (18.0, 16.0, 30.0)))
    assert found.over_serial("big_50", "sequence", "auto", 2.0) == 0.9
    assert found.over_serial("big_50", "alternating", "auto", 2.0) is None
    assert found.serial("big_50") == 20.0


def test_the_document_has_everything_and_is_json() -> None:
    found = report(trial(), trial("small_50", WITHOUT), card=SIMULATED)
    found.day = day(Cell(1, 0.0, 2.0, 1.0, True))
    document = json.loads(json.dumps(found.document()))
    assert document["simulated"]
    assert "nothing else" in document["note"]
    assert document["right"]
    assert not document["complete"]
    assert document["thesis"]["trials"][0]["over_serial"] == 0.75
    assert document["thesis"]["trials"][0]["way"] == {"mode": "auto", "tq": 2.0}
    assert document["thesis"]["trials"][1]["way"] == {"mode": "none", "tq": None}
    assert document["thesis"]["same_as"]["big_50"]["30"] == 1000.0
    assert document["notebooks"]["over_alone_median"] == 2.0
    assert document["notebooks"]["expected"]["all_on_the_card"]["median"] == 1.0
    assert document["notebooks"]["bytes"]["why"].startswith("10 of the size wanted")
    assert "note" not in report(trial()).document()


def test_a_report_is_kept_once_there_is_something_in_it(tmp_path: Path) -> None:
    path = tmp_path / "results" / name(MACHINE, ["big_50"])
    assert path.name == "colocation-big_50-20261121T134000.json"
    assert name(MACHINE, VARIANTS) == "colocation-20261121T134000.json"
    report().keep(path)
    assert not path.exists()
    report(trial()).keep(path)
    assert json.loads(path.read_text())["right"]


def test_the_table_shows_what_was_measured_for_which_quantum() -> None:
    lines = shown(report(
        trial(), trial(way=Way("auto", 1000.0), seconds=14.0), trial("small_90", WITHOUT, 17.0),
    )).splitlines()
    big = next(line for line in lines if line.startswith("big_50    sequence")).split()
    assert big == ["big_50", "sequence", "auto", "20.0", "0.75", "=0.70", "0.70", "431"]
    small = next(line for line in lines if line.startswith("small_90  sequence")).split()
    assert small == ["small_90", "sequence", "free", "20.0", *["=0.85"] * 5]
    thesis = next(line for line in lines if "P100    turns" in line).split()
    assert thesis == ["big_50", "on", "a", "P100", "turns", "2766", "1.26", "0.78", "0.74"]
    assert "Every result has the bits of the run alone." in lines


def test_the_table_names_what_is_wrong_and_what_failed() -> None:
    wrong = report(replace(trial(), right=False))
    wrong.failures.append(Failure("notebooks", "a program was ended by signal 9"))
    wrong.day = day(Cell(1, 0.0, 1.0, 1.0, False))
    text = shown(wrong)
    assert "WRONG: big_50, sequence, auto, TQ 2:" in text
    assert "WRONG: a notebook's cell" in text
    assert "notebooks failed: a program was ended by signal 9" in text
    assert "Every result" not in text


def test_the_table_fits_a_terminal_of_eighty_columns() -> None:
    every = [
        replace(trial(program.name, way, 1999.0), shape=shape)
        for program in PROGRAMS.values() for shape in SHAPES
        for way in ways(program, H200, QUANTA, 1.0)
    ]
    whole = report(*every)
    whole.scale = 1.0
    text = shown(whole)
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_there_is_a_published_figure_for_each_program() -> None:
    assert [one.program for one in PUBLISHED] == list(PROGRAMS)


def test_all_is_measured_unless_something_is_chosen() -> None:
    everything = parse([])
    assert everything.variants == VARIANTS
    assert everything.shapes == SHAPES
    assert everything.quanta == QUANTA
    assert everything.budget is None
    chosen = parse([
        "--variant", "notebooks", "--variant", "big_90", "--tq", "5", "--tq", "0.5", "--tq", "5",
        "--full", "--swap-budget", "108GiB", "--cells", "7", "--output", "/tmp/x.json",
    ])
    assert chosen.variants == ("big_90", "notebooks")
    assert chosen.quanta == (0.5, 5.0)
    assert parse(["--tq", "auto", "--tq", "2"]).quanta == (AUTO, 2.0)
    assert chosen.scale == 1.0
    assert chosen.budget == 108 * GIB
    assert chosen.cells == 7
    assert chosen.output == Path("/tmp/x.json")


@pytest.mark.parametrize("wrong", [
    ["--variant", "huge_50"], ["--tq", "0"], ["--tq", "nan"], ["--scale", "inf"], ["--cells", "0"],
    ["--swap-budget", "much"], ["--scale", "2", "--full"], ["big_50"],
])
def test_what_makes_no_sense_is_refused(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(wrong)
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err or wrong == ["--scale", "2", "--full"]


def test_the_progress_counts_every_step() -> None:
    assert measure.steps(parse(["--variant", "big_50"]), H200) == 2 + 2 * 4
    assert measure.steps(parse(["--variant", "notebooks"]), H200) == 12
    two = parse(["--variant", "small_50", "--shape", "sequence", "--rounds", "3"])
    assert measure.steps(two, H200) == 3 * (2 + 3)


@pytest.mark.parametrize(("right", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_says_whether_all_was_right(
    right: bool, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measured(wanted: Wanted, folder: Path) -> Report:
        assert wanted.json
        return report(replace(trial(), right=right))

    monkeypatch.setattr(measure, "measure", measured)
    assert measure.main(["--json"]) == status
    assert json.loads(capsys.readouterr().out)["right"] == right
