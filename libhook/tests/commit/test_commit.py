# SPDX-License-Identifier: Apache-2.0
"""Requests to pin memory, and the bytes reported as granted to pin: client.c on commit_double.c."""

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from libhook.tests.doubles import Double, built_double
from nvshared.units import SECOND

PATIENCE = 600                          # s; only a failing test waits that long
ENTRIES = 16                             # OPEN_COMMITS_MAX
MUCH = 1 << 40


class PinRequest:
    """A thread that requests to pin memory, and pins it when the test calls take()."""

    def __init__(self, process: "Process", size: int) -> None:
        self.process = process
        self.size = size
        self.granted: bool | None = None
        self.may_take = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        self.granted = self.process.ask_to_pin(self.size)
        if self.granted and self.may_take.wait():
            self.process.take(self.size)

    def take(self) -> None:
        self.may_take.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    def returns(self, granted: bool) -> None:
        until(lambda: self.granted is not None)
        assert self.granted is granted


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.001)


class Process(Double):
    """A process that has sent no request yet."""

    def __init__(self, library: Path, folder: Path) -> None:
        super().__init__(
            library, folder, ask_to_pin=ctypes.c_bool, complained=ctypes.c_char_p,
            asked_so_far=ctypes.c_uint64, to_pin=ctypes.c_uint64)

    def request(self, size: int) -> PinRequest:
        """Returns when the request is sent. Requests are numbered consecutively."""
        before = self.asked_so_far()
        request = PinRequest(self, size)
        until(lambda: self.asked_so_far() > before)
        return request

    def answer(self, number: int, commit: int, reason: str = "") -> None:
        for start in range(0, len(reason), 88):
            text = ctypes.create_string_buffer(reason[start:start + 88].encode())
            self.reason(ctypes.addressof(text))
        self.call("answer", number, commit)

    @property
    def complaints(self) -> list[str]:
        return str(self.complained().decode()).splitlines()


built = built_double("commit", ["gate/client.c", "gate/packet.c"])


@pytest.fixture
def process(built: Path, tmp_path: Path) -> Process:
    return Process(built, tmp_path)


def test_pin_bytes_count_as_being_pinned_from_a_grant_until_the_memory_is_pinned(
    process: Process
) -> None:
    first = process.request(5)
    assert process.to_pin() == 0
    process.answer(1, 5)
    assert process.to_pin() == 5          # even before the thread runs
    first.returns(True)
    refused = process.request(6)
    process.answer(2, 5)
    refused.returns(False)
    second = process.request(7)
    assert process.to_pin() == 5
    process.answer(3, MUCH)
    assert process.to_pin() == 12
    second.returns(True)
    second.take()
    assert process.to_pin() == 5
    first.take()
    assert process.to_pin() == 0


def test_pin_request_is_sent_again_if_its_refusal_did_not_count_a_free(
    process: Process,
) -> None:
    first = process.request(5)
    process.answer(1, 5)
    first.returns(True)
    first.take()
    second = process.request(7)
    process.release(5)
    process.answer(2, 11)
    until(lambda: process.asked_so_far() == 3)
    process.answer(3, 11)
    second.returns(True)
    second.take()


def test_pin_request_is_sent_again_when_only_a_later_request_is_answered(process: Process) -> None:
    first, second = process.request(5), process.request(7)
    process.answer(2, MUCH)
    assert process.to_pin() == 7
    second.returns(True)
    until(lambda: process.asked_so_far() == 3)
    process.answer(3, MUCH)
    assert process.to_pin() == 12
    first.returns(True)
    first.take()
    second.take()
    assert process.to_pin() == 0


def test_answer_says_by_its_flag_whether_the_request_is_granted(process: Process) -> None:
    """A promise that exceeds the request is no grant to pin, and need not be lowered."""
    refused = process.request(5)
    process.call("answer_granted", 1, 50, False)
    refused.returns(False)
    granted = process.request(5)
    process.call("answer_granted", 2, 50, True)
    granted.returns(True)
    assert process.to_pin() == 5
    granted.take()


def test_unused_grant_to_pin_memory_is_given_up_after_a_minute(process: Process) -> None:
    assert process.passes(SECOND) == -1
    first = process.request(5)
    assert process.passes(100 * SECOND) == -1           # an unanswered request does not expire
    process.answer(1, MUCH)
    first.returns(True)
    assert process.passes(20 * SECOND) == 40_000
    second = process.request(7)
    process.answer(2, MUCH)
    second.returns(True)
    assert process.passes(40 * SECOND - 1) == 1
    assert process.to_pin() == 12
    assert process.passes(1) == 20_000
    assert process.to_pin() == 7
    third = process.request(9)          # reuses the first request's entry
    process.answer(3, MUCH)
    third.returns(True)
    first.take()                        # its grant has expired; no other entry changes
    assert process.to_pin() == 16


def test_pin_request_waits_while_all_request_slots_are_taken(process: Process) -> None:
    requests = [process.request(1) for _ in range(ENTRIES)]
    for number, one in enumerate(requests, 1):
        process.answer(number, MUCH)
        one.returns(True)
    late = [PinRequest(process, 100), PinRequest(process, 100)]
    time.sleep(0.1)
    assert process.asked_so_far() == ENTRIES
    requests[3].take()
    until(lambda: process.asked_so_far() == ENTRIES + 1)
    assert process.to_pin() == ENTRIES - 1
    assert process.passes(60 * SECOND) == -1            # the other grants expire
    until(lambda: process.asked_so_far() == ENTRIES + 2)
    process.answer(ENTRIES + 2, MUCH)
    assert process.to_pin() == 100
    until(lambda: process.asked_so_far() == ENTRIES + 3)
    process.answer(ENTRIES + 3, MUCH)
    assert process.to_pin() == 200
    for one in late:
        one.returns(True)


def test_memory_limit_that_refuses_several_pin_requests_is_logged_once(process: Process) -> None:
    limit = f"/sys/fs/cgroup/{'pod/' * 40}memory.max is 260MiB"
    for number, reason in enumerate([limit, "", limit, "another is 1GiB", limit, "x" * 10_000], 1):
        request = process.request(5)
        process.answer(number, 0, reason)
        request.returns(False)
    first, another, again, cut = process.complaints
    assert first.endswith(limit)
    assert another.endswith("as another is 1GiB")
    assert again == first
    assert cut.count("x") < 500


def test_commit_refusal_does_not_log_the_reason_of_an_earlier_reply(process: Process) -> None:
    request = process.request(5)
    process.answer(1, 5, "it was granted all the same")
    request.returns(True)
    request.take()
    request = process.request(5)
    process.answer(2, 0)
    request.returns(False)
    assert process.complaints == []
