# SPDX-License-Identifier: Apache-2.0
"""Makes docs/performance.md and its charts from the results in bench/results/.

Each figure takes the newest file of its kind. The page alone needs no package; the charts need
matplotlib. Output depends on the results alone, so that making it twice changes nothing.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.harness import ROOT

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
# Each is readable on white and on near black (contrast 4:1 or more).
INK, OURS, OTHERS = "#7d8590", "#3b82c4", "#9a7b4f"

HEAD = (
    "<!-- SPDX-License-Identifier: Apache-2.0 -->\n# Performance\n\n"
    "Measured results, each with its GPU and its command. `make figures` makes this page from "
    "[bench/results](../bench/results), `make bench` measures anew, and "
    "[benchmarks](internals/benchmarks.md) says how. Drivers were of version 580. A benchmark "
    "fails unless the programs' results are the same bits as alone.\n\n"
    "Bars of nvshared are blue. Times are medians.\n")
REST = """
## Other figures

| measurement | figure | command |
| --- | --- | --- |
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart with its text. `bars`: label and value, and whether nvshared made it."""

    name: str                           # of the image, and of the anchor in the page
    title: str
    text: str
    command: str
    file: str
    unit: str
    bars: list[tuple[str, float, bool]]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure without a chart."""

    what: str
    figure: str
    command: str
    file: str


def newest(kind: str) -> tuple[str, dict[str, Any]]:
    """Name and contents of the newest result of this kind, of whatever card.

    Raises LookupError if there is none.
    """
    form = re.compile(rf"{kind}(-[a-z]+\d+(x\d+)?|-\d+cores)?-\d{{8}}T\d{{6}}")
    files = sorted((path for path in RESULTS.glob("*.json") if form.fullmatch(path.stem)),
                   key=lambda path: path.stem.rpartition("-")[2])
    if not files:
        raise LookupError(f"bench/results has no {kind}-CARD-DATE.json")
    return files[-1].name, json.loads(files[-1].read_text())


def goals(document: Mapping[str, Any], variant: str) -> dict[str, dict[str, Any]]:
    """The values of a variant: by setting, then by what was measured."""
    return {
        result["setting"]: {goal["what"]: goal["value"] for goal in result["goals"]}
        for result in document["results"] if result["variant"] == variant}


def card(file: str) -> str:
    """The machine's GPUs in words, as the result's name gives them: a machine of two H100s; and
    what ran on those that the benchmark did not use, by the result's `beside`."""
    found = re.search(r"-([a-z]+\d+)(?:x(\d+))?-\d{8}T", file)
    if found is None:
        return "a machine without a GPU"
    model, count = found[1].upper(), int(found[2] or 1)
    words = {1: "one", 2: "two", 4: "four", 8: "eight"}
    beside = json.loads((RESULTS / file).read_text()).get("beside", "")
    return (f"a machine of {words.get(count, count)} {model}{'s' if count > 1 else ''}"
            f"{f', {beside} on its other GPUs' if beside else ''}")


def engines() -> Figure:
    file, document = newest("rl")
    of = goals(document, "hand-over")
    what = "from the end of one's work to the other's"
    released = of["shared, released"]
    bars = [(name, of[setting][what] / 1000, setting.startswith("shared")) for name, setting in (
        ("nvshared, turn released", "shared, released"),
        ("nvshared, nothing released", "shared"),
        ("copied by hand, missing part only", "by hand, what is missing"),
        ("torch_memory_saver, kept backup", "torch_memory_saver, backup retained"))
        if setting in of]
    return Figure(
        "engines", "A trainer and a rollout engine in turns",
        "Two engines of 62 % of the GPU each have it in turns, and change all their memory in each "
        "turn. The time is from the end of one's work to the other's, less that work. The bus needs"
        f" {released['the bus takes for that, both ways at once'] / 1000:.2f} s for what nvshared "
        f"moves ({released['came in']:.0f} GiB each way). Without it, each program has to move its "
        "memory itself.",
        "make bench-rl", file, "s", bars)


def neighbour() -> Figure:
    file, document = newest("handover-neighbour")
    of, what = goals(document, "neighbour"), "STOP to RUN, less the drain"
    moved = document["results"][0]["figures"]["in_gib"]["median"]
    return Figure(
        "neighbour", "Two programs in turns, with and without an idle GPU beside",
        "Two programs of 57 % of the GPU change all their memory in each turn; "
        f"{moved:.0f} GiB move each way. With NVLink the memory goes to the idle neighbour GPU. "
        "Without nvshared the second program is out of memory.",
        "make bench-handover VARIANTS=neighbour", file, "ms",
        [("to a neighbour GPU", of["neighbour auto"][what], True),
         ("to host memory", of["neighbour off"][what], True)])


def colocation() -> Figure:
    file, document = newest("colocation-thesis")

    def took(program: str, way: str) -> float:
        of = goals(document, program)[f"alternating, {way}"]
        return float(of["together, over one after the other"])

    return Figure(
        "colocation", "Two programs together, next to one after the other",
        "The time until both have ended, over the time of the two one after the other. Programs of "
        "15.3 GB in 16 GiB take turns, and gain as far as they leave the GPU idle; programs that "
        "keep it busy pay for the hand-overs. Programs of 7.2 GB fit. Without nvshared the two "
        "large programs cannot run at once.",
        "make bench-colocation", file, "times",
        [("large, half busy, turns of 2 s", took("big_50", "auto, quantum 2 s"), True),
         ("large, 90 % busy, turns of 2 s", took("big_90", "auto, quantum 2 s"), True),
         ("large, 90 % busy, turns of 5 s", took("big_90", "auto, quantum 5 s"), True),
         ("small, 90 % busy, nvshared", took("small_90", "auto, quantum 1 s"), True),
         ("small, 90 % busy, driver alone", took("small_90", "free"), False)])


def peers() -> Figure:
    file, document = newest("peers")
    of = goals(document, "together")
    bars = [
        (name, of[setting]["seconds"], name.startswith("nvshared")) for name, setting in (
            ("one after the other", "one after the other"),
            ("nvshared, turns of 10 s", "nvshared, quantum 10 s"),
            ("nvshared, turns of 2 s", "nvshared, quantum 2 s"), ("nvshare", "nvshare"))]
    finished = [f"{name} finished {of[name]['programs that finished']} of 2"
                for name in ("HAMi-core", "MPS")]
    return Figure(
        "peers", "Two programs that do not fit together, under several projects",
        "Two programs of 60 % of the GPU each: the time until both have ended. "
        f"{' and '.join(finished)}, the others ran out of memory.",
        "make bench-peers", file, "s", bars)


def limits() -> Figure:
    file, document = newest("peers-limits")
    of, what = goals(document, "limits"), "work of alone, with a limit of 50 %"
    kinds = (("500 kernels of 7 us, then a look", "kernels of 7 µs"),
             ("kernels of 1 ms", "kernels of 1 ms"), ("kernels of 100 ms", "kernels of 100 ms"),
             ("a training", "a training"))
    bars = [(f"{project}, {name}", of[f"{project}, {kind}"][what], project == "nvshared")
            for kind, name in kinds for project in ("nvshared", "MPS")]
    none = [of[f"HAMi-core, {kind}"][what] for kind, _ in kinds]
    return Figure(
        "limits", "A limit of half of a GPU's time",
        "The work that a program did under a limit of 50 %, of its work alone. HAMi-core's limit "
        f"had no effect there ({max(none):.0f} %): it needs figures of the driver that a virtual "
        "machine may lack. MPS limits multiprocessors instead of time.",
        "make bench-peers VARIANTS=limits", file, "%", bars)


def models() -> Figure:
    file, document = newest("models-three")
    of = goals(document, "three")
    return Figure(
        "models", "Three models that do not fit together, each asked now and then",
        "The time of a request, to any of three models of which two fit on the GPU. "
        "`prefetch = on` loads the model that will be asked soonest. The others are one process "
        "that moves the "
        "weights itself, and processes that are started for each request.",
        "make bench-models VARIANTS=three", file, "ms",
        [(name, of[setting]["median"], name.startswith("nvshared")) for name, setting in (
            ("nvshared, prefetch on", "ahead"), ("nvshared", "shared"),
            ("weights moved by hand", "by hand"), ("weights read anew", "anew"))
         if setting in of])


def notebooks() -> Figure:
    file, document = newest("colocation-notebooks")
    (of,) = goals(document, "notebooks").values()
    return Figure(
        "notebooks", "Ten notebooks that do not fit together",
        "Ten notebooks of 20 GiB each run a cell of a second now and then, thirty in two minutes: "
        "the time from submit to result over that of the cell alone. The model is a GPU without a "
        "library that could share it without any loss, and a bus as fast as measured. Without "
        "nvshared six notebooks fit.",
        "make bench-colocation VARIANTS=notebooks", file, "times",
        [("nvshared, median", of["over alone, median"], True),
         ("model, median", of["expected of card and bus, median"], False),
         ("nvshared, 99th percentile", of["over alone, 99th percentile"], True),
         ("model, 99th percentile", of["expected of card and bus, 99th percentile"], False)])


def idle() -> Figure:
    file, document = newest("moving-idle")
    before, after, wake = document["idle"]
    took = wake["wake_s"]
    return Figure(
        "idle", "Memory on the GPU of thirty idle notebooks",
        "Thirty PyTorch notebooks that fit together and are idle, before and after `deep-idle` "
        f"parks them, which took {after['parked_s']:.0f} s. The next cell of a parked notebook "
        f"answered after {min(took):.2f} to {max(took):.2f} s.",
        "make bench-moving", file, "MiB",
        [("idle, not parked", before["held_mib"], False),
         ("parked", float(sum(after["still_held_mib"])), True)])


def moving() -> Figure:
    file, document = newest("moving-parks")
    parks, moves = document["parks"]["parks"], document["moves"]["moves"]
    chance = document["random"][-1]
    return Figure(
        "moving", "Parking a program, waking it, and moving it to another GPU",
        "An unmodified PyTorch program with Adam and a captured CUDA graph: 10 GiB when it is "
        "parked, 24 GiB when it is moved. The first time, host memory is made. Its memory on the "
        f"GPU is 0 MiB while it is parked. In {chance['park']} random parks and {chance['move']} "
        f"moves of PyTorch, CuPy and JAX {chance['wrong']} answers differed.",
        "make bench-moving", file, "s",
        [("park, the first time", parks[0]["park_s"], True),
         ("park, later", parks[1]["park_s"], True),
         ("wake", parks[1]["wake_s"], True),
         ("move and next step, the first time", moves[0]["to_next_step_s"], True),
         ("move and next step, later", moves[1]["to_next_step_s"], True)])


def requests() -> Figure:
    file, document = newest("shares-service")
    of, what = goals(document, "service"), "99th percentile"
    ours, without = of["high, the training in the background"], of["no library"]
    return Figure(
        "requests", "Requests beside a training that fits on the same GPU",
        "The 99th percentile of the time of requests, one each 20 ms, beside a training. In the "
        f"background the training did {ours['the training, of alone']:.0f} % of its work alone, "
        f"without nvshared {without['the training, of alone']:.0f} %.",
        "make bench-shares VARIANTS=service", file, "ms",
        [("alone", ours["99th percentile alone"], False),
         ("training in the background", ours[what], True),
         ("without nvshared", without[what], False)])


def disk() -> Figure:
    file, document = newest("tiers-disk")
    rounds = document["rounds"]
    rate = {key: median(one[key] for one in rounds) for key in rounds[0]}
    key, other = ("fio", "`fio`") if "fio_write_gbps" in rate else ("plain", "a plain loop")
    return Figure(
        "disk", "Swapped memory to a disk and back",
        f"{document['gib']:.0f} GiB from host memory to a file on a virtual disk, and from there "
        f"to the GPU, next to {other} on the same disk.",
        "make bench-tiers", file, "GB/s",
        [("written by nvshared", rate["park_gbps"], True),
         (f"written by {other.strip('`')}", rate[f"{key}_write_gbps"], False),
         ("read to the GPU by nvshared", rate["wake_gbps"], True),
         (f"read by {other.strip('`')}", rate[f"{key}_read_gbps"], False)])


FIGURES: tuple[Callable[[], Figure], ...] = (
    engines, neighbour, colocation, peers, limits, models, notebooks, idle, moving, requests, disk)


def training() -> Row:
    file, document = newest("training")
    step = document["step_ms"]
    return Row("a step of a training that has the GPU to itself",
               f"{step['with']:.3f} ms with the library, {step['without']:.3f} ms without",
               "make bench-training", file)


def gate() -> Row:
    file, document = newest("gate")
    tight = [each for each in document["figures"] if each["pace_us"] == 0]
    ours = {each["threads"]: each["added"] for each in tight if each["way"] == "gate"}
    return Row("a launch while the program may use the GPU",
               f"{ours[1]:.1f} ns more with one thread, {ours[4]:.1f} ns with four",
               "make bench-gate", file)


def preload() -> Row:
    file, document = newest("preload")
    of = {each["way"]: each["added"] for each in document["figures"]}
    return Row("the start of a program without CUDA",
               f"{of['libnvshare.so']:.0f} µs more; `libm` costs {of['libm.so.6']:.0f} µs",
               "make bench-preload", file)


def daemon() -> Row:
    file, document = newest("daemon")
    of = {each["clients"]: each["stopped"] / 1000
          for each in document["handovers"] if each["kind"] == "turns"}
    few, many = min(of), max(of)
    return Row(f"the daemon's part of a hand-over, with {few} and with {many} programs",
               f"{of[few]:.2f} and {of[many]:.2f} ms from STOP to the next RUN",
               "make bench-daemon", file)


def attacked() -> Row:
    file, document = newest("attacked")
    hello = max(each["most"] for each in document["attacks"])
    return Row(f"the longest wait of other users' new programs under {len(document['attacks'])} "
               "attacks on the daemon", f"{hello:.0f} ms", "make bench-attacked", file)


def urgent() -> Row:
    file, document = newest("shares-urgent")
    found, = goals(document, "urgent").values()
    return Row("a program of high priority beside a background training, 57 % of the GPU each: "
               "from its first launch to its turn",
               f"{found['from the first launch to the turn, median'] / 1000:.2f} s; "
               f"{found['the longest'] / 1000:.1f} s the first time, when host memory is made",
               "make bench-shares VARIANTS=urgent", file)


def tiers() -> Row:
    file, document = newest("tiers-notebooks")
    return Row(f"{document['programs']} programs of {document['gib']:.0f} GiB on "
               f"{document['capacity'].replace('GiB', ' GiB')} of a GPU, "
               f"{document['swap_budget'].replace('GiB', ' GiB')} of host memory and a disk, "
               f"turns of {document['tq'].replace('s', ' s')}",
               f"all ended after {max(document['seconds']):.0f} s, at most "
               f"{document['most_on_disk_gib']:.0f} GiB on the disk, each byte right",
               "python -m bench.tiers.notebooks", file)


def soak() -> Row:
    file, document = newest("soak-kills")
    return Row(f"{document['killed_programs']} programs and {document['killed_daemons']} daemons "
               f"killed at random within {document['seconds']} s of hand-overs",
               f"{len(document['wrong'])} bytes wrong of "
               f"{document['compared_bytes'] / 1e9:.0f} GB compared; at most "
               f"{document['most_borrowed_bytes'] / 1e6:.0f} MB on the other GPU",
               "make soak KILLS=650", file)


def saving() -> Row:
    file, document = newest("saving")
    found, = (each for each in document["programs"] if each["program"] == "torch")
    took = found["mean_s"]
    return Row("a PyTorch program with Adam and a captured graph saved by CRIU and ended; "
               "restored; its next step (means)",
               f"{took['save']:.2f}, {took['restore']:.2f} and {took['step']:.2f} s with an image "
               f"of {found['image_bytes'] >> 20} MiB; the disk writes "
               f"{document['disk_bytes_per_s']['write'] / 1e9:.2f} GB/s", "make bench-saving", file)


ROWS: tuple[Callable[[], Row], ...] = (
    training, gate, preload, daemon, attacked, urgent, tiers, saving, soak)


def shown(value: float, unit: str) -> str:
    """A value of a chart with its unit, with three digits."""
    digits = 0 if value >= 100 or value == 0 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def page() -> str:
    """The text of docs/performance.md. Raises LookupError if results are missing."""
    parts = [HEAD]
    for make in FIGURES:
        figure = make()
        first, *_, last = figure.bars
        values = (f"{first[0]}: {shown(first[1], figure.unit)}; "
                  f"{last[0]}: {shown(last[1], figure.unit)}")
        parts.append(
            f"\n## {figure.title}\n\n"
            f"![{values}](images/figure-{figure.name}.svg)\n\n"
            f"{figure.text} On {card(figure.file)}. `{figure.command}` "
            f"([results](../bench/results/{figure.file}))\n")
    parts.append(REST)
    for row in (make() for make in ROWS):
        parts.append(f"| {row.what} | {row.figure} ([results](../bench/results/{row.file})) "
                     f"| `{row.command}` |\n")
    return "".join(parts)


def draw(figure: Figure, path: Path) -> None:
    """Writes the chart as SVG, with texts as text. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": figure.name, "font.family": "sans-serif",
        "font.size": 11, "text.color": INK, "ytick.color": INK})
    labels = [label for label, _, _ in figure.bars]
    values = [value for _, value, _ in figure.bars]
    drawn, axes = pyplot.subplots(figsize=(8, 0.45 * len(labels) + 0.25))
    axes.barh(range(len(labels)), values, height=0.62,
              color=[OURS if ours else OTHERS for _, _, ours in figure.bars])
    for place, value in enumerate(values):
        axes.text(value + max(values) * 0.01, place, shown(value, figure.unit), va="center")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.18)
    axes.xaxis.set_visible(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(axis="y", length=0)
    drawn.tight_layout(pad=0.8)
    drawn.savefig(path, format="svg", transparent=True,
                  metadata={"Date": None, "Creator": None, "Title": figure.title})
    pyplot.close(drawn)


def main() -> int:
    argparse.ArgumentParser(prog="python -m bench.figures", description=__doc__).parse_args()
    PAGE.write_text(page())
    for make in FIGURES:
        figure = make()
        draw(figure, IMAGES / f"figure-{figure.name}.svg")
        print(f"docs/images/figure-{figure.name}.svg from bench/results/{figure.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
