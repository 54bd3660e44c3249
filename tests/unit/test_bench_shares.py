# SPDX-License-Identifier: Apache-2.0
"""The benchmark of shares: its arithmetic, and its program on a simulated GPU."""

import subprocess
from pathlib import Path

import pytest

from bench.handover.card import Card, find
from bench.harness import ROOT
from bench.shares import load, rows
from bench.shares.load import Program, Shape, Work, together
from nvshared.errors import NvshareError


def test_rates_and_latencies() -> None:
    work = Work((1.0, 0.0, 2.0, 4.0), (3.0, 1.0, 2.0), True)
    assert work.rate() == 17.5
    assert work.rate(0.2) == 30
    assert work.rate(0.1, 0.3) == 10
    assert (work.late(0), work.late(0.5), work.late(1)) == (1, 2, 3)


@pytest.fixture(scope="module")
def program() -> None:
    """That which is measured, compiled."""
    subprocess.run(["make", "-C", "bench/shares", "-s"], cwd=ROOT, check=True)


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("options", [None, ()], ids=["without the library", "with it"])
def test_what_is_done_is_counted_and_right(options: tuple[str, ...] | None, tmp_path: Path) -> None:
    shapes = Shape("", 3, 50, passes=1), Shape("", 3, 50, period=20_000, graph=True)
    card = find(tmp_path, True, 1.0, None)
    steady, asked = together(card, 0.5, [Program(shape, {}) for shape in shapes], options)
    assert steady.right
    assert asked.right
    assert len(steady.done) == len(asked.done) == 5
    assert steady.rate() > 0
    assert not steady.milliseconds
    assert asked.milliseconds


@pytest.mark.usefixtures("program")
def test_a_program_that_ends_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PROGRAM", Path("/bin/false"))
    with pytest.raises(NvshareError, match="a program ended with status 1"):
        together(find(tmp_path, True, 1.0, None), 0.5, [Program(rows.TINY, {})], None)


@pytest.mark.usefixtures("program")
def test_other_users_are_a_matter_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    card = Card("a card", 1, False, 1, 1.0, 1, tmp_path / "log", {})
    with pytest.raises(NvshareError, match="run this as root"):
        together(card, 0.5, [Program(rows.TINY, {})], None)
