# SPDX-License-Identifier: Apache-2.0
"""nvsharectl doctor as a process, with a daemon and without, with a bus and without."""

import json
import subprocess
import sys

from tests.integration.conftest import ROOT, Site

PROGRAM = "import sys; from nvshared.cli.main import main; sys.exit(main())"
Grades = dict[str, str]


def examine(site: Site, bus: str = "unix:path=/no/such") -> tuple[int, Grades, dict[str, str]]:
    """Exit status of the doctor; grade of each topic; words of each topic."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "doctor", "--json", "--bus", bus],
        env={**site.environment, "NVSHARE_SOCKET": str(site.socket)}, cwd=ROOT, text=True,
        capture_output=True, check=False)
    assert done.stderr == ""
    found = json.loads(done.stdout)["findings"]
    return (
        done.returncode,
        {one["topic"]: one["grade"] for one in found},
        {one["topic"]: one["words"] for one in found})


def test_doctor_finds_no_daemon_then_its_daemon_then_a_program_without_the_library(
    site: Site, bus: str
) -> None:
    code, grades, _ = examine(site)
    assert (code, grades["socket"], grades["bus"]) == (1, "fault", "fault")
    assert (grades["driver"], grades["gpu 0"], grades["library"]) == ("ok", "ok", "ok")
    site.start("--bus", bus)
    site.hook().hello()
    code, grades, words = examine(site, bus)
    assert code == 0
    assert (grades["socket"], grades["bus"], grades["version"]) == ("ok", "ok", "ok")
    assert "unshared" not in grades
    assert words["clients"] == "1 program shares its GPU"
    stranger = site.workload(
        "--memory", "32MiB", "--chunk", "16MiB", "--hold", "--json", LD_PRELOAD="")
    assert stranger.stdout is not None
    assert stranger.stdout.readline()
    code, grades, words = examine(site, bus)
    assert (code, grades["unshared"]) == (0, "warning")
    assert words["unshared"].startswith(f"nvshare-workloa[{stranger.pid}] uses GPU 0")
