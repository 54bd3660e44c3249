# SPDX-License-Identifier: Apache-2.0
"""docs/performance.md and its charts show the results in bench/results/."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import everything, figures
from bench.handover.card import Card, locks_too_much
from bench.rl import measure as rl
from nvshared.units import GIB, MIB

ROOT = Path(__file__).parents[2]


def test_performance_page_equals_the_output_of_make_figures() -> None:
    assert figures.PAGE.read_text() == figures.page()


@pytest.mark.parametrize("make", figures.FIGURES, ids=lambda make: str(make.__name__))
def test_chart_shows_each_label_and_value_of_its_result(
    make: Callable[[], figures.Figure]
) -> None:
    figure = make()
    image = (figures.IMAGES / f"figure-{figure.name}.svg").read_text()
    texts = [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", image)]
    wanted = [text for label, value, _ in figure.bars
              for text in (label, figures.shown(value, figure.unit))]
    assert sorted(texts) == sorted(wanted)


def test_each_kept_result_is_published() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    unused = [path.name for path in figures.RESULTS.glob("*.json") if path.name not in pages]
    assert unused == []


def test_make_bench_measures_each_kind_of_result_that_the_page_takes(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, newest = set(), figures.newest

    def noted(kind: str) -> tuple[str, dict[str, Any]]:
        taken.add(kind)
        return newest(kind)

    monkeypatch.setattr(figures, "newest", noted)
    figures.page()
    assert taken <= {step.kind for step in everything.STEPS}


def test_make_bench_names_a_result_by_kind_card_and_date() -> None:
    assert everything.card({"gpu": "NVIDIA H100 80GB HBM3, 580.1, 1 MiB\n" * 2}) == "-h100x2"
    assert everything.card({"gpu": "NVIDIA L40S, 580.1, 1 MiB"}) == "-l40s"
    assert everything.card({"gpu": "none"}) == ""


def test_way_that_would_page_lock_more_than_the_host_has_free_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = Card("a card", 140 * GIB, False, GIB, 1.0, 32 * MIB, Path("log"), {})
    monkeypatch.setattr("nvshared.machine.host.free", lambda: 124 * GIB)
    assert list(rl.by_hand(card, everything=True)) == []
    assert capsys.readouterr().err == (
        "by hand, all is left out: it page-locks 173 GiB of host memory, and 124 GiB are free\n")
    assert not locks_too_much(100 * GIB, "what fits")


@pytest.mark.parametrize("before", ["", "a line\n", '{\n "an": "object"\n}\n'])
def test_object_at_the_end_of_a_benchmarks_output_is_kept_whole(before: str) -> None:
    result = {"step_ms": {"with": 1.5}, "machine": {"gpu": {"cores": 2}}}
    assert everything.last_object(before + json.dumps(result, indent=1) + "\n") == result
