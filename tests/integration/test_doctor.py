# SPDX-License-Identifier: Apache-2.0
"""nvsharectl doctor as a process, with a daemon and without, with a bus and without."""

import json
import signal
import subprocess
import sys

from tests.bus.service import private_bus
from tests.integration.conftest import ROOT, Site, wait_until

PROGRAM = "import sys; from nvshared.cli.main import main; sys.exit(main())"
Grades = dict[str, str]
POLICY = '<allow own="*"/>'
POLICY_MISSING = f'{POLICY}<deny send_destination="com.nvshare"/>'


def findings(
    site: Site, bus: str
) -> tuple["subprocess.CompletedProcess[str]", list[dict[str, str]]]:
    """A run of the doctor, and what it finds."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "doctor", "--json", "--bus", bus],
        env={"NVSHARE_SOCKET": str(site.socket), **site.environment}, cwd=ROOT, text=True,
        capture_output=True, check=False)
    return done, json.loads(done.stdout)["findings"]


def examine(site: Site, bus: str = "unix:path=/no/such") -> tuple[int, Grades, dict[str, str]]:
    """Exit status of the doctor; grade of each topic; words of each topic."""
    done, found = findings(site, bus)
    assert done.stderr == ""
    return (
        done.returncode, {one["topic"]: one["grade"] for one in found},
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


def advice(site: Site, bus: str, topic: str) -> str:
    """The doctor's advice on a topic, which has a fault or a warning; "": it is content."""
    found = [one for one in findings(site, bus)[1] if one["topic"] == topic]
    assert found
    return "".join(one["advice"] for one in found if one["grade"] in ("fault", "warning"))


def follow(text: str) -> None:
    """Runs the commands of an advice, which stand behind its last colon."""
    subprocess.run(["sh", "-ec", text.rpartition(": ")[2]], check=True)


def test_doctor_is_content_after_its_advice_on_a_socket_that_others_may_not_use(
        public_site: Site, bus: str) -> None:
    site = public_site
    site.start("--bus", bus)
    assert advice(site, bus, "socket") == ""
    site.socket.chmod(0o600)
    said = advice(site, bus, "socket")
    assert said == f"give all users access: chmod a+rw {site.socket}"
    follow(said)
    assert advice(site, bus, "socket") == ""


def test_doctor_is_content_after_its_advice_on_a_socket_that_was_removed(
        public_site: Site, bus: str) -> None:
    site = public_site
    daemon = site.start("--bus", bus)
    site.socket.unlink()
    said = advice(site, bus, "socket")
    assert said.startswith("nvshared runs, but its socket was removed: ")
    assert "listens" not in said
    daemon.terminate()                  # the advice without systemd: to start it again
    daemon.wait()
    site.start("--bus", bus)
    assert advice(site, bus, "socket") == ""


def test_doctor_is_content_after_its_advice_on_a_socket_elsewhere(
        public_site: Site, bus: str) -> None:
    site = public_site
    site.start("--bus", bus)
    site.environment["NVSHARE_SOCKET"] = str(site.folder / "another")
    said = advice(site, bus, "socket")
    assert said == f"nvshared listens at {site.socket}: export NVSHARE_SOCKET={site.socket}"
    site.environment["NVSHARE_SOCKET"] = said.rpartition("=")[2]
    assert advice(site, bus, "socket") == ""


def test_doctor_is_content_after_its_advice_on_a_missing_policy_of_the_bus(site: Site) -> None:
    with private_bus(POLICY_MISSING) as made:
        site.start("--bus", made.address)
        said = advice(site, made.address, "bus")
        assert "put com.nvshare.conf" in said
        configuration = made.folder / "bus.conf"
        configuration.write_text(configuration.read_text().replace(POLICY_MISSING, POLICY))
        made.process.send_signal(signal.SIGHUP)     # as systemctl reload dbus
        wait_until(lambda: advice(site, made.address, "bus") == "")


def test_run_command_has_the_daemon_at_the_programs_socket_after_its_advice(site: Site) -> None:
    def said() -> str:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, "run", "--", "true"], cwd=ROOT, text=True,
            env={**site.environment, "NVSHARE_SOCKET": str(site.socket)}, capture_output=True,
            check=True)
        return ended.stderr

    command = said().partition("start one there: nvshared ")[2].partition(";")[0]
    assert command == f"--socket {site.socket}"
    site.started.append(subprocess.Popen(
        [sys.executable, "-m", "nvshared", *command.split(), "--bus", "none"], cwd=ROOT, text=True,
        env=site.environment))
    wait_until(lambda: said() == "")
