# SPDX-License-Identifier: Apache-2.0
"""Moves of thousands of blocks, and of blocks that other threads free, on blocks_double.c."""

import random
from collections.abc import Callable
from ctypes import c_bool, c_int, c_uint64
from functools import partial
from pathlib import Path

import pytest

from libhook.tests.doubles import Double, counting_double

FEW, MANY = 1_250, 5_000               # blocks
STEP = 512                              # blocks that one order moves
MORE = 1.2                              # maximum of (steps for a block of MANY) / (of FEW)
COUNTED = ["block/block.c", "block/region.c", "block/swap.c", "memory/allocation.c",
           "memory/extents.c", "tier/host.c", "tier/managed.c", "tier/peer.c", "tier/ranges.c",
           "tier/tier.c", "tier/tiers.c"]


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
        self.c.allocate(0, self.count, self.count if room is None else room, 1)

    def frees(self) -> None:
        self.c.release(0, self.count)

    def frees_backwards(self) -> None:
        for index in reversed(range(self.count)):
            self.c.release(index, 1)

    def evicts(self) -> None:
        for resident in range(self.count - STEP, -STEP, -STEP):
            self.c.evict(max(resident, 0), 2 * self.count, False)

    def loads(self) -> None:
        for resident in range(STEP, self.count + STEP, STEP):
            self.c.load(resident, max(self.count - resident, 0), False)

    def loads_at_once(self) -> None:
        self.c.load(self.count, 2 * self.count, False)

    def evicts_at_once(self) -> None:
        self.c.evict(0, 2 * self.count, False)

    def writes_back(self) -> None:
        for ready in range(STEP, self.count + STEP, STEP):
            self.c.write_back(ready, 2 * self.count)

    def runs(self) -> None:
        self.c.runs()


@pytest.fixture(scope="module", name="built")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return counting_double("blocks", COUNTED, tmp_path_factory.mktemp("blocks"))


def keep_host_memory_of_older_half(program: Program) -> None:
    """Only the older half of the blocks has host memory afterwards."""
    half = program.count // 2
    program.c.release(half, program.count - half)
    program.c.evict(0, half, False)
    program.c.load(half, half, False)
    program.runs()
    program.c.allocate(half, program.count - half, program.count, 1)


def evict_to_half(program: Program) -> None:
    program.c.evict(program.count // 2, program.count // 2, False)
    assert program.c.resident() == program.count // 2


def evict_to_another_gpu(program: Program) -> None:
    program.c.borrow(program.count)
    program.evicts()


def return_from_another_gpu(program: Program) -> None:
    before = program.figure("copied")
    assert program.c.return_borrowed(2 * program.count) == 0
    assert program.figure("copied") == before + program.count


def nothing(program: Program) -> None:
    """For cases that count the allocation itself."""


CASES: dict[str, tuple[int, list[Callable[[Program], None]], Callable[[Program], None]]] = {
    # case: room for the allocation (% of all blocks), operations before, the counted operation
    "allocates": (100, [], nothing),
    "loads new memory": (0, [], Program.loads),
    "evicts at once": (100, [Program.runs], Program.evicts_at_once),
    "evicts": (100, [Program.runs], Program.evicts),
    "loads and frees host memory": (100, [Program.evicts], Program.loads),
    "evicts to host memory of other blocks": (100, [keep_host_memory_of_older_half], evict_to_half),
    "writes back": (100, [Program.runs], Program.writes_back),
    "returns memory of another GPU": (100, [evict_to_another_gpu], return_from_another_gpu),
    "frees evicted memory": (100, [Program.evicts], Program.frees),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_for_each_block_do_not_grow_with_the_number_of_blocks(
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


@pytest.mark.parametrize("evicting", [False, True])
def test_memory_lock_is_released_while_blocks_move_without_a_copy(
        built: Path, tmp_path: Path, evicting: bool) -> None:
    program = Program(built, tmp_path, FEW)
    program.allocates(FEW if evicting else 0)
    program.runs()
    program.writes_back()
    before = program.figure("waits")
    (program.evicts_at_once if evicting else program.loads_at_once)()
    assert program.figure("looked") > FEW // 4
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
                c.allocate(index, 1, max(room, c.resident()), 1)
            case 2:
                c.release(index, dice.randrange(61 - index) // 4)
            case 3:
                program.c.variable("refuses").value = dice.randrange(4)
            case 4:
                c.evict(room, host, ahead)
            case 5:
                c.load(room, host, ahead)
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
        for moves in (program.evicts_at_once, program.loads_at_once):
            meanwhile.value = index
            moves()
            program.c.allocate(index, 1, 60, 1)
            assert program.c.searches_are_right()


@pytest.mark.parametrize("frees", [Program.frees, Program.frees_backwards])
def test_adjacent_freed_address_ranges_serve_a_larger_allocation(
        built: Path, tmp_path: Path, frees: Callable[[Program], None]) -> None:
    program = Program(built, tmp_path, 4)
    program.allocates()
    lowest = min(program.c.address_of(index) for index in range(4))
    frees(program)
    program.c.allocate(0, 1, 4, 2)
    assert program.c.address_of(0) == lowest


def test_eviction_skips_a_block_freed_while_the_driver_refuses_host_memory(
        built: Path, tmp_path: Path) -> None:
    program = Program(built, tmp_path, 64)      # 64 blocks fill one slab of host memory
    program.allocates()
    for _ in range(2):                          # the second eviction begins with the youngest block
        program.evicts_at_once()
        program.loads_at_once()
        program.runs()
    program.c.allocate(64, 1, 66, 2)
    program.c.variable("registers").value = 0
    oldest = program.c.variable("freed_by_refusal", c_int)
    oldest.value = 0
    program.evicts_at_once()
    assert oldest.value == -1
    assert program.figure("unmapped_under_lock") == 0
    assert program.c.searches_are_right()


def test_blocks_being_returned_from_another_gpu_are_not_treated_as_mapped(
        built: Path, tmp_path: Path) -> None:
    program = Program(built, tmp_path, 60)
    program.allocates()
    program.c.borrow(60)
    program.evicts_at_once()
    before = program.figure("waits")
    assert program.c.return_borrowed(200) == 0
    assert program.figure("waits") > before
    assert program.figure("wrong_states") == 0
    assert program.c.searches_are_right()


def test_return_from_another_gpu_succeeds_while_the_program_frees_borrowed_blocks(
        built: Path, tmp_path: Path) -> None:
    program = Program(built, tmp_path, 200)     # a slab of host memory has 64 blocks
    program.allocates()
    program.c.borrow(200)
    program.evicts_at_once()
    freed = program.c.variable("freed_by_growth")
    freed.value = 100
    assert program.c.return_borrowed(200) == 0
    assert freed.value == 0
