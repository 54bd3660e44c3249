# SPDX-License-Identifier: Apache-2.0
"""When bus_sharing.c reports that copies load the bus, with a simulated clock."""

import ctypes
from pathlib import Path

import pytest

from libhook.tests.doubles import Double, built_double
from nvshared.hook.protocol import Flag
from nvshared.units import MIB

IN, OUT = 0, 1
INWARD, OUTWARD = int(Flag.INWARD), int(Flag.OUTWARD)
LINGER, SPACING, BACKLOG = 5000, 25_000, 2_000_000       # us


class Program(Double):
    def __init__(self, library: Path, folder: Path) -> None:
        super().__init__(library, folder, is_watched=ctypes.c_bool)
        self.clock = self.variable("clock_us", ctypes.c_uint64)
        self.watch(True)

    def figure(self, name: str) -> int:
        return int(self.variable(name).value)

    def copies(self, size: int, way: int = IN, *, waits: bool = False, took: int = 1) -> None:
        """A call that copies and returns after `took` us."""
        self.begins(size, way, waits=waits)
        self.clock.value += took
        self.end(0)

    def begins(self, size: int, way: int = IN, *, waits: bool = False) -> None:
        self.begin(0, way, size, waits)

    def says(self, later: int = 0) -> int | None:
        """The flags of the report that a step after `later` us sends; None: it sends none."""
        self.clock.value += later
        before = self.figure("sent")
        self.look()
        assert self.figure("sent") - before in (0, 1)
        return self.figure("flags") if self.figure("sent") != before else None


built = built_double("bus_sharing", ["flight/bus_sharing.c"])


@pytest.fixture
def program(built: Path, tmp_path: Path) -> Program:
    return Program(built, tmp_path)


def test_large_copy_is_reported_at_begin_and_end(program: Program) -> None:
    program.begins(64 * MIB, OUT, waits=True)
    assert program.figure("woken") == 1
    assert program.says() == OUTWARD
    program.begin(1, OUT, MIB, True)
    program.end(1)
    assert program.says(later=1_000_000) is None        # the first copy is still in progress
    program.end(0)
    assert program.says(later=LINGER - 1) is None
    assert program.says(later=1) == 0
    assert program.says(later=1_000_000) is None


def test_asynchronous_copy_is_reported_for_its_duration_at_the_fastest_measured_speed(
        program: Program) -> None:
    program.copies(1200 * MIB)          # 12 bytes a ns are assumed before a measurement
    assert program.says() == INWARD
    assert program.says(later=1200 * MIB // 12_000) is None
    assert program.says(later=LINGER) == 0
    program.measured(IN, 64 * MIB, 64 * MIB // 48_000)
    program.measured(IN, 64 * MIB, 64 * MIB // 10_000)
    program.measured(IN, 63 * MIB, 1)   # too few bytes to count
    program.copies(600 * MIB)           # asynchronous copies follow one another
    program.copies(600 * MIB)
    assert program.says() == INWARD
    assert program.says(later=1200 * MIB // 48_000 - 10) is None
    assert program.says(later=LINGER + 10) == 0


def test_bus_load_reported_for_repeated_prefetches_of_resident_memory_ends_in_bounded_time(
        program: Program) -> None:
    for _ in range(100):                # each would take 0.9 s if the memory were on the host
        program.copies(10_000 * MIB, took=10_000)
    assert program.says() == INWARD
    assert program.says(later=BACKLOG + 10_000 * MIB // 12_000 + LINGER) == 0


def test_copies_in_two_directions_are_reported_separately(program: Program) -> None:
    program.copies(200 * MIB, IN)
    program.copies(2000 * MIB, OUT)
    assert program.says() == INWARD | OUTWARD
    assert program.says(later=200 * MIB // 12_000 + LINGER) == OUTWARD
    assert program.says(later=2000 * MIB // 12_000) == 0


def test_many_small_copies_are_reported_and_a_few_are_not(program: Program) -> None:
    for _ in range(50):                 # a MiB in each ms: 5 MiB in a window
        program.copies(MIB, waits=True)
        assert program.says(later=999) is None
    for _ in range(8):
        program.copies(MIB, waits=True, took=100)
    assert program.says() == INWARD


def test_bytes_copied_by_another_thread_as_a_counting_interval_begins_are_reported(
        program: Program) -> None:
    program.variable("meanwhile", ctypes.c_uint64).value = 7 * MIB
    program.begins(2 * MIB, waits=True)
    assert program.says() == INWARD


def test_frequent_copies_are_reported_at_bounded_rate(program: Program) -> None:
    began = program.clock.value
    for _ in range(1000):
        program.copies(16 * MIB, waits=True, took=300)
        program.says()
        program.says(later=LINGER)
    seconds = (program.clock.value - began) / 1_000_000
    assert program.figure("sent") <= 2 * (seconds * 1_000_000 / SPACING + 1)
    assert program.figure("sent") >= seconds * 1_000_000 / SPACING


def test_copies_are_reported_and_counted_only_while_the_daemon_requests_reports(
        program: Program) -> None:
    assert program.is_watched()
    program.begins(64 * MIB, waits=True)
    assert program.says() == INWARD
    program.watch(False)
    assert not program.is_watched()
    assert program.says(later=1_000_000) is None
    # After watch(True) a call that began before does not count, not even when it ends.
    program.watch(True)
    assert program.says() is None
    program.end(0)
    program.copies(64 * MIB, waits=True)
    assert program.says() == INWARD
    assert program.says(later=LINGER) == 0


def test_captured_copies_are_not_reported(program: Program) -> None:
    program.variable("capturing", ctypes.c_bool).value = True
    program.copies(64 * MIB)
    assert program.says() is None
    program.copies(64 * MIB, waits=True)
    assert program.says() == INWARD
