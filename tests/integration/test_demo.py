# SPDX-License-Identifier: Apache-2.0
"""nvsharectl demo prints right results, and leaves nothing when interrupted at any moment."""

import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.fakehook import PATIENCE

COMMAND = "import sys; from nvshared.cli.main import main; sys.exit(main())"
# Runs the demo with short steps, so that the demo ends soon.
QUICK = ("from nvshared import demo; demo.STEPS = 3; "
         "demo.STEP_CPU_MS, demo.STEP_GPU_US, demo.TQ = 20, 300_000, 1; ") + COMMAND
MARK = "NVSHARE_TEST_MARK"


class Demo:
    """A running demo. An environment variable with a unique value marks all its processes."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        environment = {**os.environ, MARK: self.mark, "TMPDIR": str(folder), "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "demo", "--simulate"], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def until(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return
        pytest.fail(f"it never printed {words!r}")

    def processes(self) -> dict[int, str]:
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue                # the process has ended or is another user's
            if f"{MARK}={self.mark}".encode() in environment:
                found[int(folder.name)] = command.replace(b"\0", b" ").decode()
        return found

    def leaves_nothing(self) -> None:
        assert self.processes() == {}
        assert list(self.folder.iterdir()) == []


@pytest.fixture
def demo(request: pytest.FixtureRequest) -> Iterator[Demo]:
    """A demonstration on a simulated GPU; its processes are killed after the test."""
    folder = Path("/tmp", f"nvshare-test-{uuid.uuid4().hex[:8]}")     # short: it has sockets
    folder.mkdir()
    demo = Demo(folder, getattr(request, "param", COMMAND))
    yield demo
    for pid in demo.processes():
        with suppress(ProcessLookupError):      # it was about to end
            os.kill(pid, signal.SIGKILL)
    demo.process.wait()
    for pipe in (demo.process.stdout, demo.process.stderr):
        assert pipe is not None
        pipe.close()
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.fixture
def sees_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")     # of the machine's own GPUs


@pytest.mark.usefixtures("sees_another_gpu")
def test_simulated_demo_runs_although_its_caller_sees_none_but_another_gpu(demo: Demo) -> None:
    demo.until(": right")


@pytest.mark.parametrize("demo", [QUICK], indirect=True, ids=["quick"])
def test_demo_has_right_results_and_leaves_no_process_or_file(demo: Demo) -> None:
    output, errors = demo.process.communicate()
    assert demo.process.returncode == 0, output + errors
    assert errors == ""
    assert output.startswith("The GPU is simulated: as requested.\n")
    table = output[output.index("TWO PROGRAMS"):].splitlines()
    assert [line.partition("  ")[0] for line in table[1:]] == [
        "together, with nvshared", "one after the other", "together, without nvshared",
    ]
    assert table[1].endswith("A right, B right")
    assert table[2].endswith("A right, B right")
    assert table[3].endswith("A right, B out of memory")
    assert int(table[1].split()[4]) > 0, "no hand-over"
    demo.leaves_nothing()


@pytest.mark.parametrize(("moment", "number"), [
    ("holds the GPU", signal.SIGINT),
    *(pytest.param(moment, number, marks=pytest.mark.long) for moment, number in (
        ("Two programs share it", signal.SIGHUP), ("checking every word", signal.SIGTERM))),
])
def test_demo_ended_by_a_signal_leaves_no_process_or_file(
    demo: Demo, moment: str, number: signal.Signals
) -> None:
    demo.until(moment)
    for _ in range(2):                  # a second Ctrl-C during the clean-up
        demo.process.send_signal(number)
    _, errors = demo.process.communicate()
    assert demo.process.returncode == 128 + number
    assert errors == ""
    demo.leaves_nothing()


def test_demo_whose_output_is_closed_ends_and_leaves_no_process_or_file(demo: Demo) -> None:
    demo.until("holds the GPU")
    assert demo.process.stdout is not None
    demo.process.stdout.close()
    assert demo.process.wait() == 128 + signal.SIGPIPE
    assert demo.process.stderr is not None
    assert demo.process.stderr.read() == ""
    demo.leaves_nothing()


def test_programs_of_a_demo_die_when_the_demo_is_killed(demo: Demo) -> None:
    demo.until("holds the GPU")
    processes = demo.processes()
    assert len(processes) >= 4          # the demonstration, the daemon and both programs
    ends = [os.pidfd_open(pid) for pid in processes]
    demo.process.kill()
    demo.process.communicate()
    for end in ends:
        readable, _, _ = select.select([end], [], [], PATIENCE)
        os.close(end)
        assert readable, processes
    assert demo.processes() == {}
