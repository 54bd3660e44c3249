# SPDX-License-Identifier: Apache-2.0
"""All that `nvsharectl top` shows follows from this. actions.py changes it; screen.py draws it."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from rich.text import Text

from nvshared.control.snapshot import ClientSnapshot, Snapshot, Turn
from nvshared.control.tenants import Tenant
from nvshared.tui.keys import Key
from nvshared.tui.past import Past
from nvshared.tui.quantities import process
from nvshared.tui.tables import short_tenant, shortened

Who = tuple[int, int]                   # a program on a GPU, also after a restart of the daemon


LONGEST_NAME = 32                       # characters of a tenant in a question


def tenant_named(name: str) -> str:
    """A tenant in a question."""
    return shortened(short_tenant(name), LONGEST_NAME)


class Screen(Enum):
    """What is shown."""

    MAIN = "main"
    DETAILS = "details"
    HELP = "help"


class Command(NamedTuple):
    """What the daemon is to do, once the question is answered with yes."""

    verb: str                           # memory, compute, weight, suspend, resume or preempt
    client: ClientSnapshot              # the program
    value: int = 0                      # as over the bus
    tenant: str = ""                    # it is about all programs of this tenant; "": about that

    @property
    def name(self) -> str:
        """The program's, or the tenant's."""
        return tenant_named(self.tenant) if self.tenant else process(self.client)

    @property
    def gpu(self) -> int:
        """The index of its GPU."""
        return self.client.gpu


class Prompt(NamedTuple):
    """A line that somebody types."""

    verb: str                           # filter, or that of the command which it is for
    client: ClientSnapshot | None       # whom that is about
    text: str = ""
    tenant: str = ""                    # as in Command


@dataclass(frozen=True, slots=True)
class Opened:
    """A program whose details are looked at, as it was last."""

    who: Who
    client: ClientSnapshot
    tenants: tuple[Tenant, ...] = ()    # its own, and those under whose terms it is besides
    turns: tuple[Turn, ...] = ()        # the latest first
    ended: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """At one moment."""

    snapshot: Snapshot | None = None    # the last there was
    past: Past = field(default_factory=Past)
    trouble: str = ""                   # why the daemon does not answer; "": it does
    screen: Screen = Screen.MAIN
    behind: Screen = Screen.MAIN        # what help goes back to
    selected: Who | None = None
    at: int = 0                         # its row, when last seen
    first: int = 0                      # the row at the top of the list
    scroll: int = 0                     # the line at the top of details or help
    sort: str = "GPU"
    reverse: bool = False
    filter: str = ""
    prompt: Prompt | None = None
    question: Command | None = None
    words: str = ""                     # what came of the last command, until the next key
    opened: Opened | None = None


class Sort(NamedTuple):
    """A heading was clicked."""

    column: str


class Row(NamedTuple):
    """A program was clicked."""

    who: Who


class Hit(NamedTuple):
    """What a click on a part of a line means."""

    line: int
    start: int
    end: int
    means: Key | Sort | Row


@dataclass(frozen=True, slots=True)
class Frame:
    """What is drawn, and what of it somebody may point at."""

    lines: tuple[Text, ...]
    hits: tuple[Hit, ...] = ()
    page: int = 1                       # rows of the list, or lines of the text, that are seen
    first: int = 0                      # the first of them
    last: int = 0                       # what `first` is at the end
