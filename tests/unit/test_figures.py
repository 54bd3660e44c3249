# SPDX-License-Identifier: Apache-2.0
"""docs/performance.md and its charts show the results in bench/results/."""

import html
import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bench import everything, figures
from bench.handover.card import Card, locks_too_much
from bench.handover.goal import Goal, Result
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


def kept_variants() -> dict[str, Any]:
    """The newest results of benchmarks with variants, by kind."""
    found = {}
    for kind in (one.kind for one in everything.STEPS if "--variant" in one.commands[0]):
        with suppress(LookupError):     # none of this kind is kept
            found[kind] = figures.newest(kind)[1]
    return found


@pytest.mark.parametrize("kind", kept_variants())
def test_kept_result_of_variants_has_the_form_that_its_benchmark_writes(kind: str) -> None:
    written = Result("variant", "setting", (Goal("what", 1.0, "s"),), {}, ()).report()
    results = kept_variants()[kind]["results"]
    assert results
    assert all(one.keys() == written.keys() for one in results)


def test_each_kept_result_is_published() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    unused = [path.name for path in figures.RESULTS.glob("*.json") if path.name not in pages]
    assert unused == []


def quotes() -> list[tuple[str, str]]:
    """Pages, and what each quotes of the newest results, rounded."""
    bars = {figure.name: {label: value for label, value, _ in figure.bars}
            for figure in (make() for make in figures.FIGURES)}
    engines, notebooks, moving = bars["engines"], bars["notebooks"], bars["moving"]
    busy = [bars["colocation"][f"large, 90 % busy, turns of {quantum} s"] for quantum in (2, 5)]
    busy += [bars["peers"][f"nvshared, turns of {quantum} s"] / bars["peers"]["one after the other"]
             for quantum in (2, 10)]
    times = f"{min(busy):.1f} to {max(busy):.1f} times"
    wake = figures.newest("moving-idle")[1]["idle"][2]["wake_s"]
    cell = f"after {min(wake):.1f} to {max(wake):.1f} s"
    step = figures.newest("training")[1]["step_ms"]
    program, = (each for each in figures.newest("saving")[1]["programs"]
                if each["program"] == "torch")
    took, image = program["mean_s"], f"{program['image_bytes'] / GIB:.1f} GiB"
    return [
        ("README.md", f"change places in {engines['nvshared, turn released']:.1f} s"),
        ("README.md", f"{engines['copied by hand, missing part only']:.2f} s, copied by hand"),
        ("README.md", f"nvshared {engines['nvshared, turn released']:.2f} s, by hand "
                      f"{engines['copied by hand, missing part only']:.2f} s, torch_memory_saver "
                      f"{engines['torch_memory_saver, kept backup']:.2f} s"),
        ("docs/engines.md", f"in {engines['nvshared, turn released']:.2f} s "
                            f"({engines['nvshared, nothing released']:.2f} s without"),
        ("docs/engines.md",
         f"copies by hand in {engines['copied by hand, missing part only']:.2f} s"),
        ("README.md", f"a hand-over in {bars['neighbour']['to a neighbour GPU'] / 1000:.2f} s"),
        ("README.md", f"the next cell {cell}"),
        ("README.md", f"{bars['idle']['idle, not parked'] / 1024:.0f} GiB"),
        ("README.md", f"an image of {image}"),
        ("README.md", f"goes on {took['restore'] + took['step']:.0f} s after the order"),
        ("README.md", f"{step['with']:.2f} ms a step | {step['without']:.2f} ms"),
        ("README.md", times), ("docs/limits.md", times),
        ("docs/idle-notebooks.md", f"the next cell began {cell}"),
        ("docs/idle-notebooks.md", f"{notebooks['nvshared, median']:.1f} times as long"),
        ("docs/lab-server.md", f"{notebooks['nvshared, median']:.1f} times as late"),
        ("docs/lab-server.md", f"{notebooks['nvshared, 99th percentile']:.1f} times at worst"),
        ("docs/moving.md", f"{moving['move and next step, later']:.0f} s, the first time "
                           f"{moving['move and next step, the first time']:.0f} s"),
        ("docs/engines.md", f"in {bars['models']['nvshared'] / 1000:.1f} s, and in "
                            f"{bars['models']['nvshared, prefetch on'] / 1000:.1f} s"),
        ("docs/saving.md", f"an image of {image} is saved in {took['save']:.0f} seconds and "
                           f"restored in {took['restore']:.0f}"),
    ]


def test_page_that_quotes_a_result_has_the_figure_of_the_newest() -> None:
    assert [(page, quote) for page, quote in quotes()
            if quote not in (ROOT / page).read_text()] == []


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
