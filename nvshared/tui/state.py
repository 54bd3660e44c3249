# SPDX-License-Identifier: Apache-2.0
"""The state of `nvsharectl top`. actions.py changes the state; screen.py draws it."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from rich.text import Text

from nvshared.control.snapshot import ClientSnapshot, GPUSnapshot, Snapshot, Tenant, Turn, Unshared
from nvshared.tui.figures import process, short_tenant, shortened, user
from nvshared.tui.past import Past
from nvshared.tui.tables import CLIENT, UNSHARED, age, tenant
from nvshared.tui.terminal import Key

ProgramKey = tuple[int, int]            # a program on a GPU; survives a restart of the daemon


LONGEST_NAME = 32                       # characters of a tenant in a question


def tenant_named(name: str) -> str:
    """A tenant's name, shortened for a question."""
    return shortened(short_tenant(name), LONGEST_NAME)


class Screen(Enum):
    """The kind of screen that is shown."""

    MAIN = "main"
    DETAILS = "details"
    HELP = "help"


class Command(NamedTuple):
    """A command for the daemon, sent once the user confirms it."""

    verb: str                           # memory, compute, weight, suspend, resume or preempt
    client: ClientSnapshot              # the program
    value: int = 0                      # as on D-Bus
    tenant: str = ""                    # its target is this tenant; "": the program

    @property
    def name(self) -> str:
        """The name of the target: the program or the tenant."""
        return tenant_named(self.tenant) if self.tenant else process(self.client)

    @property
    def gpu(self) -> int:
        """The index of the program's GPU."""
        return self.client.gpu


class Prompt(NamedTuple):
    """An input line."""

    verb: str                           # "filter", or the verb of the command
    client: ClientSnapshot | None       # the command's program; None: the filter
    text: str = ""
    tenant: str = ""                    # as in Command


@dataclass(frozen=True, slots=True)
class Opened:
    """A program whose details are shown, as last reported."""

    key: ProgramKey
    client: ClientSnapshot
    tenants: tuple[Tenant, ...] = ()    # its own tenant, and those around this one
    turns: tuple[Turn, ...] = ()        # the latest first
    ended: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """The whole state of the dashboard at one time."""

    snapshot: Snapshot | None = None    # the last one received
    past: Past = field(default_factory=Past)
    trouble: str = ""                   # why the daemon does not answer; "": it answers
    screen: Screen = Screen.MAIN
    behind: Screen = Screen.MAIN        # the screen before the help
    selected: ProgramKey | None = None
    at: int = 0                         # row of the selected program, when last seen
    first: int = 0                      # the row at the top of the list
    scroll: int = 0                     # the line at the top of details or help
    sort: str = "GPU"
    reverse: bool = False
    filter: str = ""
    prompt: Prompt | None = None
    question: Command | None = None
    words: str = ""                     # a message, until the next key
    opened: Opened | None = None


class Sort(NamedTuple):
    """Meaning of a click on a heading."""

    column: str


class Row(NamedTuple):
    """Meaning of a click on a program."""

    key: ProgramKey


class Hit(NamedTuple):
    """What a click on a part of a line means."""

    line: int
    start: int
    end: int
    means: Key | Sort | Row


@dataclass(frozen=True, slots=True)
class Frame:
    """The drawn lines, and the areas that can be clicked."""

    lines: tuple[Text, ...]
    hits: tuple[Hit, ...] = ()
    page: int = 1                       # visible rows of the list, or lines of the text
    first: int = 0                      # number of the first visible one
    last: int = 0                       # the largest possible `first`


def program_key(client: ClientSnapshot) -> ProgramKey:
    """Identifies a program by its process, if known: a restarted daemon gives it another id."""
    return client.gpu, client.pid or -client.id


def all_rows(snapshot: Snapshot) -> list[ClientSnapshot]:
    """All programs on all GPUs, including programs that use a GPU unshared."""
    return [
        *snapshot.clients,
        *(_outsider(gpu, one) for gpu in snapshot.gpus for one in gpu.unshared),
    ]


def rows(state: State) -> list[ClientSnapshot]:
    """The programs that match the filter, sorted by the chosen column."""
    if state.snapshot is None:
        return []
    found = [one for one in all_rows(state.snapshot) if matches(one, state.filter)]
    column = CLIENT[state.sort]
    found.sort(key=age)                 # the order of programs with equal keys
    found.sort(key=column.sort, reverse=column.falling is not state.reverse)
    return found


def matches(client: ClientSnapshot, text: str) -> bool:
    """Whether the program matches each word: gpu0, user:alice, waiting, a part of a command."""
    known = " ".join((
        f"gpu{client.gpu}", f"gpu:{client.gpu}", process(client), client.tenant,
        tenant(client), f"user:{user(client.uid)}", client.state, client.command,
    )).lower()
    return all(word in known for word in text.lower().split())


def _outsider(gpu: GPUSnapshot, one: Unshared) -> ClientSnapshot:
    """An unshared program as a row of the list; only its memory is known."""
    return ClientSnapshot(
        id=-one.pid, gpu=gpu.index, pid=one.pid, uid=one.uid, name=one.name, command=one.name,
        tenant="", gang="", state=UNSHARED, pin_reason="", memory_limit=0, compute_limit=100,
        weight=100, suspended=False, allocated=0, resident=0, swapped=0, borrowed=0,
        pinned=one.memory,
        held_usec=0, waited_usec=0, waiting_usec=0, idle_usec=0, expected_usec=0, position=0,
        turns=0, bytes_in=0, bytes_out=0, unparkable=one.unsuspendable,
    )
