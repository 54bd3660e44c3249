# SPDX-License-Identifier: Apache-2.0
"""The table of the library's locks, driver/locks.def, the checks of its rows at run time, and the
variables that a forked child keeps."""

import re
import subprocess
from pathlib import Path

import pytest

from libhook.tests.hook.test_waits import SOURCE, code

ROW = re.compile(r"^LOCK\((\w+), (\d+), ", re.MULTILINE)
ROWS = ROW.findall((SOURCE / "driver" / "locks.def").read_text())
OBJECTS = SOURCE.parent / "build" / "src"
COMPILE = ["gcc", "-std=gnu11", "-Wall", "-Werror", "-pthread", f"-I{SOURCE}"]


def test_locks_def_has_a_row_for_each_mutex_and_the_order_of_ranks() -> None:
    texts = {str(path.relative_to(SOURCE)): code(path) for path in SOURCE.rglob("*.[ch]")}
    defined = [name for file, text in texts.items() if file != "driver/locks.h"
               for name in re.findall(r"\bMUTEX\((\w+)\)", text)]
    assert sorted(defined) == sorted(name for name, _ in ROWS)
    ranks = [int(rank) for _, rank in ROWS]
    assert ranks == sorted(set(ranks))
    assert [file for file, text in texts.items() if "PTHREAD_MUTEX_INITIALIZER" in text
            or "pthread_mutex_init" in text] == ["driver/locks.h"]


@pytest.mark.parametrize("flags", [[], ["-DNVSHARE_CHECK_LOCKS"]])
def test_mutex_without_a_row_does_not_compile(flags: list[str]) -> None:
    for name, compiles in (("memory_lock", True), ("other_lock", False)):
        source = f'#include "driver/locks.h"\nMUTEX({name});\n'
        done = subprocess.run([*COMPILE, *flags, "-fsyntax-only", "-xc", "-"], input=source,
                              capture_output=True, text=True)
        assert (done.returncode == 0) == compiles, done.stderr
        assert compiles or "LOCK_ROW_other_lock" in done.stderr


CHECKED = """
#include <stdlib.h>
#include <time.h>
#include "driver/locks.h"
MUTEX(service_lock);
static MUTEX(attach_lock);
MUTEX(memory_lock);
static MUTEX(sharing_lock);
static pthread_mutex_t unlisted = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static void must(int right)
{
    if (!right)
        exit(1);
}
#define LOCK(name) pthread_mutex_lock(&name)
#define UNLOCK(name) pthread_mutex_unlock(&name)
static void *run(void *number)
{
    const struct timespec soon = { 0, 1 };
    switch (atoi(number)) {
    case 0:
        LOCK(service_lock), LOCK(memory_lock), LOCK(sharing_lock);
        UNLOCK(memory_lock), UNLOCK(sharing_lock);
        nanosleep(&soon, NULL);
        LOCK(memory_lock);
        LOCK_CHECK_CALL(cuAnySynchronize);
        UNLOCK(service_lock), UNLOCK(memory_lock);
        LOCK(sharing_lock);
        must(pthread_mutex_trylock(&service_lock) == 0);    /* waits for nobody */
        break;
    case 1: LOCK(sharing_lock), LOCK(memory_lock); break;
    case 2: LOCK(memory_lock), LOCK(memory_lock); break;
    case 3: LOCK(memory_lock), nanosleep(&soon, NULL); break;
    case 4: LOCK(sharing_lock), LOCK_CHECK_CALL(cuAny); break;
    case 5:
        LOCK(attach_lock), LOCK(memory_lock);
        pthread_cond_wait(&condition, &memory_lock);
        break;
    case 6: LOCK_CHECK_READ(&service_lock); break;
    case 7: UNLOCK(memory_lock); break;
    case 8: LOCK(unlisted); break;
    }
    return NULL;
}
/* A thread, whose stack does not begin in this program, as none of the library's does. */
int main(int count, char **arguments)
{
    pthread_t thread;
    must(pthread_create(&thread, NULL, run, arguments[count - 1]) == 0);
    must(pthread_join(thread, NULL) == 0);
    return 0;
}
"""
FORBIDDEN = [
    "locks.def forbids to lock memory_lock while sharing_lock is held",
    "locks.def forbids to lock memory_lock while memory_lock is held",
    "locks.def forbids to wait in nanosleep while memory_lock is held",
    "locks.def forbids to call cuAny while sharing_lock is held",
    "locks.def forbids to wait in pthread_cond_wait while attach_lock is held",
    "locks.def forbids a jump while service_lock is held, but it is locked to read",
    "memory_lock is unlocked by a thread that does not hold it",
    "a lock that MUTEX() does not define is used",
]


def test_lock_check_ends_a_program_that_breaks_a_rule_of_locks_def(tmp_path: Path) -> None:
    program = tmp_path / "program"
    (tmp_path / "program.c").write_text(CHECKED)
    subprocess.run([*COMPILE, "-D_GNU_SOURCE", "-DNVSHARE_CHECK_LOCKS", tmp_path / "program.c",
                    SOURCE / "driver" / "locks.c", "-o", program], check=True)
    assert subprocess.run([program, "0"]).returncode == 0
    for number, sentence in enumerate(FORBIDDEN, 1):
        done = subprocess.run([program, str(number)], capture_output=True, text=True)
        assert done.stderr.splitlines()[0] == f"nvshare: {sentence}", number
        assert done.returncode < 0


def test_each_variable_with_an_initial_value_is_marked_as_kept_in_a_forked_child() -> None:
    """A child resets .bss, so an initial value must not decide whether it keeps a variable."""
    objects = sorted(OBJECTS.rglob("*.o"))
    listed = subprocess.run(["objdump", "-t", *objects], check=True, capture_output=True, text=True)
    unmarked = re.findall(
        r"^\w+ .{7} \.data(?:\.rel|\.rel\.local)?\t\w+ (?:\.hidden )?([^.\s]\S*)$", listed.stdout,
        re.MULTILINE)
    assert ".data.kept_in_child" in listed.stdout
    assert unmarked == []
