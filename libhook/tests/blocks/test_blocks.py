# SPDX-License-Identifier: Apache-2.0
"""Programs with very many blocks: the work for one block does not grow with their number."""

import random
import subprocess
from collections.abc import Callable
from ctypes import c_bool, c_int, c_uint64
from functools import partial
from pathlib import Path

import pytest

from libhook.tests.doubles import FLAGS, HERE, LIBRARY, Double, compile_double

FEW, MANY = 1_250, 5_000               # blocks
STEP = 512                              # blocks that one order moves
MORE = 1.2                              # maximum ratio of steps for each block
COUNTED = ["block/block.c", "block/region.c", "block/swap.c", "memory/allocation.c",
           "tier/host.c", "tier/managed.c", "tier/peer.c", "tier/ranges.c"]


class Program:
    def __init__(self, built: Path, folder: Path, count: int) -> None:
        self.c = Double(built, folder, searches_are_right=c_bool, address_of=c_uint64)
        self.count = count

    def figure(self, name: str) -> int:
        return int(self.c.variable(name).value)

    def steps(self, does: "Callable[[Program], None]") -> float:
        """Steps of the library for each block."""
        steps = self.c.variable("steps", c_uint64)
        before = steps.value
        does(self)
        return float(steps.value - before) / self.count

    def allocates(self, room: int | None = None) -> None:
        self.c.allocate(0, self.count, self.count if room is None else room)

    def frees(self) -> None:
        self.c.release(0, self.count)

    def frees_backwards(self) -> None:
        for index in reversed(range(self.count)):
            self.c.release(index, 1)

    def leaves(self, host: int | None = None, ahead: bool = False) -> None:
        for left in range(self.count - STEP, -STEP, -STEP):
            self.c.leave(max(left, 0), self._host(host), ahead)

    def comes(self, host: int | None = None, ahead: bool = False) -> None:
        for there in range(STEP, self.count + STEP, STEP):
            self.c.come(there, self._host(host), ahead)

    def comes_and_gives_back_host_memory(self) -> None:
        for there in range(STEP, self.count + STEP, STEP):
            self.c.come(there, max(self.count - there, 0), False)

    def comes_at_once(self) -> None:
        self.c.come(self.count, self._host(None), False)

    def leaves_at_once(self) -> None:
        self.c.leave(0, self._host(None), False)

    def is_written_back(self) -> None:
        for ready in range(STEP, self.count + STEP, STEP):
            self.c.write_back(ready, self._host(None))

    def runs(self) -> None:
        self.c.runs()

    def _host(self, host: int | None) -> int:
        return 2 * self.count if host is None else host


@pytest.fixture(scope="module", name="built")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blocks")
    steps = folder / "steps.o"
    subprocess.run(["gcc", *FLAGS, "-fPIC", "-c", HERE / "blocks" / "steps.c", "-o", steps],
                   check=True)
    counting = [*LIBRARY, "-fsanitize-coverage=trace-pc", str(steps)]
    return compile_double("blocks", COUNTED, folder / "blocks.so", counting)


def leave_and_run(program: Program) -> None:
    program.leaves()
    program.comes()
    program.runs()


def keep_half_of_the_places(program: Program) -> None:
    """Gives the older half of the blocks all places in host memory."""
    half = program.count // 2
    program.c.release(half, program.count - half)
    program.c.leave(0, half, False)
    program.c.come(half, half, False)
    program.runs()
    program.c.allocate(half, program.count - half, program.count)


def leave_for_half(program: Program) -> None:
    program.c.leave(program.count // 2, program.count // 2, False)
    assert program.c.resident() == program.count // 2


def nothing(program: Program) -> None:
    """For cases that count the allocation itself."""


CASES: dict[str, tuple[int, list[Callable[[Program], None]], Callable[[Program], None]]] = {
    # case: room at first (% of all blocks), steps that are not counted, the step that is counted
    "allocates": (100, [], nothing),
    "new memory comes in": (0, [], Program.comes),
    "leaves at once": (100, [Program.runs], Program.leaves_at_once),
    "leaves": (100, [Program.runs], Program.leaves),
    "leaves ahead": (100, [Program.runs], lambda program: program.leaves(ahead=True)),
    "comes back": (100, [Program.leaves], Program.comes),
    "comes back at once": (100, [Program.leaves], Program.comes_at_once),
    "comes back and gives back host memory": (
        100, [Program.leaves], Program.comes_and_gives_back_host_memory),
    "leaves again": (100, [leave_and_run], Program.leaves),
    "leaves to the places of others": (100, [keep_half_of_the_places], leave_for_half),
    "is written back": (100, [Program.runs], Program.is_written_back),
    "leaves written back": (100, [Program.runs, Program.is_written_back], Program.leaves),
    "frees backwards": (100, [], Program.frees_backwards),
    "frees what is away": (100, [Program.leaves], Program.frees),
}


@pytest.mark.parametrize("case", CASES)
def test_allocation_takes_no_more_steps_for_many_blocks_than_for_few(
        built: Path, tmp_path: Path, case: str) -> None:
    percent, before, counted = CASES[case]
    taken = []
    for count in (FEW, MANY):
        program = Program(built, tmp_path, count)
        allocating = program.steps(partial(Program.allocates, room=count * percent // 100))
        for step in before:
            step(program)
        taken.append(allocating if counted is nothing else program.steps(counted))
        assert program.c.searches_are_right()
    assert taken[1] <= MORE * taken[0], taken


@pytest.mark.parametrize("leaving", [False, True])
def test_memory_lock_is_released_while_blocks_move_without_a_copy(
        built: Path, tmp_path: Path, leaving: bool) -> None:
    program = Program(built, tmp_path, FEW)
    program.allocates(FEW if leaving else 0)
    if leaving:
        program.runs()
        program.is_written_back()
    before = program.figure("waits")
    assert program.c.looked_while(leaving, FEW) > FEW // 4
    assert program.figure("waits") == before


@pytest.mark.parametrize("seed", range(20))
def test_block_search_finds_the_same_as_a_scan_of_all_blocks(
        built: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    program = Program(built, tmp_path, 60)
    c = program.c
    for _ in range(400):
        index, room, host = dice.randrange(60), dice.randrange(62), dice.randrange(20, 120)
        ahead = dice.random() < 0.5
        match dice.randrange(8):
            case 0 | 1:
                c.release(index, 1)
                c.allocate(index, 1, max(room, c.resident()))
            case 2:
                c.release(index, dice.randrange(61 - index) // 4)
            case 3:
                program.c.variable("refuses").value = dice.randrange(4)
            case 4:
                c.leave(room, host, ahead)
            case 5:
                c.come(room, host, ahead)
            case 6:
                c.write_back(room, host)
            case _:
                program.runs()
                for changed in range(60):
                    if dice.random() < 0.5:
                        c.changes(changed, dice.random() < 0.3)
        assert c.searches_are_right()
    assert program.figure("copied") > 100


def test_block_freed_during_its_move_is_not_found_by_the_block_search(
        built: Path, tmp_path: Path) -> None:
    program = Program(built, tmp_path, 60)
    meanwhile = program.c.variable("freed_meanwhile", c_int)
    for index in range(0, 60, 7):
        program.frees()
        program.allocates()
        program.runs()
        for moves in (program.leaves_at_once, program.comes_at_once):
            meanwhile.value = index
            moves()
            program.c.allocate(index, 1, 60)
            assert program.c.searches_are_right()


@pytest.mark.parametrize("frees", [Program.frees, Program.frees_backwards])
def test_adjacent_freed_address_ranges_serve_a_larger_allocation(
        built: Path, tmp_path: Path, frees: Callable[[Program], None]) -> None:
    program = Program(built, tmp_path, 4)
    program.allocates()
    lowest = min(program.c.address_of(index) for index in range(4))
    frees(program)
    program.c.allocate_double(0, 4)
    assert program.c.address_of(0) == lowest


def test_eviction_skips_a_block_freed_while_the_driver_refuses_host_memory(
        built: Path, tmp_path: Path) -> None:
    program = Program(built, tmp_path, 64)      # 64 blocks fill one slab
    program.allocates()
    for _ in range(2):                          # the second time the youngest block leaves first
        program.leaves_at_once()
        program.comes_at_once()
        program.runs()
    program.c.allocate_double(64, 66)
    program.c.variable("registers").value = 0
    oldest = program.c.variable("freed_by_refusal", c_int)
    oldest.value = 0
    program.leaves_at_once()
    assert oldest.value == -1
    assert program.figure("unmapped_under_lock") == 0
    assert program.c.searches_are_right()


def test_blocks_being_returned_from_another_gpu_are_not_treated_as_mapped(
        built: Path, tmp_path: Path) -> None:
    program = Program(built, tmp_path, 60)
    program.allocates()
    program.c.borrow(60)
    program.leaves_at_once()
    before = program.figure("waits")
    assert program.c.return_borrowed(200) == 0
    assert program.figure("waits") > before
    assert program.figure("wrong_states") == 0
    assert program.c.searches_are_right()


def test_return_from_another_gpu_succeeds_while_the_program_frees_borrowed_blocks(
        built: Path, tmp_path: Path) -> None:
    program = Program(built, tmp_path, 200)     # a slab has 64 blocks
    program.allocates()
    program.c.borrow(200)
    program.leaves_at_once()
    freed = program.c.variable("freed_by_growth")
    freed.value = 100
    assert program.c.return_borrowed(200) == 0
    assert freed.value == 0
