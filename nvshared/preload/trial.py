# SPDX-License-Identifier: Apache-2.0
"""Runs programs with the library preloaded, before the list makes all programs load it.

A program passes if it exits with 0, prints nothing new on stderr, where the loader warns of a
library that it cannot load, and has the library mapped. The loader ignores LD_PRELOAD in the setuid
program, so that one runs in a mount namespace with a private /etc, which needs root."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nvshared.errors import NvshareError
from nvshared.preload.tree import Tree

PATIENCE = 30.0                         # seconds that one program may run
NOBODY = 65534
READY = "ready"
UNCHANGED = "the list is as it was"
SIMPLE = "a simple program"
TRUE = Path("/bin/true")

PYTHON = """\
import subprocess, threading
threads = [threading.Thread(target=sum, args=([1],)) for _ in range(4)]
[one.start() for one in threads]
[one.join() for one in threads]
subprocess.run(["/bin/true"], check=True)
try:
    print(open("/proc/self/maps").read())
except FileNotFoundError:
    pass
"""

# $1: the top of the system, $2: a temporary folder as this process sees it, $3: the same folder as
# the system's programs see it, $4: the library.
SETUID = f"""\
set -eu
mount -t tmpfs -o mode=755 nvshare "$2"
if [ -e "$1/etc/ld.so.cache" ]; then cp "$1/etc/ld.so.cache" "$2/"; fi
cat_=$(PATH=/usr/bin:/bin command -v cat)
cp "$1$cat_" "$2/setuid"
chmod 4755 "$2/setuid"
printf '%s\\n' "$4" >"$2/ld.so.preload"
mount --bind "$2" "$1/etc"
[ -e "$1/proc/self" ] || mount -t proc nvshare "$1/proc"
echo {READY}
exec chroot --userspec={NOBODY}:{NOBODY} --groups= "${{1:-/}}" "$3/setuid" /proc/self/maps
"""


class Unloadable(NvshareError):
    """A program failed with the library preloaded."""


class TrialResult(NamedTuple):
    program: str                        # description of the program
    obstacle: str                       # why the program could not be tried; "": it was tried


Ended = subprocess.CompletedProcess[str]


def check(tree: Tree, library: Path | None, baseline: frozenset[str] | None = None) -> None:
    """Runs /bin/true with `library`, or, if None, the list in force; in a chroot only as root.

    `baseline`: an earlier result of baseline_stderr(). Raises Unloadable if the program fails."""
    if _can_run(tree):
        baseline = baseline_stderr(tree) if baseline is None else baseline
        ended = _run(_preloaded(tree, library, [str(TRUE)]))
        _check_result(SIMPLE, ended, baseline, library or "the library")


def baseline_stderr(tree: Tree) -> frozenset[str]:
    """Lines that /bin/true prints on stderr before the change. Raises Unloadable if it fails."""
    if not tree.has(TRUE):
        raise Unloadable(
            f"there is no program {tree.outside(TRUE)}", "is --root the top folder of a system?")
    if not _can_run(tree):
        return frozenset()
    ended = _run(_preloaded(tree, None, [str(TRUE)]))
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines()
        raise Unloadable("programs of this system do not run: "
                         f"{said[-1] if said else ended.returncode}", UNCHANGED)
    return frozenset(ended.stderr.splitlines())


def _can_run(tree: Tree) -> bool:
    return tree.running or os.geteuid() == 0


def run(tree: Tree, library: Path, baseline: frozenset[str]) -> Iterator[TrialResult]:
    """Tries all test programs. `baseline`: of baseline_stderr(). Raises Unloadable if one fails."""
    if not _can_run(tree):
        yield TrialResult("every program", "only root can run programs of another system")
        return
    check(tree, library, baseline)
    yield TrialResult(SIMPLE, "")
    python = Path(sys.executable if tree.running else "/usr/bin/python3")
    if tree.has(python):
        done = _run(_preloaded(tree, library, [str(python), "-I", "-c", PYTHON]))
        _check_result("Python", done, baseline, library, tree.resolve(library))
        yield TrialResult("Python with threads and children", "")
    else:
        yield TrialResult("Python with threads and children", f"there is no {python}")
    yield _setuid(tree, library, baseline)


def _preloaded(tree: Tree, library: Path | None, command: Sequence[str]) -> list[str]:
    # env, run after chroot, sets LD_PRELOAD, because chroot itself must not load the library.
    variables = [] if library is None else [f"LD_PRELOAD={library}"]
    into = [] if tree.running else ["chroot", str(tree.top)]
    return [*into, "/usr/bin/env", "-i", *variables, *command]


def _setuid(tree: Tree, library: Path, baseline: frozenset[str]) -> TrialResult:
    name = "a setuid program"
    if os.geteuid() != 0:
        return TrialResult(name, "that takes root")
    if missing := [tool for tool in ("unshare", "mount", "chroot") if not shutil.which(tool)]:
        return TrialResult(name, f"there is no {missing[0]} on this machine")
    if not (temporary := tree.outside(tree.resolve(Path("/tmp")))).is_dir():
        return TrialResult(name, f"there is no {temporary}")
    try:
        with tempfile.TemporaryDirectory(prefix=".nvshare-", dir=temporary) as own:
            inside = Path("/", Path(own).relative_to(tree.top))
            done = _run([
                "unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", SETUID,
                "sh", str(tree.top).rstrip("/"), own, str(inside), str(library)])
    except OSError as error:
        return TrialResult(name, f"{temporary} cannot be used: {error.strerror}")
    if not done.stdout.startswith(READY + "\n"):
        reason = done.stderr.strip().splitlines() or [
            f"its surroundings failed with {done.returncode}"]
        return TrialResult(name, reason[-1])
    _check_result(name, done, baseline, library, tree.resolve(library))
    return TrialResult(name, "")


def _run(command: Sequence[str]) -> Ended:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace",
                              timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL, cwd="/",
                              env={"PATH": os.environ.get("PATH", os.defpath)})
    except subprocess.TimeoutExpired:
        return Ended(command, -1, "", f"it did not end within {PATIENCE:.0f} seconds")
    except OSError as error:
        return Ended(command, -1, "", f"{command[0]} cannot be run: {error.strerror}")


def _check_result(name: str, ended: Ended, baseline: frozenset[str],
                  library: Path | str, mapped: Path | None = None) -> None:
    complaints = [
        line for line in ended.stderr.splitlines() if line.strip() and line not in baseline]
    status = ended.returncode
    if status != 0 or complaints:
        how = (f"ended with {status}" if status > 0 else
               f"died of signal {-status}" if status else "complains")
        said = f": {complaints[-1]}" if complaints else ""
        raise Unloadable(f"with {library} preloaded, {name} {how}{said}",
                         f"{UNCHANGED}; install the library that was built for this system")
    if mapped is not None and ended.stdout and f" {mapped}\n" not in ended.stdout:
        raise Unloadable(f"{name} ran without {library} although it was preloaded", UNCHANGED)
