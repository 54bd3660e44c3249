# SPDX-License-Identifier: Apache-2.0
"""Signals with a handler, as of a sampling profiler, end system calls while a program attaches
to the daemon or waits for the memory of its context. Neither is given up for that."""

import platform
import select
import signal
import socket
from pathlib import Path

from nvshared.units import MIB
from tests.integration.conftest import CARD, Site
from tests.integration.fakehook import PATIENCE
from tests.integration.programs import Program

CONNECT = {"x86_64": 42, "aarch64": 203}[platform.machine()]   # the number of the system call
HANDLED = "import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)\n"
OFTEN = HANDLED + "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
WAKINGS = 1500                          # a minute has as many pauses of 40 ms


def test_signal_while_the_daemons_queue_is_full_does_not_leave_a_program_unshared(
    site: Site
) -> None:
    site.socket.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, \
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
        listener.bind(str(site.socket))
        listener.listen(0)
        listener.settimeout(PATIENCE)
        waiting.connect(str(site.socket))
        program = Program(site, "say('over')", before=HANDLED)
        call = Path(f"/proc/{program.popen.pid}/syscall")
        while not call.read_text().startswith(f"{CONNECT} "):
            assert program.popen.poll() is None
        program.popen.send_signal(signal.SIGALRM)
        while call.read_text().startswith(f"{CONNECT} "):
            continue
        assert program.popen.stdout is not None
        listener.accept()[0].close()
        files = [listener.fileno(), program.popen.stdout.fileno()]
        ready, _, _ = select.select(files, [], [], PATIENCE)
        assert ready == files[:1], "it goes on without a daemon"
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE)
        assert connection.recv(4096)            # the program introduces itself
        connection.close()
    program.kill()


def test_signals_do_not_shorten_the_wait_for_the_memory_of_a_context(site: Site) -> None:
    site.start()
    hog = site.workload("--memory", f"{CARD // MIB // 2}MiB", "--hold", "--used", "1%",
                        LD_PRELOAD="")
    assert hog.stdout is not None
    hog.stdout.readline()
    site.environment["NVSHARE_SIM_FAIL"] = \
        f"cuDevicePrimaryCtxRetain:<{CARD // MIB // 2 + 100}M"
    program = Program(site, "signal.setitimer(signal.ITIMER_REAL, 0)\nsay('over')", before=OFTEN)
    first = 0
    while (now := wakings(program)) < first + WAKINGS:
        first = first or now
    hog.kill()
    assert program.hears() == "over"
    program.end()


def wakings(program: Program) -> int:
    """How often the program's first thread has slept so far."""
    assert program.popen.poll() is None, "the program has ended"
    for line in Path(f"/proc/{program.popen.pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not count")


def test_signal_before_the_daemons_answer_is_not_taken_for_its_silence(site: Site) -> None:
    site.start()
    program = Program(site, "say('over')", before=OFTEN)
    assert program.hears() == "over"
    assert "does not answer" not in program.popen.communicate(timeout=PATIENCE)[1]
