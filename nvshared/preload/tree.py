# SPDX-License-Identifier: Apache-2.0
"""Resolves paths of a system below a folder, as its own programs see them after chroot."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nvshared.errors import InvalidArgs, NotPermitted, NvshareError

LINKS_MOST = 40                         # links followed in a path, as in the kernel


class Tree(NamedTuple):
    """A system. `top`: its top folder; / for the running system."""

    top: Path

    @classmethod
    def below(cls, folder: str) -> "Tree":
        """The system below `folder`. Raises InvalidArgs if that is not a folder."""
        try:
            # Path("") would be the current folder; "" is more likely an unset shell variable.
            if not folder or not Path(folder).is_dir():
                raise InvalidArgs(f"{folder!r} is no folder", "give the top folder of a system")
            return cls(Path(folder).resolve())
        except OSError as error:
            raise unreadable(error) from error

    @property
    def running(self) -> bool:
        return self.top == Path("/")

    def outside(self, path: Path) -> Path:
        """`path` in the system, as this process sees it. Raises InvalidArgs for a relative path."""
        if not path.is_absolute():
            raise InvalidArgs(f"{str(path)!r} is no absolute path", "begin it with /")
        return self.top / path.relative_to("/")

    def has(self, path: Path) -> bool:
        """Whether the file exists, links followed. Raises NvshareError if it cannot be examined."""
        try:
            return self.outside(self.resolve(path)).exists()
        except OSError as error:
            raise unreadable(error) from error

    def steps(self, path: Path) -> Iterator[Path]:
        """Yields every folder, link and file through which a path leads, the file itself last.

        A missing file is not taken for a link. Raises InvalidArgs for a loop of links."""
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
        """The path of the same file without links. Raises InvalidArgs for a loop of links."""
        return deque(self.steps(path), maxlen=1)[0]


def unreadable(error: OSError) -> NvshareError:
    words = f"{error.filename} cannot be read: {error.strerror}"
    if isinstance(error, PermissionError):
        return NotPermitted(words, "run it with sudo")
    return NvshareError(words)
