# SPDX-License-Identifier: Apache-2.0
"""Urgent programs publish their work in flight, and background programs wait: inflight.c and
activity.c."""

import ctypes
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from libhook.tests.doubles import Double, built_double, compile_double
from nvshared.sharing.inflight_page import InflightPage

SOURCES = ["gate/gate.c", "gate/inflight.c", "flight/activity.c"]
MOMENT, BOUND, SLOWLY = 50, 2_000_000, 50_000        # us


class Program(Double):
    def __init__(self, library: Path, folder: Path) -> None:
        super().__init__(
            library, folder, may_pass=ctypes.c_bool, must_count=ctypes.c_bool,
            look=ctypes.c_uint64, settle=ctypes.c_uint64)
        self.clock = self.variable("clock_us", ctypes.c_uint64)
        self.clock.value = 10 * BOUND

    def watches(self, number: int, page: "Page") -> None:
        descriptor = page.shared.readable()
        self.watch(number, descriptor)
        os.close(descriptor)

    def publishes(self, page: "Page") -> None:
        descriptor = page.shared.writable()
        self.publish(descriptor)
        os.close(descriptor)

    def settles(self) -> None:
        """The service thread samples until no further sample is due."""
        while after := self.settle():
            self.clock.value += after


class Page:
    """The shared page of an urgent program, as that program writes it."""

    def __init__(self) -> None:
        self.shared = InflightPage()
        self.descriptor = self.shared.writable()

    def says(self, begun: int, done: int) -> None:
        os.pwrite(self.descriptor, struct.pack("<2Q", begun, done), 0)

    def busy(self) -> bool:
        begun, done = struct.unpack("<2Q", os.pread(self.descriptor, 16, 0))
        return bool(begun != done)


built = built_double("inflight", SOURCES)


@pytest.fixture
def program(built: Path, tmp_path: Path) -> Program:
    return Program(built, tmp_path)


@pytest.fixture
def page() -> Iterator[Callable[[], Page]]:
    made: list[Page] = []

    def new() -> Page:
        made.append(Page())
        return made[-1]

    yield new
    for one in made:
        os.close(one.descriptor)
        one.shared.close()


def test_inflight_page_of_a_client_is_busy_until_its_work_is_done(
        program: Program, page: Callable[[], Page]) -> None:
    urgent = page()
    program.publishes(urgent)
    assert urgent.busy()                    # busy at first: earlier work may still be in flight
    program.settles()
    assert not urgent.busy()
    assert program.must_count()
    woken = program.variable("woken")
    woken.value = 0
    for _ in range(10):
        program.launch()
    assert woken.value == 1             # wake-ups of the service thread
    assert urgent.busy()
    assert program.settle() > 0
    assert not program.must_count()   # launches need not be counted any more
    program.clock.value += 100 * MOMENT
    assert program.settle() > 0
    assert urgent.busy()                    # no new work, but the old is not done
    program.end_all()
    program.settles()
    assert not urgent.busy()
    program.publish(-1)
    assert not program.must_count()
    program.launch()
    assert not urgent.busy()


def test_inflight_page_stays_busy_during_a_short_pause(
    program: Program, page: Callable[[], Page]
) -> None:
    urgent = page()
    program.publishes(urgent)
    for _ in range(20):
        program.launch()
        program.end_all()
        assert program.settle() > 0
        program.clock.value += MOMENT - 1
        assert urgent.busy()


def test_background_client_waits_while_any_inflight_page_is_busy(
        program: Program, page: Callable[[], Page]) -> None:
    first, second = page(), page()
    program.watches(1, first)
    program.watches(2, second)
    assert program.may_pass()
    second.says(8, 7)
    assert not program.may_pass()
    assert program.look(False) > 0
    first.says(1, 0)
    second.says(8, 8)
    program.clock.value += MOMENT
    assert program.look(False) > 0
    assert not program.may_pass()
    first.says(1, 1)
    assert program.look(False) == 0
    assert program.may_pass()
    assert program.look(False) == 0


def test_background_client_stops_waiting_for_inflight_pages_once_the_daemon_has_ended(
        program: Program, page: Callable[[], Page]) -> None:
    first, second = page(), page()
    program.watches(1, first)
    program.watches(2, second)
    first.says(5, 1)
    second.says(5, 1)
    assert not program.may_pass()
    program.watch(1, -1)      # the client has ended
    assert not program.may_pass()
    program.watches(2, second)                    # the daemon repeats the order
    assert not program.may_pass()
    program.forget()                          # the daemon has ended
    assert program.may_pass()
    assert program.look(False) == 0


def test_background_client_launches_slowly_when_an_inflight_page_stays_busy_for_long(
        program: Program, page: Callable[[], Page]) -> None:
    urgent = page()
    program.watches(1, urgent)
    urgent.says(3, 2)
    passed = 0
    until = program.clock.value + 2 * BOUND
    while program.clock.value < until:
        passed += program.may_pass()
        program.clock.value += program.look(False)
        assert passed == 0 or program.clock.value >= until - BOUND
    assert 0 < passed <= BOUND // SLOWLY + 1
    urgent.says(4, 2)                     # it submits work again
    program.may_pass()
    assert program.look(False) > 0
    assert not program.may_pass()


def test_background_client_whose_own_work_is_stalled_launches_slowly(
        program: Program, page: Callable[[], Page]) -> None:
    urgent = page()
    program.watches(1, urgent)
    urgent.says(3, 2)
    assert not program.may_pass()
    assert program.look(True) > 0
    assert program.may_pass()
    assert not program.may_pass()


def test_inflight_page_cannot_be_written_or_resized_by_readers(page: Callable[[], Page]) -> None:
    urgent = page()
    descriptor = urgent.shared.readable()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(descriptor, b"1", 0)
    os.close(descriptor)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(urgent.descriptor, size)
    assert os.fstat(urgent.descriptor).st_mode & 0o777 == 0o600


@pytest.mark.long                       # under a sanitizer
def test_inflight_page_is_busy_during_all_work_of_concurrent_threads(tmp_path: Path) -> None:
    program = compile_double(
        "inflight", SOURCES, tmp_path / "threads", ["-fsanitize=thread", "-DTHREADS=4"])
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=1500)
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")
