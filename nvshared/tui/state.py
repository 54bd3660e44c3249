# SPDX-License-Identifier: Apache-2.0
"""The state of `nvsharectl top`, its changes on events, and its commands.

`act` accesses neither terminal nor daemon: it returns requests and commands to its caller."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from rich.text import Text

from nvshared.control import Daemon
from nvshared.control.snapshot import (
    ClientSnapshot,
    GPUSnapshot,
    PastTurn,
    Snapshot,
    TenantSnapshot,
    Unshared,
)
from nvshared.terms import TERMS
from nvshared.tui import tables
from nvshared.tui.tables import CLIENT, SORTS, UNSHARED, age, process, tenant, user
from nvshared.tui.terminal import Click, Event, Key, Wheel

SPAN = 300.0                            # seconds for which samples are kept
WINDOW = 15.0                           # seconds over which rates are computed, if samples suffice


class CardFigures(NamedTuple):
    turns: int
    bytes_in: int
    bytes_out: int
    use: float | None
    waiting: int
    resident: int                       # resident and pinned bytes of the GPU's clients
    swapped: int                        # swapped bytes of the GPU's clients


class PastSample(NamedTuple):
    moment: float                       # seconds of a monotonic clock
    gpus: dict[int, CardFigures]


class Rates(NamedTuple):
    turns: float
    bytes_in: float
    bytes_out: float


COUNTERS = frozenset({"bytes_in", "bytes_out"})     # fields of CardFigures; graphs show their rates


@dataclass(frozen=True, slots=True)
class Past:
    samples: tuple[PastSample, ...] = ()

    def after(self, snapshot: Snapshot, moment: float) -> "Past":
        kept = (sample for sample in self.samples if moment - sample.moment <= SPAN)
        return Past((*kept, PastSample(moment, {
            gpu.index: CardFigures(
                gpu.turns, gpu.bytes_in, gpu.bytes_out, gpu.utilization, gpu.queue_length,
                sum(client.resident + client.pinned for client in snapshot.of(gpu)),
                sum(client.swapped for client in snapshot.of(gpu)))
            for gpu in snapshot.gpus})))

    def rates(self, gpu: int) -> Rates | None:
        """Rates over the last WINDOW; None: fewer than two samples since the daemon started."""
        seconds, first, last = 0.0, None, None
        for sample in reversed(self.samples):
            figures = sample.gpus.get(gpu)
            if figures is None or seconds >= WINDOW or (first and _has_restarted(figures, first)):
                break
            first, last = figures, last or figures
            seconds = self.samples[-1].moment - sample.moment
        return None if not first or not last or seconds <= 0 else Rates(
            *((b - a) / seconds for a, b in zip(first[:3], last[:3], strict=True)))

    def series(self, gpu: int, figure: str, cells: int) -> list[float | None]:
        """The means of a field of CardFigures in each of `cells` equal parts of SPAN, the last now.

        For a field in COUNTERS, the means of its rate per second. None: a part without samples.
        """
        if not self.samples or cells < 1:
            return [None] * max(0, cells)
        step = SPAN / cells
        last = int(self.samples[-1].moment / step)  # parts start at multiples of `step`: no flicker
        values: list[list[float]] = [[] for _ in range(cells)]
        for before, now in pairwise(self.samples):
            at = int(now.moment / step) - last + cells - 1
            seconds = now.moment - before.moment
            if at < 0 or seconds <= 0 or gpu not in before.gpus or gpu not in now.gpus:
                continue
            old, new = before.gpus[gpu], now.gpus[gpu]
            value = getattr(new, figure)
            if figure in COUNTERS:
                value = (value - getattr(old, figure)) / seconds
            if value is not None and not _has_restarted(old, new):
                values[at].append(value)
        return [sum(some) / len(some) if some else None for some in values]


def _has_restarted(before: CardFigures, now: CardFigures) -> bool:
    """Whether a counter decreased: the daemon was restarted."""
    return any(b > n for b, n in zip(before[:3], now[:3], strict=True))


ProgramKey = tuple[int, int]            # a program's identity: see program_key()
LONGEST_NAME = 32                       # characters of a tenant's name in a question


class Screen(Enum):
    MAIN = "main"
    DETAILS = "details"
    HELP = "help"


class Command(NamedTuple):
    verb: str                           # memory, compute, weight, suspend, resume or preempt
    client: ClientSnapshot              # the program
    value: int = 0                      # the term's new value, in the unit used on D-Bus
    tenant: str = ""                    # the target of the command; "": the program
    text: str = ""                      # the text typed for `value`

    def question(self) -> str:
        kind, name = COMMANDS[self.verb], target_name(self)
        if self.tenant and kind.prompt and not self.value:
            return f"Remove the {kind.label} of {name}?"
        return (kind.together if self.tenant else kind.confirmation).format(
            name=name, gpu=self.client.gpu,
            value=TERMS[kind.term].in_words(self.value) if kind.prompt else "")

    def carry_out(self, daemon: Daemon) -> str:
        """Has the daemon carry out the command. Returns the result. Raises NvshareError."""
        term, gpu = COMMANDS[self.verb].term, self.client.gpu
        value = 1 if self.verb == "suspend" else self.value
        if not term:
            daemon.preempt(str(gpu))
            return f"The turns on GPU {gpu} end now if a program waits."
        if self.tenant:
            daemon.set_tenant_terms(self.tenant, {term: value})
            return tables.term_sentence(daemon.tenant(self.tenant), term)
        daemon.set_client_term(self.client.id, term, value)
        return tables.program_sentence(target_name(self), term, value, gpu)


def target_name(command: Command) -> str:
    if command.tenant:
        return tables.shortened(tables.short_tenant(command.tenant), LONGEST_NAME)
    return process(command.client)


@dataclass(frozen=True, slots=True)
class Opened:
    client: ClientSnapshot
    tenants: tuple[TenantSnapshot, ...] = ()    # the innermost tenant first
    turns: tuple[PastTurn, ...] = ()        # the latest turn first


@dataclass(frozen=True, slots=True)
class View:
    snapshot: Snapshot | None = None    # the last snapshot received
    past: Past = field(default_factory=Past)
    daemon_error: str = ""              # error of the last attempt to fetch a snapshot; "": none
    in_help: bool = False
    selected: ProgramKey | None = None
    at: int = 0                         # last known row of the selected program
    first: int = 0                      # the row at the top of the list
    scroll: int = 0                     # the line at the top of details or help
    sort: str = "GPU"
    reverse: bool = False
    filter: str = ""
    in_filter: bool = False             # typed keys change the filter
    prompt: Command | None = None       # the user is typing its value
    unconfirmed: Command | None = None      # the user is asked to confirm it
    message: str = ""                   # shown until the next key
    opened: Opened | None = None        # the program shown in detail

    @property
    def screen(self) -> Screen:
        if self.in_help:
            return Screen.HELP
        return Screen.MAIN if self.opened is None else Screen.DETAILS


class Sort(NamedTuple):
    column: str                         # a click on the heading sorts the list by this column


class RowTarget(NamedTuple):
    key: ProgramKey                     # a click selects the program, a second one shows details


class Hit(NamedTuple):
    """A part of a screen line that can be clicked, from column `start` to before column `end`."""

    line: int
    start: int
    end: int
    target: Key | Sort | RowTarget


@dataclass(frozen=True, slots=True)
class Frame:
    lines: tuple[Text, ...]
    hits: tuple[Hit, ...] = ()
    page: int = 1                       # rows of the list or lines of text that are visible
    first: int = 0                      # number of the first visible row or line
    last: int = 0                       # the largest possible `first`


def program_key(client: ClientSnapshot) -> ProgramKey:
    """Identifies a program by its process, if known: client ids change when the daemon restarts."""
    return client.gpu, client.pid or -client.id


def all_rows(snapshot: Snapshot) -> list[ClientSnapshot]:
    return [
        *snapshot.clients,
        *(_unshared_row(gpu, one) for gpu in snapshot.gpus for one in gpu.unshared)]


def in_snapshot(snapshot: Snapshot | None, client: ClientSnapshot) -> ClientSnapshot | None:
    """The same program's figures in a snapshot; None: it has ended."""
    known = [] if snapshot is None else all_rows(snapshot)
    return next((one for one in known if program_key(one) == program_key(client)), None)


def rows(state: View) -> list[ClientSnapshot]:
    if state.snapshot is None:
        return []
    found = [one for one in all_rows(state.snapshot) if matches(one, state.filter)]
    column = CLIENT[state.sort]
    found.sort(key=age)                 # programs with equal keys keep the order by age
    found.sort(key=column.sort, reverse=column.descending is not state.reverse)
    return found


def matches(client: ClientSnapshot, text: str) -> bool:
    """Whether the program matches the words of `text`: gpu0, user:alice, idle, part of a name."""
    known = " ".join((
        f"gpu{client.gpu}", f"gpu:{client.gpu}", process(client), client.tenant,
        tenant(client), f"user:{user(client.uid)}", client.state, client.command)).lower()
    return all(word in known for word in text.lower().split())


def _unshared_row(gpu: GPUSnapshot, one: Unshared) -> ClientSnapshot:
    """An unshared program as a row of the list; only its memory is known."""
    return ClientSnapshot(
        id=-one.pid, gpu=gpu.index, pid=one.pid, uid=one.uid, name=one.name, command=one.name,
        tenant="", gang="", state=UNSHARED, pin_reason="", terms={}, allocated=0,
        resident=0, swapped=0, borrowed=0, pinned=one.memory, held_usec=0, waited_usec=0,
        waiting_usec=0, idle_usec=0, expected_usec=0, position=0, turns=0, bytes_in=0, bytes_out=0)


class CommandKind(NamedTuple):
    """A kind of command. `confirmation` and `together` are formats of questions."""

    key: str
    label: str                          # in the help, beside the key
    term: str                           # the term that the command sets; "": it sets none
    confirmation: str                   # question before the command for one program
    together: str = ""                  # question before the command for a tenant's programs
    prompt: str = ""                    # label of the input line; "": the command has no value


COMMANDS: dict[str, CommandKind] = {
    "memory": CommandKind("m", "memory limit", "memory-limit",
                          "Limit {name} on GPU {gpu} to {value} of memory?",
                          "Limit all programs of {name} together to {value} of memory on each GPU?",
                          "Memory limit (such as 20GiB, or none)"),
    "compute": CommandKind("c", "time limit", "compute-limit",
                           "Limit the time of {name} on GPU {gpu}: {value}?", "Limit the time of "
                           "all programs of {name} together on each GPU: {value}?",
                           "Share of the GPU's time at most (1 to 100 percent, or none)"),
    "weight": CommandKind("w", "weight", "weight", "Give {name} the weight {value} on GPU {gpu}?",
                          "Give {name} the weight {value} on each GPU?",
                          f"Weight (1 to 1000, usual is {TERMS['weight'].default})"),
    "suspend": CommandKind(
        "s", "suspend", "suspended",
        "Suspend {name}? It leaves GPU {gpu} and waits until it is resumed.",
        "Suspend all programs of {name}? They leave the GPUs until they are resumed."),
    "resume": CommandKind(
        "r", "resume", "suspended", "Resume {name}? It queues for GPU {gpu} again.",
        "Resume all programs of {name}? They queue for the GPUs again."),
    "preempt": CommandKind(
        "p", "preempt", "", "End the present turns on GPU {gpu} at once if a program waits?"),
}
VERB_BY_KEY = {kind.key: verb for verb, kind in COMMANDS.items()}


def parsed(prompt: Command) -> int:
    """The typed value of a command. Raises ValueError that says which values are valid."""
    term, text = TERMS[COMMANDS[prompt.verb].term], prompt.text.strip()
    try:
        return term.parser(0 if prompt.tenant else term.default)(text)
    except ValueError as wrong:
        raise ValueError(f"{text!r} is invalid: {wrong}") from None


NOTCH = 3                               # lines or rows that one notch of the wheel scrolls


class Request(Enum):
    QUIT = "quit"
    REDRAW = "redraw"                   # draw all lines: another program wrote on the terminal
    SNAPSHOT = "snapshot"               # fetch a snapshot at once


Answer = tuple[View, Request | Command | None]


def with_snapshot(state: View, snapshot: Snapshot, moment: float,
                  tenants: Sequence[TenantSnapshot] = (), turns: Sequence[PastTurn] = ()
                  ) -> View:
    """Returns the state with a snapshot; `tenants`, `turns`: of the program shown in detail."""
    state = replace(
        state, snapshot=snapshot, past=state.past.after(snapshot, moment), daemon_error="")
    if state.opened is not None:
        now = in_snapshot(snapshot, state.opened.client)
        opened = replace(state.opened, client=now or state.opened.client)
        if now is not None and tenants:
            opened = Opened(now, tuple(tenants), tuple(turns))
        state = replace(state, opened=opened)
    return reselected(state)


def reselected(state: View) -> View:
    """Keeps the selected program or, if it is no longer listed, selects the program in its row."""
    shown = [program_key(one) for one in rows(state)]
    if state.selected in shown:
        return replace(state, at=shown.index(state.selected))
    at = min(state.at, len(shown) - 1)
    return replace(state, selected=shown[at] if shown else None, at=max(0, at))


def act(state: View, event: Event, frame: Frame) -> Answer:
    """Handles a key or mouse event on the present screen `frame`."""
    match event:
        case Wheel(notches):
            return _scrolled_by(state, notches * NOTCH, frame), None
        case Click(column, line):
            for hit in frame.hits:
                if hit.line == line and hit.start <= column < hit.end:
                    return _clicked(state, hit.target, frame)
            return state, None
        case Key(name):
            return _key_pressed(replace(state, message=""), name, frame)


def _clicked(state: View, target: Key | Sort | RowTarget, frame: Frame) -> Answer:
    match target:
        case Key(name):
            return _key_pressed(replace(state, message=""), name, frame)
        case Sort(column):          # a second click reverses the order
            reverse = column == state.sort and not state.reverse
            return reselected(replace(state, sort=column, reverse=reverse, first=0)), None
        case RowTarget(clicked) if clicked == state.selected and not (
                state.in_filter or state.prompt or state.unconfirmed):
            return _open_details(state)
        case RowTarget(clicked):
            return reselected(replace(state, selected=clicked)), None


def _key_pressed(state: View, key: str, frame: Frame) -> Answer:
    if key == "redraw":
        return state, Request.REDRAW
    if state.unconfirmed is not None:
        return _answer_question(state, state.unconfirmed, key)
    if state.prompt is not None:
        return _edit_prompt(state, state.prompt, key), None
    if state.in_filter:
        return _edit_filter(state, key), None
    if key in ("q", "Q", "f10"):
        return state, Request.QUIT
    if key in ("?", "h", "f1"):
        return replace(state, in_help=not state.in_help, scroll=0), None
    if key in ("escape", "left", "backspace"):
        return _leave_screen(state), None
    if key in _STEPS or key in ("pgup", "pgdn"):
        page = max(1, frame.page - 1)
        return _scrolled_by(state, _STEPS.get(key, -page if key == "pgup" else page), frame), None
    if state.screen is Screen.HELP:
        return state, None
    if key in VERB_BY_KEY:
        return _begin_command(state, VERB_BY_KEY[key]), None
    match key if state.screen is Screen.MAIN else "":
        case "enter" | "right" | "d":
            return _open_details(state)
        case "/" | "f":
            return replace(state, in_filter=True), None
        case "<" | "," | "backtab":
            return _sorted_next(state, -1), None
        case ">" | "." | "tab":
            return _sorted_next(state, 1), None
        case "i" | "I":
            return reselected(replace(state, reverse=not state.reverse)), None
    return replace(state, message=f"{key} does nothing here. ? lists all keys."), None


_END = 1 << 30
_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -_END, "g": -_END, "end": _END, "G": _END}


def _scrolled_by(state: View, steps: int, frame: Frame) -> View:
    if state.screen is Screen.MAIN:
        last = len(rows(state)) - 1
        return reselected(replace(state, selected=None, at=max(0, min(last, state.at + steps))))
    return replace(state, scroll=max(0, min(frame.last, frame.first + steps)))


def _leave_screen(state: View) -> View:
    if state.screen is Screen.MAIN:
        return reselected(replace(state, filter=""))
    opened = state.opened if state.in_help else None
    return replace(state, in_help=False, opened=opened, scroll=0)


def _open_details(state: View) -> Answer:
    client = _chosen_program(state)
    if client is None:
        return state, None
    return replace(state, opened=Opened(client), scroll=0, message=""), Request.SNAPSHOT


def _chosen_program(state: View) -> ClientSnapshot | None:
    if state.opened is not None:
        return state.opened.client
    return next((one for one in rows(state) if program_key(one) == state.selected), None)


def _sorted_next(state: View, step: int) -> View:
    column = SORTS[(SORTS.index(state.sort) + step) % len(SORTS)]
    return reselected(replace(state, sort=column, reverse=False))


def _begin_command(state: View, verb: str) -> View:
    """Starts a command: prompts for its value if it needs one, else asks for confirmation."""
    client = _chosen_program(state)
    if client is None:
        return replace(state, message="No program is selected.")
    if obstacle := _obstacle(state, verb, client):
        return replace(state, message=obstacle)
    if COMMANDS[verb].prompt:
        return replace(state, prompt=Command(verb, client))
    if verb == "resume" and not client.terms.get("suspended"):      # a tenant is suspended
        found = (one.name for one in _tenants(state, client) if one.value("suspended"))
        return replace(state, unconfirmed=Command(verb, client, tenant=next(found, client.tenant)))
    return replace(state, unconfirmed=Command(verb, client))


def _obstacle(state: View, verb: str, client: ClientSnapshot) -> str:
    """Why the command cannot be applied to the program; "": it can."""
    name = process(client)
    if in_snapshot(state.snapshot, client) is None:
        return f"{name} has ended."
    if client.state == UNSHARED and verb != "preempt":
        return f"{name} does not share the GPU, so nvshared cannot control it."
    if verb == "resume" and not client.terms.get("suspended") and client.state != "suspended":
        return f"{name} is not suspended."
    if verb == "suspend" and client.terms.get("suspended"):
        return f"{name} is suspended already: r resumes it."
    return ""


def tab_hint(state: View, command: Command) -> str:
    """Names the target that Tab would select for the command; "": Tab has no effect."""
    after = command._replace(tenant=next_target(state, command))
    return f" (Tab: {target_name(after)})" if after != command else ""


def next_target(state: View, command: Command) -> str:
    """The command's target after Tab: the program (""), or one of its tenants.

    All but the innermost tenant are known only while the program's details are shown."""
    if not COMMANDS[command.verb].term:
        return ""
    known = [one.name for one in _tenants(state, command.client)] or [command.client.tenant]
    targets = ["", *known, ""]
    return targets[targets.index(command.tenant) + 1] if command.tenant in targets else ""


def _tenants(state: View, client: ClientSnapshot) -> tuple[TenantSnapshot, ...]:
    opened = state.opened
    shown = opened is not None and program_key(opened.client) == program_key(client)
    return opened.tenants if opened is not None and shown else ()


def _answer_question(state: View, command: Command, key: str) -> Answer:
    match key:
        case "y" | "Y":
            state = replace(state, unconfirmed=None)
            if state.daemon_error:
                return replace(state, message=f"Nothing was changed: {state.daemon_error}."), None
            client = in_snapshot(state.snapshot, command.client)
            if client is None and not command.tenant:
                return replace(state, message=f"{target_name(command)} has ended."), None
            return replace(state, message="…"), command._replace(client=client or command.client)
        case "tab" | "backtab" if not COMMANDS[command.verb].prompt:
            tenant = next_target(state, command)
            return replace(state, unconfirmed=command._replace(tenant=tenant)), None
        case "n" | "N" | "q" | "escape" | "enter" | "left" | "backspace":
            return replace(state, unconfirmed=None, message="Nothing was changed."), None
    return state, None


def _edit_filter(state: View, key: str) -> View:
    """Changes the filter, and with it the list, at each key."""
    if key == "enter":
        return replace(state, in_filter=False)
    if key == "escape":
        state, key = replace(state, in_filter=False), "clear"
    return reselected(replace(state, filter=_edited(state.filter, key)))


def _edit_prompt(state: View, prompt: Command, key: str) -> View:
    match key:
        case "escape":
            return replace(state, prompt=None)
        case "enter":
            return _submit_prompt(state, prompt)
        case "tab" | "backtab":
            return replace(state, prompt=prompt._replace(tenant=next_target(state, prompt)))
    return replace(state, prompt=prompt._replace(text=_edited(prompt.text, key)))


def _edited(text: str, key: str) -> str:
    if key in ("backspace", "clear"):
        return text[:-1] if key == "backspace" else ""
    return text + key if len(key) == 1 else text


def _submit_prompt(state: View, prompt: Command) -> View:
    if not prompt.text.strip():
        return replace(state, prompt=None, message="Nothing was changed.")
    try:
        value = parsed(prompt)
    except ValueError as wrong:
        return replace(state, message=f"{wrong}.")
    state = replace(state, prompt=None)
    if not prompt.tenant and (obstacle := _obstacle(state, prompt.verb, prompt.client)):
        return replace(state, message=obstacle)
    return replace(state, unconfirmed=prompt._replace(value=value, text=""))
