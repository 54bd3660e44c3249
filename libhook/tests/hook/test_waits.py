# SPDX-License-Identifier: Apache-2.0
"""The list of every place where a thread can block inside the library: driver/waits.def."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "libhook" / "src"
LIST = (SOURCE / "driver" / "waits.def").read_text()
# Functions that may block. Transfers on sockets do not wait: all but one pass MSG_DONTWAIT, as the
# test of transfers verifies.
BLOCKING = re.compile(
    r"\b(pthread_cond_(?:timed)?wait|pthread_join|pthread_rwlock_\w+|pthread_barrier_wait"
    r"|bell_sleep|p?poll|select|epoll_wait|sem_wait|flock|waitpid|connect|nanosleep|usleep|sleep"
    r"|sched_yield|drain_all|drain_context|drain_ending)\s*\("
    r"|REAL\((cu(?:Event|Stream|Ctx)Synchronize)\)")
TRANSFER = re.compile(r"\b(sendmsg|send|recvmsg|recv)\(([^;]*);", re.DOTALL)
HEAD = re.compile(r"^(?!#|typedef|struct \w+ \{)[A-Za-z_][^;=]*?\b(\w+)\([^;]*$")
ENTRY = re.compile(r'WAIT\("([^"]+)", "([^"]+)", "([^"]+)",\s*((?:"[^"]*"\s*)+),\s*(\w+)\)')
LOCK = re.compile(r'LOCK\((\w+),\s*((?:"[^"]*"\s*)+)\)')
LOCKING = re.compile(r"(?:LOCKED|pthread_mutex_(?:try)?lock)\(&?(\w+)\)")
PARAMETERS = {"mutex"}                  # parameter of locked_begin()


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


def test_waits_def_lists_every_lock_with_a_bound() -> None:
    locked = {name for path in SOURCE.rglob("*.[ch]") for name in LOCKING.findall(code(path))}
    assert locked - PARAMETERS == {name for name, _ in LOCK.findall(LIST)}


def test_waits_def_names_an_existing_test_for_each_wait() -> None:
    aliases = dict(re.findall(r"#define (\w+) (test_\w+)", LIST))
    tests = "".join(path.read_text() for folder in ("tests", "libhook/tests")
                    for path in (ROOT / folder).rglob("test_*.py"))
    for _, function, _, _, test in ENTRY.findall(LIST):
        assert test == "OWN" or f"def {aliases.get(test, test)}(" in tests, function
