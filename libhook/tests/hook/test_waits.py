# SPDX-License-Identifier: Apache-2.0
"""The list of every place where a thread can block inside the library: driver/waits.def."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "libhook" / "src"
LIST = (SOURCE / "driver" / "waits.def").read_text()
LEAVING = (ROOT / "tests" / "integration" / "leaving.c").read_text()
# Functions that may block. Transfers on sockets do not wait: all but one pass MSG_DONTWAIT, as the
# test of transfers verifies.
BLOCKING = re.compile(
    r"\b(pthread_cond_(?:timed)?wait|pthread_join|pthread_rwlock_\w+|pthread_barrier_wait"
    r"|bell_sleep|bell_wait|bell_nap|memory_wait|mutex_lock_patiently|p?poll|select|epoll_wait|sem_wait|flock|waitpid|connect|nanosleep|usleep|sleep"
    r"|sched_yield|drain_all|drain_context|drain_ending)\s*\("
    r"|REAL\((cu(?:Event|Stream|Ctx)Synchronize)\)")
TRANSFER = re.compile(r"\b(sendmsg|send|recvmsg|recv)\(([^;]*);", re.DOTALL)
HEAD = re.compile(r"^(?!#|typedef|struct \w+ \{)[A-Za-z_][^;=]*?\b(\w+)\([^;]*$")
ENTRY = re.compile(
    r'WAIT\("([^"]+)", "([^"]+)", "([^"]+)",\s*((?:"[^"]*"\s*)+),\s*(\w+)'
    r'(?:,\s*(CANCELLED|LATER|DEFERRED),\s*((?:"[^"]*"\s*)+),\s*(\w+))?\)')


def code(path: Path) -> str:
    """The file's text without comments, with the same line numbers."""
    return re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), path.read_text(),
                  flags=re.DOTALL)


def waits() -> set[tuple[str, str, str]]:
    """(file, function, called function) of each place where a thread can block."""
    found = set()
    for path in sorted(SOURCE.rglob("*.c")):
        function = ""
        for line in code(path).splitlines():
            if not line.startswith((" ", "\t")) and (head := HEAD.match(line)):
                function = head[1]
                continue
            for call in BLOCKING.finditer(line):
                found.add((path.relative_to(SOURCE).as_posix(), function, call[1] or call[2]))
    return found


def test_waits_def_lists_every_wait_with_a_bound() -> None:
    listed = {entry[:3] for entry in ENTRY.findall(LIST)} - {
        ("gate/client.c", "connection_send", "send")}
    assert len(listed) + 1 == LIST.count("\nWAIT(")
    assert sorted(waits() - listed) == []
    assert sorted(listed - waits()) == []


def test_socket_calls_pass_msg_dontwait_or_are_listed() -> None:
    waiting = {
        f"{path.relative_to(SOURCE).as_posix()}: {call[1]}"
        for path in SOURCE.rglob("*.c") for call in TRANSFER.finditer(code(path))
        if "MSG_DONTWAIT" not in call[2]
    }
    assert waiting == {"gate/client.c: send"}


def test_waits_def_names_an_existing_test_for_each_wait() -> None:
    aliases = dict(re.findall(r"#define (\w+) (test_\w+)", LIST))
    tests = "".join(path.read_text() for folder in ("tests", "libhook/tests")
                    for path in (ROOT / folder).rglob("test_*.py"))
    for _, function, _, _, test, *_ in ENTRY.findall(LIST):
        assert test == "OWN" or f"def {aliases.get(test, test)}(" in tests, function


def test_waits_def_with_a_wait_of_a_programs_thread_names_the_state_that_stays() -> None:
    for file, function, _, _, test, cancelled, left, case in ENTRY.findall(LIST):
        assert (test == "OWN") == (cancelled == ""), function
        assert (case == "NONE") == (cancelled == "DEFERRED" or "the process ends" in left), function
        assert test == "OWN" or case == "NONE" or f'WHEN("{case}",' in LEAVING, (file, function)


# Files in which only threads of the library lock so, which receive no signals.
OWN_THREADS = {
    "block/swap.c", "service/park.c", "service/service.c", "service/waiting.c", "tier/disk.c",
    "tier/host.c", "tier/managed.c",
}


def test_threads_of_the_program_hold_mutexes_only_where_signals_and_cancellation_wait() -> None:
    locking = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.[ch]")
        if "pthread_mutex_lock(" in code(path)}
    assert locking - OWN_THREADS - {"driver/locks.c", "driver/locks.h"} == {"driver/leave.c"}
