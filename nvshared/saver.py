#!/usr/bin/env -S python3 -IB
# SPDX-License-Identifier: Apache-2.0
"""nvshare-save: has CRIU save parked programs in folders, and restore them from there, as root.

systemd starts one for each order of the daemon, which sends one line of JSON and gets lines of
JSON. Of nvshared it imports caller.py and saved.py alone: root runs it, with python3 -I.

A user who could change an image would become, at its restore, the user in it. So a program is saved
into a folder that root alone can write, with a digest of each file, and a MAC over all of these by
a key of root's. Then the folder, not its files, becomes the program's user's, who may delete it.
Before a restore root takes the folder back; from then on no user can replace a file in it; and only
then owners, names, MAC and digests are checked.

CRIU opens the files of a program by their paths, as root. A user could put a link to a file of
root's at such a path, and would have it open. So CRIU runs this program, by --action-script, when a
dump is complete and the processes are frozen: it lists their files. In a restore, while the
processes are root's still, it compares: each file is one of that list or the user's own.

Each step can be repeated: this program, CRIU and the daemon may be killed at any moment. settle()
brings a folder that was left half done to one of its states: the process runs, or it is saved."""

import ctypes
import fcntl
import hashlib
import hmac
import json
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Any

if not __package__:                     # root runs this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvshared import caller
from nvshared.caller import is_same, started
from nvshared.saved import BASE, MADE

OLDEST = (4, 0)                         # of CRIU: older ones cannot dump CUDA's threads reliably
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSTALL = "install criu 4.0 or later, see docs/saving.md"
CHUNK = 64 << 20                        # bytes of a file under one digest
PIECE = 1 << 20                         # bytes read at a time
RESERVE = 1 << 30                       # most bytes of the disk that a save leaves free
LONGEST = 1 << 16                       # most bytes of an order
PATIENCE = 900.0                        # seconds that settle() waits for another order's CRIU
STALE_AFTER = 60.0                      # seconds until an unlocked folder NEW... is stale
LISTED_WITHIN = 10.0                    # seconds for which a list, of any user, may lock a folder
REAPED_WITHIN = 10.0                    # seconds for the parent of a process that has ended
NAMESPACES = ("pid", "user", "mnt", "net", "ipc")
PARTIAL = ".partial"                    # suffix of a folder that is being written
NEW = "new-"                            # prefix of a folder that is not locked yet, or is removed
MANIFEST, EXPECTED = "manifest.json", "expected.json"
RESTORING, RESTORED, FAILED = "restoring.json", "restored.json", "failed.json"
OPENED = "opened.json"                  # by CRIU's action: files that the processes have
STRANGE = "strange.json"                # by CRIU's action: why a restore must not go on
ACTION, ACTION_PID = "CRTOOLS_SCRIPT_ACTION", "CRTOOLS_INIT_PID"    # variables that CRIU sets
# sock_diag(7): its messages, and what they have to contain of each socket: name, peer, owner.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, DIAG_DONE = 4, 20, 0x301, 3
ALL_STATES, SHOWN = 0xffffffff, 0x45
DIAG_NAME, DIAG_PEER, DIAG_UID = 0, 2, 7
DIAG_HEADER, DIAG_REQUEST = Struct("IHHII"), Struct("BBHIIIII")
DIAG_MESSAGE, DIAG_INODE, DIAG_ATTRIBUTE = 16, Struct("4xI"), Struct("HH")
DELETED = " (deleted)"                  # the kernel's suffix of a path that is gone
DUMP_LOG, RESTORE_LOG = "dump.log", "restore.log"
FRESH = ".new"                          # suffix of a file of write() that is not complete
# Files without a digest; CRIU reads none of them.
OURS = frozenset({RESTORE_LOG, "stats-restore"}).union(*(
    {name, name + FRESH} for name in (MANIFEST, EXPECTED, RESTORING, RESTORED, FAILED, STRANGE)))
# Lines of CRIU's logs: all images are written, and it ends the processes; it has let them go on.
DUMPED, RESUMED = "Unfreezing tasks into 2", "Restore finished successfully"
LOOKS, LOOK_EVERY = 20, 0.05            # at threads that may be in CRIU's code; seconds
FOLDER = "NVSHARE_SAVING_IN"            # variable of CRIU's environment: work_mark() of its folder
COMMON = ("--shell-job", "--file-locks", "--ext-unix-sk", "--tcp-close", "--manage-cgroups=ignore")
PROCESSES = Path("/proc")
BOOT = Path("/proc/sys/kernel/random/boot_id")
WRITTEN = re.compile(r"^\(\d+\.\d+\)\s+(?:\d+:\s+)?Error \([^)]*\):\s*", re.MULTILINE)
# Everything that an order or a folder with arbitrary content may raise.
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class Refused(Exception):
    """An order that is not carried out, with the reason in a sentence without its full stop."""


def say(**words: Any) -> None:
    """Answers the daemon. If the daemon has ended, the order is carried out nevertheless."""
    with suppress(OSError):
        os.write(1, json.dumps(words).encode() + b"\n")


# --- processes ----------------------------------------------------------------------------------

def parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def threads(pid: int) -> Iterator[Path]:
    with suppress(OSError):
        yield from Path(f"/proc/{pid}/task").iterdir()


def descendants(pid: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            children.setdefault(parent(int(path.name)), []).append(int(path.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def lines(path: Path | str) -> list[str]:
    """The lines of a file of the kernel that contains names chosen by users: of these, a carriage
    return ends none, and bytes that are no text spoil none. Raises OSError."""
    return os.fsdecode(Path(path).read_bytes()).split("\n")


def workers(folder: Path) -> list[int]:
    """The processes of CRIU that work in a folder, and those that it has begun to restore and that
    have its memory still."""
    mark, found = f"{FOLDER}={work_mark(folder)}".encode(), []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
    return found


def is_in_use(folder: Path, pid: int) -> bool:
    """Whether CRIU works in a locked folder on process `pid`. Ends processes that a killed CRIU has
    left there: they would wait for ever. CRIU itself leads a session (run)."""
    working, program = workers(folder), descendants(pid)
    if any(session(one) == one for one in working if one not in program):
        return True
    for one in working:
        end(one)
    return False


def session(pid: int) -> int:
    with suppress(OSError):
        return os.getsid(pid)
    return 0


def kilobytes(path: str, *names: str) -> int:
    """The sum of these fields of a file such as /proc/PID/status, in bytes."""
    with suppress(OSError):
        return sum(int(line.split()[1]) << 10 for line in lines(path)
                   if line.partition(":")[0] in names)
    return 0


def boot() -> str:
    return BOOT.read_text().strip()


def ticks() -> int:
    """The time since boot, as started() tells it."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def user(uid: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


# --- CRIU ---------------------------------------------------------------------------------------

def criu(*, checks: bool = True) -> str:
    """The path of CRIU. Raises Refused if it is missing, too old, or the kernel lacks something."""
    path = os.environ.get("NVSHARE_CRIU") or shutil.which("criu", path=PATHS)
    if not path:
        raise Refused(f"CRIU is not installed; {INSTALL}")
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Refused(f"{path} cannot be run: {error.strerror}; {INSTALL}") from None
    version = re.search(r"(\d+)\.(\d+)", said.stdout)
    if version is None or tuple(map(int, version.groups())) < OLDEST:
        found = version[0] if version else "unknown"
        raise Refused(f"CRIU is too old: its version is {found}; {INSTALL}")
    if checks:
        done = subprocess.run([path, "check"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(f"CRIU cannot work with this kernel: {last(done.stderr)}")
    return path


def last(log: str) -> str:
    """The last errors of a log of CRIU, in its words."""
    lines = [WRITTEN.sub("", line) for line in log.splitlines() if WRITTEN.match(line)]
    lines = lines or [line.strip() for line in log.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines[-3:])) or "no reason is given"


def spare() -> None:
    """Asks the kernel to end another process when memory runs out. CRIU alone has the program's
    registers, so that the end of CRIU may lose the program."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-1000")


def run(folder: Path, *words: str, before: Callable[[], None] | None = None) -> str:
    """Runs CRIU in a folder. Returns "", or why it failed. It goes on if this program is killed."""
    log = DUMP_LOG if "dump" in words else RESTORE_LOG
    before = spare if "dump" in words else before
    done = subprocess.run(
        [*words, "-D", ".", "-o", log, "-v3", *COMMON, "--action-script", __file__], cwd=folder,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        check=False, start_new_session=True, preexec_fn=before,
        env={**os.environ, FOLDER: work_mark(folder)})
    if done.returncode == 0:
        return ""
    with suppress(OSError):
        if done.returncode > 0:
            return "CRIU says: " + last((folder / log).read_text(errors="replace"))
    return f"CRIU ended with status {done.returncode}"


# --- files of processes -------------------------------------------------------------------------

File = tuple[str, bool, int]            # its path, whether it can be written, its owner


def opened(pid: int) -> set[File]:
    """The files that a process and all below it have: open, mapped, as folder, root or program; and
    the UNIX sockets of others to which theirs are connected."""
    found: set[File] = set()
    own: set[str] = set()               # their sockets

    def add(link: Path, *, writable: bool = False) -> None:
        with suppress(FileNotFoundError):       # it was closed, or is that of this iteration
            path = str(link.readlink())
            if path.endswith(DELETED):          # at the root: no file, as /memfd:NAME
                path = DELETED if path.rfind("/") and path != "/dev/zero" + DELETED else ""
            if path.startswith("/") or path == DELETED:
                found.add((path, writable, owner_of_file(link)))
            elif path.startswith("socket:"):
                own.add(path)

    for one in descendants(pid):
        process = Path(f"/proc/{one}")
        for name in ("cwd", "root", "exe"):
            add(process / name)
        for link in children(process / "fd"):
            flags = [line for line in lines(process / "fdinfo" / link.name) if "flags:" in line]
            add(link, writable=int(flags[0].split()[1], 8) & os.O_ACCMODE != os.O_RDONLY)
        shared = writable_mappings(process)
        for link in children(process / "map_files"):
            add(link, writable=link.name in shared)
    found.update((name, True, owner) for one, (other, name, owner) in peers_of_sockets().items()
                 if one in own and other not in own)
    return found


def peers_of_sockets() -> dict[str, tuple[str, str, int]]:
    """By the link of a UNIX socket in /proc/PID/fd: the link, the name and the owner of the socket
    to which it is connected, if that has a name. See sock_diag(7)."""
    names: dict[int, tuple[str, int]] = {}
    others: dict[int, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as asked:
        asked.send(DIAG_HEADER.pack(DIAG_HEADER.size + DIAG_REQUEST.size, SOCK_DIAG_BY_FAMILY,
                                    REQUEST_DUMP, 1, 0)
                   + DIAG_REQUEST.pack(socket.AF_UNIX, 0, 0, ALL_STATES, 0, SHOWN, 0, 0))
        kind = SOCK_DIAG_BY_FAMILY
        while kind == SOCK_DIAG_BY_FAMILY:
            data = memoryview(asked.recv(1 << 16))
            while data and kind == SOCK_DIAG_BY_FAMILY:
                length, kind, *_ = DIAG_HEADER.unpack_from(data)
                if kind == SOCK_DIAG_BY_FAMILY:
                    inode, about = DIAG_INODE.unpack_from(data, DIAG_HEADER.size)[0], dict(
                        attributes(data[DIAG_HEADER.size + DIAG_MESSAGE:length]))
                    owner = int.from_bytes(about.get(DIAG_UID, b"\xff" * 4), sys.byteorder)
                    name = os.fsdecode(about.get(DIAG_NAME, b"").rstrip(b"\0")).replace("\0", "@")
                    names[inode] = f"the socket {name}" if name else "", owner
                    if peer := about.get(DIAG_PEER):
                        others[inode] = int.from_bytes(peer, sys.byteorder)
                data = data[-(-length // 4) * 4:]
    if kind != DIAG_DONE:
        raise OSError("the kernel does not list UNIX sockets")
    return {f"socket:[{inode}]": (f"socket:[{other}]", *names[other])
            for inode, other in others.items() if names.get(other, ("", 0))[0]}


def attributes(data: memoryview) -> Iterator[tuple[int, bytes]]:
    """The attributes of a message of netlink."""
    while len(data) >= DIAG_ATTRIBUTE.size:
        length, kind = DIAG_ATTRIBUTE.unpack_from(data)
        yield kind, bytes(data[DIAG_ATTRIBUTE.size:length])
        data = data[-(-max(length, DIAG_ATTRIBUTE.size) // 4) * 4:]


def children(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # a zombie has none
        return [*folder.iterdir()]
    return []


def owner_of_file(path: Path) -> int:
    """The owner of a file; -1: root may not ask, as for another user's mount."""
    try:
        return path.stat().st_uid
    except OSError:
        return -1


def writable_mappings(process: Path) -> set[str]:
    """The names in map_files of shared mappings that can be written, or made so by mprotect()."""
    found, name = set[str](), ""
    if not any(line.split()[1:2] and line.split()[1].endswith("s")
               for line in lines(process / "maps")):
        return found
    for line in lines(process / "smaps"):
        words = line.split()
        if len(words) >= 5 and "-" in words[0] and ":" not in words[0]:
            name = "-".join(f"{int(part, 16):x}" for part in words[0].split("-"))
        elif words[:1] == ["VmFlags:"] and {"sh", "mw"} <= {*words}:
            found.add(name)
    return found


def strange(folder: Path, pid: int, before: set[File], uid: int) -> str:
    """Why a process that CRIU restores must not run: it would have a file that it had not before,
    and that is not its user's; "": it may."""
    criu_has = {"/proc", str(folder), str(folder / RESTORE_LOG)}    # it closes them later
    for path, writable, owner in sorted(opened(pid)):
        known = {(path, writable, owner), (path, True, owner)} & before
        if not known and owner != uid and path not in criu_has:
            return (f"the program would have {path} open{' to write' if writable else ''}, which "
                    f"belongs to {user(owner)} and which it did not have so before")
    return ""


def foreign(pid: int, uid: int) -> str:
    """Why a user's process must not be saved: one below it has other rights, as setuid programs
    have: a user could pass their checks before a save, and choose their effect after it."""
    for one in descendants(pid):
        named = {line.split(":")[0]: {*line.split()[1:5]} for line in lines(f"/proc/{one}/status")}
        if uid != 0 and (named["Uid"] != {str(uid)} or len(named["Gid"]) > 1):
            return f"process {one} has the rights of another user or group"
    return ""


def checked(folder: Path, action: str) -> str:
    """Why CRIU must not go on after this action; "": it may. Raises one of UNREADABLE."""
    if action == "post-dump":
        pid = int(os.environ[ACTION_PID])
        write(folder, OPENED, {"files": sorted(opened(pid))})
        return foreign(pid, (read(folder, EXPECTED) or {})["uid"])
    if action == "post-restore":
        before = {(path, writable, owner) for path, writable, owner in (
            read(folder, OPENED) or {})["files"]}
        body = (read(folder, MANIFEST) or {})["body"]
        return strange(folder, int(os.environ[ACTION_PID]), before, body["uid"])
    return ""


def act(action: str) -> int:
    """Called by CRIU, in the folder. Returns its exit status; another than 0 undoes the order."""
    folder = Path.cwd()
    try:
        why = checked(folder, action)
    except UNREADABLE as error:         # CRIU's output is not read: the order says why
        why = f"the files of the program cannot be checked: {error!r}"
    if why:
        write(folder, STRANGE, {"why": why})
    return int(bool(why))


# --- folders and files --------------------------------------------------------------------------

def safe(folder: Path) -> Path:
    """Checks that only root can put another folder at this path. Raises Refused."""
    if not folder.is_absolute() or ".." in folder.parts:
        raise Refused(f"{str(folder)!r} is no absolute path of a folder")
    for path in (*reversed(folder.parents), folder):
        try:
            found = path.lstat()
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from None
        if not stat.S_ISDIR(found.st_mode):
            raise Refused(f"{path} is no folder; links are not followed")
        if found.st_uid != 0:
            raise Refused(f"{path} belongs to {user(found.st_uid)}, not to root")
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            raise Refused(f"others than root may write to {path}")
    return folder


def base(given: str) -> Path:
    folder = Path(given) if given else BASE
    if not given and not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)             # users find their folders there
    safe(folder)
    if folder.stat().st_mode & 0o022:   # the sticky bit does not suffice: names are foretold
        raise Refused(f"others than root may write to {folder}")
    return folder


def write(folder: Path, name: str, plain: Any) -> None:
    """Writes a file of root's that is complete or not there."""
    fresh = folder / (name + FRESH)
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(plain, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(folder / name)
    sync(folder)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """Reads a file of root's in a folder that may be a user's; None: there is none."""
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != 0 or found.st_nlink != 1:
            return None
        try:
            plain = json.load(file)
        except ValueError:
            return None
    return plain if isinstance(plain, dict) else None


def key() -> bytes:
    """Root's key, made at the first use."""
    path = base("") / "key"
    if not path.exists():
        fresh = path.with_name(f"key.{os.getpid()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(32))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):     # another nvshare-save was faster
            os.link(fresh, path)
        fresh.unlink()
        sync(path.parent)
    found = path.lstat()
    if found.st_uid != 0 or found.st_mode & 0o077 or not stat.S_ISREG(found.st_mode):
        raise Refused(f"{path} is no file of root's alone")
    return path.read_bytes()


def mac(body: dict[str, Any]) -> str:
    plain = json.dumps(body, sort_keys=True).encode()
    return hmac.new(key(), plain, hashlib.sha256).hexdigest()


def work_mark(folder: Path) -> str:
    """Marks the processes of CRIU that work in a folder. Users cannot know it, and so cannot make
    an order wait for a process of theirs."""
    return mac({"works in": str(folder)})


def digests(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """The digests of each CHUNK of these files, several at a time."""
    def digest(path: Path, begin: int, end: int) -> str:
        total = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while begin < end and (piece := os.pread(file.fileno(), min(PIECE, end - begin),
                                                      begin)):
                total.update(piece)
                begin += len(piece)
        return total.hexdigest()

    with ThreadPoolExecutor(max(1, min(16, os.cpu_count() or 1))) as pool:
        waits = {
            name: [pool.submit(digest, folder / name, begin, min(size, begin + CHUNK))
                   for begin in range(0, max(1, size), CHUNK)]
            for name in names for size in [(folder / name).stat().st_size]}
        return {name: [one.result() for one in each] for name, each in waits.items()}


def size_of(folder: Path) -> int:
    with suppress(OSError):
        return sum(one.lstat().st_size for one in folder.iterdir())
    return 0


# --- orders -------------------------------------------------------------------------------------

def check(order: dict[str, Any]) -> tuple[Path, str, int]:
    """Returns the folder to save in, CRIU, and the bytes to save. Raises Refused: nothing is
    changed."""
    pid = int(order["pid"])
    program = criu(checks=order["order"] == "check")
    if started(pid) != order["started"] or pid in (1, os.getpid(), os.getppid()):
        raise Refused(f"process {pid} has ended")
    tree = descendants(pid)
    for one in tree:
        if not all(is_same(one, f"ns/{name}") for name in NAMESPACES):
            raise Refused(f"process {one} is in namespaces of its own, as in a container: save the "
                          "container, see docs/saving.md")
        with suppress(OSError):
            for path in Path(f"/proc/{one}/fd").iterdir():
                with suppress(OSError):
                    target = str(path.readlink())
                    if target.startswith(("/dev/pts/", "/dev/tty")):
                        raise Refused(
                            f"process {one} has the terminal {target} open, which will be another "
                            "one then; start it without: setsid PROGRAM <FILE >FILE 2>&1")
    folder = base(order.get("to", ""))
    need = sum(kilobytes(f"/proc/{one}/status", "VmRSS", "VmSwap") for one in tree)
    disk = os.statvfs(folder)
    left = disk.f_bavail * disk.f_frsize - min(RESERVE, disk.f_blocks * disk.f_frsize // 20)
    if left < need:
        raise Refused(f"{folder} has {max(0, left) >> 20} MiB left for the "
                      f"{-(-need >> 20)} MiB of process {pid}")
    return folder, program, need


def save(order: dict[str, Any]) -> None:
    folder, program, need = check(order)
    pid = int(order["pid"])
    if order["order"] == "check":
        say(done="", bytes=need)
        return
    name = re.sub(r"\W", "_", comm(pid), flags=re.ASCII)[:15] or "program"
    name = f"{name}-{pid}-{time.strftime('%Y%m%dT%H%M%S')}"
    fresh, partial = folder / f"{NEW}{name}", folder / (name + PARTIAL)
    fresh.mkdir(mode=0o700)
    with locked(fresh, LISTED_WITHIN):
        write(fresh, EXPECTED, {
            "name": name, "pid": pid, "started": order["started"], "uid": owner_of(pid),
            "tree": [(one, started(one)) for one in descendants(pid)],
            "bytes": need, "exe": exe(pid), "cgroup": cgroup(pid), "saved": int(time.time()),
            "note": order["note"]})
        fresh.rename(partial)
        why = run(partial, program, "dump", "-t", str(pid), "--ghost-limit", "1G")
        why = (read(partial, STRANGE) or {}).get("why") or why
        ended = started(pid) != order["started"]
        if (saved := finish(partial)) is None:
            raise Refused(f"{why or 'it did not end'}{'; the process has ended' if ended else ''}")
    say(done=str(saved), bytes=size_of(saved))


def comm(pid: int) -> str:
    with suppress(OSError):
        return os.fsdecode(Path(f"/proc/{pid}/comm").read_bytes()).strip()
    return ""


def is_free(pid: int) -> bool:
    """Whether no process has this number, also none that has ended: its parent may take a while."""
    end = time.monotonic() + REAPED_WITHIN
    while Path(f"/proc/{pid}").exists() and started(pid) is None and time.monotonic() < end:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def owner_of(pid: int) -> int:
    """The effective user of a process. The owner of /proc/PID may be root for any process."""
    with suppress(OSError):
        for line in lines(f"/proc/{pid}/status"):
            if line.startswith("Uid:"):
                return int(line.split()[2])
    return -1


def exe(pid: int) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/exe").readlink())
    return ""


def cgroup(pid: int) -> str:
    """The control group (v2) of a process; "": unknown."""
    with suppress(OSError):
        for line in lines(PROCESSES / f"{pid}/cgroup"):
            if line.startswith("0::/"):
                return line[3:]
    return ""


def says(log: Path, line: str) -> bool:
    with suppress(OSError):
        return line in log.read_text(errors="replace")
    return False


def finish(partial: Path) -> Path | None:
    """Completes a folder once no CRIU works in it. None: its process runs on, or has ended without
    a complete image, and the folder is removed."""
    expected = read(partial, EXPECTED)
    if expected is None or not says(partial / DUMP_LOG, DUMPED) or (
            started(expected["pid"]) == expected["started"]):
        shutil.rmtree(partial)
        return None
    for pid, begun in expected["tree"]:     # CRIU was killed before it had ended all of them
        if begun is not None and started(pid) == begun:
            end(pid)
    files = sorted(one.name for one in partial.iterdir() if one.name not in OURS)
    for one in files:
        sync(partial / one)
    body = {**expected, "bytes": size_of(partial), "files": digests(partial, files)}
    write(partial, MANIFEST, {"body": body, "mac": mac(body)})
    (partial / EXPECTED).unlink()
    saved = partial.with_name(expected["name"])
    partial.rename(saved)
    sync(saved.parent)
    os.chown(saved, expected["uid"], -1, follow_symlinks=False)
    for other in saved.parent.iterdir():    # an earlier image of the same process
        restored = read(other, RESTORED) or {}
        if (restored.get("pid"), restored.get("started")) == (
                expected["pid"], expected["started"]):
            with suppress(Refused), locked(other, LISTED_WITHIN) as descriptor:
                delete(other, descriptor)
    return saved


def delete(folder: Path, descriptor: int) -> None:
    """Removes a locked folder. If this program is killed meanwhile, entries() removes the rest."""
    os.fchown(descriptor, 0, -1)
    gone = folder.with_name(f"{NEW}{folder.name}")
    folder.rename(gone)
    shutil.rmtree(gone)


@contextmanager
def locked(folder: Path, patience: float = 0) -> Iterator[int]:
    """Yields a descriptor of the folder. Raises Refused if another nvshare-save works on it for
    longer than `patience` seconds."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise Refused(f"{folder}: {error.strerror}") from None
    until = time.monotonic() + patience
    try:
        while not _locks(descriptor):
            if time.monotonic() >= until:
                raise Refused(f"{folder} is being saved or restored just now")
            time.sleep(LOOK_EVERY)
        yield descriptor
    finally:
        os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def taken(folder: Path, descriptor: int) -> Iterator[dict[str, Any]]:
    """Takes a saved folder from its user, and checks all of it. Yields the manifest's body; gives
    the folder back. Raises Refused."""
    safe(folder.parent)
    owner = os.fstat(descriptor).st_uid
    manifest = read(folder, MANIFEST)
    if manifest is None:
        raise Refused(f"{folder} is no saved program")
    body = manifest.get("body")
    if not isinstance(body, dict) or not hmac.compare_digest(str(manifest.get("mac")), mac(body)):
        raise Refused(f"{folder} was not saved by this machine, or was changed since")
    if owner not in (0, body["uid"]):
        raise Refused(f"{folder} belongs to {user(owner)}, and the program to {user(body['uid'])}")
    os.fchown(descriptor, 0, -1)
    os.fchmod(descriptor, 0o700)        # from here on only root can change an entry
    try:
        verify(folder, body)
        yield body
    finally:
        os.fchown(descriptor, body["uid"], -1)


def verify(folder: Path, body: dict[str, Any]) -> None:
    names = {one.name for one in folder.iterdir()}
    for name in names:
        found = (folder / name).lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != 0 or found.st_nlink != 1:
            raise Refused(f"{folder / name} is no file of root's")
    if read(folder, MANIFEST) != {"body": body, "mac": mac(body)} or (
            names - OURS != set(body["files"])) or (
            digests(folder, sorted(body["files"])) != body["files"]):
        raise Refused(f"{folder} was changed since it was saved")


def restore(order: dict[str, Any]) -> None:
    program = criu()
    folder = Path(order["folder"])
    with locked(folder, LISTED_WITHIN) as descriptor, taken(folder, descriptor) as body:
        settle(folder, body)
        if (restored := read(folder, RESTORED)) is None or not is_alive(restored):
            restored = bring_back(program, folder, body)
        say(done=str(folder), **restored, note=body["note"])


def is_alive(restored: dict[str, Any]) -> bool:
    return (str(restored["boot"]) == boot()
            and started(restored["pid"]) == int(restored["started"]))


def bring_back(program: str, folder: Path, body: dict[str, Any]) -> dict[str, Any]:
    """Restores a program. Returns the content of RESTORED. Raises Refused."""
    free = kilobytes("/proc/meminfo", "MemAvailable")
    if free < body["bytes"]:
        raise Refused(f"this machine has {free >> 20} MiB of memory free for the "
                      f"{body['bytes'] >> 20} MiB of the program")
    if not is_free(body["pid"]):
        raise Refused(f"another process has the number {body['pid']} now, which the program "
                      "needs; try again when it has ended")
    if read(folder, OPENED) is None:
        raise Refused(f"{folder} has no list of the program's files: an older nvshared saved it")
    for name in (RESTORED, FAILED, STRANGE, RESTORE_LOG):
        (folder / name).unlink(missing_ok=True)
    write(folder, RESTORING, {"boot": boot(), "begun": ticks()})
    why = run(folder, *placed(program, body), "restore", "-d", "--skip-file-rwx-check",
              before=lambda: enter(body["cgroup"]))
    settle(folder, body)
    restored = read(folder, RESTORED)
    if restored is None:
        why = (read(folder, STRANGE) or {}).get("why") or why or "the process has ended at once"
        write(folder, FAILED, {"why": why})
        raise Refused(why)
    return restored


def placed(program: str, body: dict[str, Any]) -> list[str]:
    """The command that runs CRIU where the program is to be: in its control group, if that is
    still there, else in a scope of its user's slice."""
    exists = body["cgroup"] and body["cgroup"] != "/" and Path(
        "/sys/fs/cgroup" + body["cgroup"], "cgroup.procs").exists()
    if exists or not Path("/run/systemd/system").exists():
        return [program]
    part = f"user-{body['uid']}.slice" if body["uid"] else "system.slice"
    # A scope app-* of a user is no tenant of its own: the program counts for its user alone.
    return ["systemd-run", "--quiet", "--scope", "--collect", f"--slice={part}",
            f"--unit=app-nvshare-{body['name']}", program]


def enter(group: str) -> None:
    path = Path("/sys/fs/cgroup" + group, "cgroup.procs")
    if group and group != "/":
        with suppress(OSError):
            path.write_text(str(os.getpid()))


def settle(folder: Path, body: dict[str, Any]) -> None:
    """Ends processes that a killed nvshare-save or CRIU has left of a restore: either all of the
    program's processes run, or none. The folder is locked and taken."""
    if (restoring := read(folder, RESTORING)) is None:
        return
    pid = body["pid"]
    until = time.monotonic() + PATIENCE
    while is_in_use(folder, pid) and time.monotonic() < until:
        time.sleep(LOOK_EVERY)
    now = started(pid)
    if now is not None and restoring["boot"] == boot() and now >= restoring["begun"]:
        if not says(folder / RESTORE_LOG, RESUMED) and waits_for_criu(pid, body["exe"]):
            end(pid)
        elif exe(pid) == body["exe"] and owner_of(pid) == body["uid"]:
            write(folder, RESTORED, {"pid": pid, "started": now, "boot": boot()})
    (folder / RESTORING).unlink()


def waits_for_criu(pid: int, program: str) -> bool:
    """Whether restored processes wait for a CRIU that was killed, in its code, which is in a
    mapping of theirs until CRIU lets them go on. `program`: the executable of the root, which is
    CRIU's until all memory has been read: only then can the root wait for anything else."""
    looks, until = 0, time.monotonic() + PATIENCE
    while looks < LOOKS and time.monotonic() < until:
        states = [where(thread, code) for one in descendants(pid) for code in [unnamed_code(one)]
                  for thread in threads(one)]
        if "criu" in states and "runs" not in states:
            return True
        if not {"criu", "runs"}.intersection(states):
            return False
        looks += exe(pid) == program    # one that runs may be about to wait
        time.sleep(LOOK_EVERY)
    return False


def unnamed_code(pid: int) -> list[tuple[int, int]]:
    """Mappings of a process that can be written and executed and are of no file."""
    found = []
    with suppress(OSError):
        for line in lines(f"/proc/{pid}/maps"):
            words = line.split()
            if len(words) == 5 and words[1] == "rwxp":
                begin, _, above = words[0].partition("-")
                found.append((int(begin, 16), int(above, 16)))
    return found


def where(thread: Path, code: list[tuple[int, int]]) -> str:
    """Where a thread is: "runs", if it does not wait; "criu": it waits in this code; "": neither.
    A thread that runs in a process without such code is not in CRIU's."""
    with suppress(OSError):
        words = (thread / "syscall").read_text().split()
        if words == ["running"]:
            return "runs" if code else ""
        if any(begin <= int(words[-1], 16) < above for begin, above in code):
            return "criu"
    return ""


def end(pid: int) -> None:
    for one in descendants(pid):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    while started(pid) is not None:
        time.sleep(0.01)


def entries(order: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for folder in sorted(base(order.get("to", "")).iterdir()):
        if not MADE.fullmatch(folder.name):
            continue
        try:                            # its user may have mounted something there, by fusermount
            if folder.is_symlink() or not folder.is_dir():
                continue
            if folder.name.startswith(NEW):
                remove_stale(folder)
            elif (row := entry(folder)) is not None:
                found.append(row)
        except UNREADABLE as error:     # one folder's content hides no other folder
            print(f"{folder} cannot be used: {error!r}", file=sys.stderr)
    return found


def remove_stale(folder: Path) -> None:
    """Removes what a killed nvshare-save has left of a save or a removal."""
    with suppress(Refused), locked(folder) as descriptor:
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid() and found.st_mtime + STALE_AFTER < time.time():
            shutil.rmtree(folder)


def entry(folder: Path) -> dict[str, Any] | None:
    """A folder's description, after an interrupted order there was completed; None: no folder."""
    partial = folder.name.endswith(PARTIAL)
    state = "saving" if partial else "restoring"
    with suppress(Refused), locked(folder) as descriptor:
        if partial:
            if not is_in_use(folder, (read(folder, EXPECTED) or {}).get("pid", 0)):
                saved = finish(folder)
                if saved is None:
                    return None
                folder, partial, state = saved, False, "saved"
        elif read(folder, RESTORING) is None:
            state = "saved"
        else:
            with taken(folder, descriptor) as body:
                if not is_in_use(folder, body["pid"]):
                    settle(folder, body)
                    state = "saved"
    plain = read(folder, EXPECTED) if partial else (read(folder, MANIFEST) or {}).get("body")
    if not isinstance(plain, dict):
        return None
    restored, failed = read(folder, RESTORED), read(folder, FAILED)
    if state == "saved" and restored is not None and (
            restored["boot"] == boot()):
        state = "restored" if is_alive(restored) else "ended"
    return {
        "folder": str(folder), "state": state, "size": size_of(folder),
        "why": (failed or {}).get("why", ""), "started": (restored or {}).get("started", 0),
        **{name: plain[name] for name in ("pid", "uid", "name", "bytes", "saved", "note")}}


def remove(order: dict[str, Any]) -> None:
    """Removes a folder: its program has been restored and has answered, or is not wanted."""
    folder = Path(order["folder"])
    safe(folder.parent)
    with locked(folder, LISTED_WITHIN) as descriptor:
        if read(folder, MANIFEST) is None:
            raise Refused(f"{folder} is no saved program")
        delete(folder, descriptor)
    say(done=str(folder))


ORDERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "check": save, "save": save, "restore": restore, "remove": remove,
    "list": lambda order: say(done="", entries=entries(order)),
}


def main() -> int:
    if action := os.environ.get(ACTION):
        os.umask(0o077)
        return act(action)
    if why := caller.refusal():
        print(f"nvshare-save takes no orders from {why}", file=sys.stderr)
        return 3
    if os.geteuid() != 0:
        say(error="only root can save programs")
        return 1
    os.umask(0o077)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(36, 0)      # PR_SET_CHILD_SUBREAPER: init adopts restored processes
    with suppress(ConnectionError):     # the daemon has ended without reading an answer
        for line in iter(lambda: sys.stdin.buffer.readline(LONGEST), b""):
            try:
                order = json.loads(line)
                ORDERS[order["order"]](order)
            except Refused as refused:
                say(error=str(refused))
            except UNREADABLE as error:
                say(error=f"nvshare-save failed: {error!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
