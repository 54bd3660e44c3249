# SPDX-License-Identifier: Apache-2.0
"""A system's files below a folder, as its own programs see them."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nvshared.errors import InvalidArgs, NotPermitted, NvshareError

LINKS_MOST = 40                         # as the kernel has it


@dataclass(frozen=True, slots=True)
class Tree:
    """`top` is / for the running system."""

    top: Path

    @classmethod
    def below(cls, folder: str) -> "Tree":
        """The system whose top is this folder. Raises InvalidArgs if it is none."""
        try:
            # An empty name, of a variable that is not set, say, would be the current folder.
            if not folder or not Path(folder).is_dir():
                raise InvalidArgs(f"{folder!r} is no folder", "give the top folder of a system")
            return cls(Path(folder).resolve())
        except OSError as error:
            raise unreadable(error) from error

    @property
    def running(self) -> bool:
        """Whether this is the system that we run in."""
        return self.top == Path("/")

    def outside(self, path: Path) -> Path:
        """Where a path of the system lies for us. Raises InvalidArgs unless it is absolute."""
        if not path.is_absolute():
            raise InvalidArgs(f"{str(path)!r} is no absolute path", "begin it with /")
        return self.top / path.relative_to("/")

    def has(self, path: Path) -> bool:
        """Whether there is such a file, links followed. Raises NvshareError if we may not look."""
        try:
            return self.outside(self.resolve(path)).exists()
        except OSError as error:
            raise unreadable(error) from error

    def steps(self, path: Path) -> Iterator[Path]:
        """Every folder, link and file on the way to a path of the system, as chroot would go it.

        The last one is the file itself, by a path without links; what is not there is taken as it
        is. Raises InvalidArgs for links in a circle.
        """
        links = 0
        done, left = Path("/"), list(path.parts[1:])
        yield done
        while left:
            part = left.pop(0)
            if part == "..":
                done = done.parent
                yield done
                continue
            step = done / part
            yield step
            try:
                if not self.outside(step).is_symlink():
                    done = step
                    continue
                link = self.outside(step).readlink()
            except OSError as error:
                raise unreadable(error) from error
            links += 1
            if links > LINKS_MOST:
                raise InvalidArgs(f"{path} leads through links in a circle", "see: ls -l")
            if link.is_absolute():
                done = Path("/")
            left = [one for one in link.parts if one != "/"] + left
            if not left:
                yield done

    def resolve(self, path: Path) -> Path:
        """The same file by a path without links. Raises InvalidArgs."""
        return deque(self.steps(path), maxlen=1)[0]


def unreadable(error: OSError) -> NvshareError:
    """The sentence for a file that cannot be looked at."""
    words = f"{error.filename} cannot be read: {error.strerror}"
    if isinstance(error, PermissionError):
        return NotPermitted(words, "run it with sudo")
    return NvshareError(words)
