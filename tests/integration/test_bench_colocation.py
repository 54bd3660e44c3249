# SPDX-License-Identifier: Apache-2.0
"""The colocation benchmark on a simulated card: it measures, and nothing of it stays behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.fakehook import PATIENCE

ROOT = Path(__file__).parents[2]

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    """The program whose copies share the card."""
    subprocess.run(["make", "-s", "-C", str(ROOT / "bench" / "colocation")], check=True)


def listen_to_ctrl_c() -> None:
    """The tests may themselves be run by something that does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start(short_path: Path) -> Start:
    """Starts the benchmark; everything it makes lies in the test's folder."""
    def started(*options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "bench.colocation.measure", "--simulate", "--variant", "big_50",
             "--shape", "alternating", "--tq", "5", "--scale", "0.001", *options],
            cwd=ROOT, env={**os.environ, "TMPDIR": str(short_path)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=listen_to_ctrl_c,
        )

    return started


def processes(folder: Path, other_than: int) -> list[int]:
    """Those that were started with this folder in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), other_than):
            with suppress(OSError):     # it has ended, or is somebody else's
                if str(folder).encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


@pytest.mark.long
def test_two_programs_that_do_not_fit_are_measured_and_right(
    start: Start, short_path: Path
) -> None:
    kept = short_path / "kept" / "report.json"
    run = start("--json", "--output", str(kept))
    output, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    report = json.loads(output)
    assert report == json.loads(kept.read_text())
    assert report["complete"]
    assert report["right"]
    assert report["simulated"]
    [trial] = report["thesis"]["trials"]
    assert trial["way"] == {"mode": "auto", "tq": 5.0}
    assert trial["over_serial"] > 0
    assert trial["trace"]["handovers"] > 0
    assert [one["digest"] for one in trial["each"]] != ["0" * 16, "0" * 16]
    assert "two together" in errors
    assert processes(short_path, run.pid) == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_benchmark_leaves_nothing_behind(
    number: signal.Signals, start: Start, short_path: Path
) -> None:
    run = start()
    assert run.stderr is not None
    for line in run.stderr:
        if "two together" in line:
            break
    assert processes(short_path, run.pid), "the daemon and the two programs"
    run.send_signal(number)
    _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130, errors
    assert "interrupted" in errors
    assert processes(short_path, run.pid) == []
    assert list(short_path.glob("nvshare-bench-*")) == []
