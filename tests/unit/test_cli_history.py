# SPDX-License-Identifier: Apache-2.0
"""nvsharectl history: its arguments and its output."""

from pathlib import Path

import pytest

from nvshared.cli import history as verb
from nvshared.cli.main import main
from nvshared.control.snapshot import UsageTable, history
from nvshared.errors import ExitCode, NvshareError
from nvshared.units import SECOND

DAY = 86400 * SECOND


@pytest.mark.parametrize(("arguments", "words"), [
    (("--since", "soon"), "'soon' is no moment since 1970; give how long ago, as in 7d or 90min"),
    (("--since", "1815-06-18"), "'1815-06-18' is no moment"),
    (("--since", "99999999999d"), "'99999999999d' is no moment since 1970; give how long ago"),
    (("--since", "1h", "--until", "2h"), "--until is not later than --since; give"),
    (("--step", "1s"), "the step cannot be '1s'; give minute, hour, day"),
    (("--step", "99999999999d"), "the step cannot be '99999999999d'; give minute, hour, day, or a"),
    (("--plot", "--until", "9999-12-31", "--step", "day"), "a plot has at most 10000 steps"),
    (("--top", "0"), "'0' is no number of names; give a whole number from 1 to 1000"),
    (("--plot", "--csv"), "--plot, --csv and --json exclude each other; give one of them"),
    (("--plot", "a.gif"), "no plot can be written to 'a.gif'; give FILE.svg or FILE.png"),
])
def test_history_command_with_contradictory_arguments_is_refused(
        capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert main(["history", *arguments]) == ExitCode.INVALID_ARGS
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"nvsharectl: {words}")


@pytest.mark.parametrize("text", ["2026-11-01", "2026-11-01T08:30", "2026-11-01 08:30:15"])
def test_history_command_reads_and_shows_dates_in_the_local_time_zone(text: str) -> None:
    assert verb.shown(verb.moment(text)) == (text.replace("T", " ") + " 00:00")[:16]
    assert verb.moment("2d") < verb.moment("30h") < verb.moment("90min") < verb.moment("now")
    assert verb.moment("yesterday") < verb.moment("today") <= verb.moment("now")


LABELS = {"": "others", "alice": "alice", "bob": "bob"}
FOUND: UsageTable = history(0, 4 * DAY, DAY, [
    [0, "", "", DAY // 4, *[0] * 11, {}], [0, "alice", "", DAY, *[0] * 11, {}],
    [2 * DAY, "bob", "", DAY // 2, *[0] * 11, {}],
], "")


def test_history_plot_shows_the_share_of_each_tenant_in_the_gpu_time_of_all_cards() -> None:
    shares = verb._shares(FOUND, LABELS, 2)
    assert list(shares.items()) == [
        ("alice", [0.5, 0, 0, 0]), ("bob", [0, 0, 0.25, 0]), ("others", [0.125, 0, 0, 0])]


def test_history_plot_as_png_without_the_converter_is_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NvshareError, match="rsvg-convert, which is not installed; install it"):
        verb.draw_plot(str(tmp_path / "used.png"), FOUND, LABELS, 1)
    converter = tmp_path / verb.CONVERTER
    converter.write_text("#!/bin/sh\n/bin/cat >/dev/null; printf PNG\n")
    converter.chmod(0o755)
    verb.draw_plot(str(tmp_path / "used.PNG"), FOUND, LABELS, 1)
    assert (tmp_path / "used.PNG").read_bytes() == b"PNG"
    converter.write_text("#!/bin/sh\n/bin/cat >/dev/null; echo no font >&2; exit 1\n")
    with pytest.raises(NvshareError, match="rsvg-convert failed: no font"):
        verb.draw_plot(str(tmp_path / "used.png"), FOUND, LABELS, 1)
