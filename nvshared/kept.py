# SPDX-License-Identifier: Apache-2.0
"""Files of JSON that a program keeps over its restarts.

A file is read entry by entry: a wrong entry costs no other entry. Content that is not understood is
put aside under another name before the file is written again, and so is a file that another program
has changed meanwhile."""

import json
import logging
import os
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from nvshared.errors import NotKept

logger = logging.getLogger(__name__)

VERSION = 1
ASIDES = 9                              # most files that are put aside
SAID = 5                                # most entries that one message names
LONGEST = 64 << 20                      # bytes of a file that is read
DIGITS_MOST = 20                        # digits of an integer; a longer one is read as text
TEMPORARY = ".nvshare-new"              # the end of the names of files that are being written
WRITTEN_WITHIN = 3600                   # seconds; no living process takes that long to write a file
Read = TypeVar("Read")
Complain = Callable[[str], None]
# Everything that reading a file with arbitrary content may raise.
NOISE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


class KeptFile:
    """A file of JSON. Nothing in it is overwritten that was neither understood nor put aside."""

    def __init__(self, path: Path, version: int | None = VERSION) -> None:
        """`version`: of the file's format; None: the format has none."""
        self.path = path
        self._version = version
        # Content and errors of a file that must not be overwritten, as it could not be put aside.
        self._guarded: tuple[bytes, list[str]] | None = None
        self._seen: tuple[int, ...] = ()    # _identity() of the file that was read or written last
        self._said = ""                 # why the guarded file could not be put aside
        self._lock = Lock()             # held for a write: keep_again() is called in another thread
        self._unwritten: object = None  # the content that the last keep() could not write
        self.failure = ""               # why keep() failed; "": all is written
        self.unused = ""                # the part of the file that was not understood: not in force

    def load(self, read: Callable[[Any, Complain], Read]) -> tuple[Read | None, bool]:
        """Returns the result of `read`, None if the whole file is unusable, and whether the usable
        part must be written again, because the rest has been put aside.

        `read` calls its second argument for each entry that it does not understand."""
        wrong: list[str] = []
        found: Read | None = None
        data = b""
        self._seen = self._identity()
        try:
            data = read_regular(self.path)
            plain = _parsed(data, wrong.append)
            if self._version is not None and plain["version"] != self._version:
                raise ValueError(f"it is of version {plain['version']!r:.99}, and we know "
                                 f"{self._version}")
            found = read(plain, wrong.append)
        except (FileNotFoundError, NotADirectoryError):
            return None, False
        except NOISE as error:
            wrong, found = [f"it cannot be read: {_shortened(error)}"], None
        if wrong:
            self._put_aside(data if found is not None else b"", wrong)
        return found, bool(wrong and self._guarded is None and found is not None)

    def keep(self, plain: object) -> None:
        """Replaces the file with `plain`. Raises NotKept on failure, and logs it once."""
        with self._lock:
            self._keep(plain)

    def keep_again(self) -> None:
        """Writes the content that an earlier keep() could not write."""
        with self._lock:
            if self.failure:
                with suppress(NotKept):
                    self._keep(self._unwritten)

    def _keep(self, plain: object) -> None:
        try:
            self.replace(plain)
        except OSError as error:
            failure = NotKept(
                "the change holds, but is forgotten if nvshared ends now: "
                f"{self.path} cannot be written: {error.strerror or error}",
                "put that right: it is then written within seconds")
            if failure.message != self.failure:
                logger.warning("%s", failure)
            self.failure, self._unwritten = failure.message, plain
            raise failure from error
        self.failure, self._unwritten = "", None

    def replace(self, plain: object) -> None:
        """Replaces the file with `plain`. Raises OSError."""
        now = self._identity()
        if self._guarded is None and now and now != self._seen:
            self._guarded = b"", ["another program has changed it"]
        if self._guarded is not None:
            self._put_aside(*self._guarded)
        if self._guarded is not None:
            raise OSError("it has what is not understood, and cannot be put aside")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace(self.path, json.dumps(plain, indent=1).encode() + b"\n")
        self._seen = self._identity()

    def _identity(self) -> tuple[int, ...]:
        """Differs for each content of the file; (): there is none."""
        with suppress(OSError):
            found = self.path.stat()
            return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        return ()

    def _put_aside(self, data: bytes, wrong: list[str]) -> None:
        """Keeps the file under another name. `data`: its content; b"": rename the file itself."""
        words = "; ".join(wrong[:SAID]) + ("; …" if len(wrong) > SAID else "")
        unused, self.unused = self.unused, f"{self.path}: {words}"
        try:
            new = aside(self.path)
            if data:
                replace(new, data)
            else:
                self.path.rename(new)
        except OSError as error:
            if not data and isinstance(error, (FileNotFoundError, NotADirectoryError)):
                self._guarded, self.unused = None, unused       # the file is no longer there
                return
            self._guarded = data, wrong
            failure = (f"{self.path} is left as it is until it can be put aside: "
                       f"{error.strerror or error}. Not used: {words}")
            if failure != self._said:
                logger.warning("%s", failure)
            self._said = failure
        else:
            self._guarded, self._said = None, ""
            logger.warning("%s is put aside as %s, and goes on with what is understood. Not used: "
                           "%s", self.path, new.name, words)


def aside(path: Path) -> Path:
    """The name under which a file is put aside. Raises OSError if there are ASIDES already: failing
    writes would fill the disk with them."""
    for number in range(1, ASIDES + 1):
        new = path.with_name(f"{path.name}.aside-{number}")
        if not os.path.lexists(new):
            return new
    raise OSError(f"{ASIDES} have been put aside already, take some away")


def read_regular(path: Path, longest: int = LONGEST) -> bytes:
    """Reads a file without waiting for another process, as a pipe would. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):
            raise OSError("it is a directory" if stat.S_ISDIR(kind) else "it is no file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(longest + 1)
    finally:
        os.close(descriptor)
    if len(data) > longest:
        raise OSError(f"it has more than {longest} bytes")
    return data


def each(given: object, what: str, read: Callable[[Any, Any], Read], wrong: Complain,
         ) -> dict[str, Read]:
    """Reads the entries of an object. An exception of `read` for one entry costs no other entry."""
    found: dict[str, Read] = {}
    if not isinstance(given, Mapping):
        wrong(f"{what} cannot be {given!r:.99}")
        return found
    for name, value in given.items():
        try:
            name.encode()               # a name that is no text could not be sent over D-Bus
            found[name] = read(name, value)
        except NOISE as error:
            wrong(f"{what} {name!r:.99}: {_shortened(error)}")
    return found


def known(plain: Mapping[str, Any], names: Collection[str], wrong: Complain) -> None:
    for name in plain.keys() - {"version", *names}:
        wrong(f"{name!r:.99} is unknown")


def _parsed(data: bytes, wrong: Complain) -> Any:
    """Parses JSON. Bytes that are no text, and overlong integers, spoil their entry alone."""
    def joined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            for name, times in Counter(name for name, _ in pairs).items():
                if times > 1:
                    wrong(f"{name!r:.99} stands more than once, and the last counts")
        return found

    return json.loads(
        data.decode("utf-8-sig", errors="surrogateescape"), object_pairs_hook=joined,
        parse_int=lambda digits: int(digits) if len(digits) <= DIGITS_MOST else digits)


def _shortened(error: BaseException) -> str:
    """The words of an error that may quote anything."""
    words = str(error) if isinstance(error, ValueError) else repr(error)
    return words if len(words) <= 300 else f"{words[:300]}…"


def replace(
    path: Path, data: bytes, prepare: Callable[[int], object] = lambda descriptor: None
) -> None:
    """Replaces a file atomically: readers have all of the old content, or all of the new.

    The new file is its user's alone, unless `prepare` changes that by its descriptor. Raises
    OSError."""
    prefix = f".{path.name}."
    _remove_left(path.parent, prefix)
    descriptor, temporary = tempfile.mkstemp(suffix=TEMPORARY, prefix=prefix, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            prepare(file.fileno())
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _remove_left(folder: Path, prefix: str) -> None:
    """Removes what processes have left that were killed while they wrote."""
    with suppress(OSError):             # such a file does no harm
        for one in folder.iterdir():
            is_ours = one.name.startswith(prefix) and one.name.endswith(TEMPORARY)
            if is_ours and one.lstat().st_mtime < time.time() - WRITTEN_WITHIN:
                one.unlink()
