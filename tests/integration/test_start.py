# SPDX-License-Identifier: Apache-2.0
"""Start and end of the daemon: each fault is reported by one sentence and an exit code."""

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from nvshared.errors import ExitCode
from nvshared.hook.connection import most_clients
from nvshared.hook.protocol import Type
from nvshared.units import MIB
from tests.bus.service import private_bus
from tests.integration.conftest import ROOT, Site, wait_until
from tests.integration.fakehook import PATIENCE


def one_sentence(done: subprocess.CompletedProcess[str], code: ExitCode) -> str:
    """The only line on stderr, without the name in front."""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("nvshared: ")
    assert done.returncode == code
    assert done.stdout == ""
    return lines[0].removeprefix("nvshared: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_daemon_ends_on_sigterm_and_leaves_no_files(site: Site, number: int) -> None:
    daemon = site.start("--trace", str(site.folder / "trace"), "--state-dir", str(site.folder))
    assert site.socket.exists()
    daemon.send_signal(number)
    assert daemon.wait(PATIENCE) == 0
    assert not site.socket.parent.exists()
    assert sorted(path.name for path in site.folder.iterdir()) == [
        "cards.json", "log", "nvshared.conf", "trace"]


def test_daemon_that_ends_while_a_slow_disk_writes_leaves_the_whole_file(site: Site) -> None:
    slow, state = site.folder / "slow", site.folder / "state"
    slow.mkdir()
    state.mkdir()
    (slow / "sitecustomize.py").write_text(
        "import os, time\nfsync = os.fsync\n"
        "os.fsync = lambda descriptor: (time.sleep(3), fsync(descriptor))\n")
    site.before = ["env", f"PYTHONPATH={slow}"]
    daemon = site.start("--state-dir", str(state), "--history", "off")
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    assert [path.name for path in state.iterdir()] == ["cards.json"]


def test_daemon_with_closed_streams_starts_and_gives_their_numbers_to_no_socket(
        site: Site) -> None:
    site.before = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    daemon = site.start()
    assert site.hook().hello() is not None
    streams = {str(Path(f"/proc/{daemon.pid}/fd/{number}").readlink()) for number in range(3)}
    assert streams == {os.devnull}


def test_second_daemon_on_the_same_socket_is_refused(site: Site) -> None:
    site.start()
    assert one_sentence(site.run(), ExitCode.ALREADY_RUNNING) == (
        f"another nvshared listens on {site.socket}; "
        "stop it (systemctl stop nvshared), or choose another path with --socket"
    )
    assert site.hook().hello() is not None


def test_daemon_without_permission_to_create_the_socket_exits_with_the_path(site: Site) -> None:
    locked = site.folder / "locked"
    locked.mkdir(mode=0o555)
    powerless: list[str] = []
    if os.geteuid() == 0:               # root without capabilities may not write there
        os.chown(locked, 65534, 65534)
        powerless = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--"]
    command = [*powerless, *site.command("--socket", str(locked / "run" / "sock"))]
    done = subprocess.run(
        command, env=site.environment, cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=PATIENCE)
    assert one_sentence(done, ExitCode.NOT_PERMITTED) == (
        f"the socket {locked}/run/sock cannot be made: Permission denied; "
        "run nvshared as root, or choose another path with --socket"
    )


# Like a machine that hides other users' processes (mount option hidepid), without capabilities. $1:
# the daemon's group; members of group 65533 see all processes.
HIDING = '''
mount -t proc -o hidepid=2,gid=65533 proc /proc
group=$1; shift
exec setpriv --regid 65534 --groups "$group" --bounding-set=-all --inh-caps=-all "$@"
'''
CAN_HIDE = os.geteuid() == 0 and subprocess.run(
    ["unshare", "-m", "mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"],
    capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not CAN_HIDE, reason="/proc cannot be mounted with hidepid here")
def test_daemon_under_hidepid_logs_that_units_jobs_and_pods_are_unknown(site: Site) -> None:
    site.before = ["unshare", "-m", "sh", "-ec", HIDING, "sh", "65533"]
    site.start()
    assert "hidepid" not in site.log.read_text()
    site.close()
    site.before[-1] = "65532"
    site.start()
    assert "units, jobs and pods" in site.log.read_text()
    assert "SupplementaryGroups=" in site.log.read_text()


def test_daemon_without_a_driver_names_the_missing_library(site: Site) -> None:
    sentence = one_sentence(site.run(LD_LIBRARY_PATH=""), ExitCode.NO_DRIVER)
    assert sentence.startswith("libnvidia-ml.so.1 is not installed, so no GPU can be managed")


@pytest.mark.parametrize(("options", "code", "sentence"), [
    (["--capacity", "5GiB"], ExitCode.BAD_CONFIG, "a capacity of 5.0 GiB is more than GPU 0 "),
    (["--socket", "/" + "x" * 200], ExitCode.INVALID_ARGS, "the socket path /xxx"),
    (["--config", "/none.conf"], ExitCode.BAD_CONFIG, "/none.conf cannot be read: No such file"),
    (["--trace", "/none/trace"], ExitCode.FAILURE, "the trace /none/trace cannot be written: No"),
])
def test_wrong_daemon_options_are_refused_in_one_sentence(
    site: Site, options: list[str], code: ExitCode, sentence: str
) -> None:
    assert one_sentence(site.run(*options), code).startswith(sentence)
    assert not site.socket.exists()


def test_reload_of_a_file_with_a_wrong_line_logs_the_line_and_keeps_the_settings(
    site: Site
) -> None:
    file = site.folder / "nvshared.conf"
    good = file.read_text()
    file.write_text(good + "tq = never\n")
    wrong = (
        f"{file}:4: tq cannot be 'never'; "
        "give whole seconds, such as 30, or a time of at least 1ms, such as 500ms "
        "or 2min (units: us, ms, s, min, h, d), or auto"
    )
    assert one_sentence(site.run(), ExitCode.BAD_CONFIG) == wrong
    file.write_text(good)
    daemon = site.start()
    file.write_text(good + "tq = never\n")
    daemon.send_signal(signal.SIGHUP)
    wait_until(lambda: f"the settings stay as they are: {wrong}" in site.log.read_text())
    file.write_text(good + "tq = 7\n")
    daemon.send_signal(signal.SIGHUP)
    wait_until(lambda: "the settings were read again" in site.log.read_text())
    assert site.hook().hello() is not None


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")],
                         ids=["a pipe", "an endless device"])
def test_reload_of_a_drop_in_that_is_no_file_keeps_the_settings_and_delays_nobody(
    site: Site, make: Callable[[Path], object]
) -> None:
    daemon = site.start()
    folder = site.folder / "nvshared.conf.d"
    folder.mkdir()
    make(folder / "lab.conf")
    daemon.send_signal(signal.SIGHUP)
    wait_until(lambda: f"the settings stay as they are: {folder / 'lab.conf'} cannot be read: it is"
               " no file" in site.log.read_text())
    assert site.hook().hello() is not None
    (folder / "lab.conf").unlink()
    wait_until(lambda: "the settings were read again" in site.log.read_text())
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    make(folder / "lab.conf")
    assert "it is no file" in one_sentence(site.run(), ExitCode.BAD_CONFIG)


def test_sighup_during_the_start_does_not_end_the_daemon(site: Site) -> None:
    with private_bus() as bus, site.log.open("a") as log:
        bus.process.send_signal(signal.SIGSTOP)         # a stopped bus accepts no connection
        daemon = subprocess.Popen(
            site.command("--bus", bus.address), env=site.environment, cwd=ROOT, stderr=log)
        try:
            wait_until(site.socket.exists)
            daemon.send_signal(signal.SIGHUP)
            bus.process.send_signal(signal.SIGCONT)
            wait_until(lambda: "the settings were read again" in site.log.read_text())
            assert site.hook().hello() is not None
        finally:
            bus.process.send_signal(signal.SIGCONT)
            daemon.terminate()
        assert daemon.wait(PATIENCE) == 0


def test_daemon_answers_clients_while_writing_the_trace_blocks(site: Site) -> None:
    trace = site.folder / "trace"
    os.mkfifo(trace)
    reader = os.open(trace, os.O_RDWR | os.O_NONBLOCK)
    size = fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    site.start("--trace", str(trace))
    hook = site.hook()
    hook.hello()
    unread = bytearray(4)
    while int.from_bytes(unread, sys.byteorder) < size - 512:
        fcntl.ioctl(reader, termios.FIONREAD, unread)
        hook.say(Type.MEMORY)
    assert hook.allocate(MIB)
    hook.want()
    hook.obey_until(Type.RUN)
    assert site.hook().hello() is not None
    os.set_blocking(reader, True)       # lines written meanwhile are not lost
    text = b""
    while b'"run"' not in text:
        text += os.read(reader, 4096)
    os.close(reader)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_metrics_with_an_address_are_served_on_that_address_only(site: Site) -> None:
    port = free_port()
    site.start("--metrics", f"127.0.0.2:{port}")
    with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics", timeout=PATIENCE) as answer:
        assert b"nvshare_gpu_capacity_bytes" in answer.read()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE)


def test_daemon_whose_metrics_port_is_taken_serves_programs_and_later_the_metrics(
        site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        site.start("--metrics", f"127.0.0.1:{port}",
                   NVSHARE_TEST_CONSTANTS="nvshared.report.metrics:RETRY=1")
        site.holding()
        assert f"not served, so no alert can fire: 127.0.0.1:{port}: Add" in site.log.read_text()
    wait_until(lambda: "fault metrics-unserved is over" in site.log.read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        assert b"nvshare_gpu_capacity_bytes" in answer.read()


def test_reload_logs_changed_settings_that_need_a_daemon_restart(site: Site) -> None:
    site.start()
    (site.folder / "nvshared.conf").write_text(
        "[nvshared]\nmax-clients = 7\ntrace = /tmp/trace\n[gpu]\ntq = 3\n")
    wait_until(lambda: "max-clients, trace: changed, but from the next start on" in (
        site.log.read_text()))


def test_max_clients_beyond_the_limit_of_open_files_is_logged_with_advice(site: Site) -> None:
    site.before = ["prlimit", "--nofile=1000:1000"]
    most = most_clients(1000)
    site.start("--max-clients", str(most + 1))
    assert (
        f"max-clients is {most + 1}, but 1000 open files are enough for {most} clients; "
        "raise LimitNOFILE=" in site.log.read_text())
    site.started[-1].terminate()
    site.started[-1].wait()
    site.log.write_text("")
    site.start("--max-clients", str(most))
    assert "max-clients" not in site.log.read_text()


def test_man_page_of_nvshared_conf_states_the_descriptor_limits_of_the_systemd_unit() -> None:
    unit = (ROOT / "systemd" / "nvshared.service").read_text()
    page = (ROOT / "packaging" / "man" / "nvshared.conf.5.in").read_text()
    files = re.findall(r"LimitNOFILE=(\d+)", unit + page)
    kept = re.findall(r"FileDescriptorStoreMax=(\d+)", unit + page)
    assert (files, kept) == ([files[0]] * 2, [kept[0]] * 2)
    assert f"enough for {most_clients(int(files[0]))} clients" in page
