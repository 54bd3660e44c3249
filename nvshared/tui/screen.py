# SPDX-License-Identifier: Apache-2.0
"""The whole screen of `nvsharectl top`: the page, the help, and the line at the bottom."""

from collections.abc import Sequence

from rich.text import Text

from nvshared.tui.canvas import fit, frame, wrapped
from nvshared.tui.panels import details, gpus, indented, listing
from nvshared.tui.state import COMMANDS, Frame, Hit, Screen, State, rows, tab_hint, target_name
from nvshared.tui.terminal import Key

# By screen: keys of its bottom line as (key, label, effect). A narrow line has the first keys.
_BASIC = (("?", "?", "help"), ("q", "q", "quit"))
_CHANGES = tuple((kind.key, kind.key, verb) for verb, kind in COMMANDS.items())
KEYS: dict[Screen, Sequence[tuple[str, str, str]]] = {
    Screen.MAIN: (
        *_BASIC, ("down", "↑↓", "select"), ("enter", "Enter", "open"), ("/", "/", "filter"),
        (">", "<>", "sort"), ("i", "i", "order"), *_CHANGES),
    Screen.DETAILS: (*_BASIC, ("escape", "Esc", "back"), ("down", "↑↓", "scroll"), *_CHANGES),
    Screen.HELP: (*_BASIC, ("escape", "Esc", "back"), ("down", "↑↓", "scroll")),
}

_HELP: tuple[tuple[str, str], ...] = (
    ("The list", ""),
    ("↑ ↓ j k", "selects a program; PgUp, PgDn, Home and End go farther"),
    ("Enter d", "shows its details: tenants, memory, terms, last turns"),
    ("/", "filters: each word must occur in the program's GPU (gpu0), tenant (user:alice), state "
          "or command; Esc removes the filter"),
    ("< >", "selects the column to sort by; i reverses the order"),
    ("Mouse", "a click selects, a second click opens; a click on a heading sorts; the wheel "
              "scrolls. To select text as usual, hold Shift"),
    ("", ""),
    ("Commands, each of which asks for confirmation", ""),
    *((kind.key, f"{verb}: {kind.label}" if verb not in kind.label else kind.label)
      for verb, kind in COMMANDS.items()),
    ("Tab", "in a question: applies the command to all programs of its tenant together, such as a "
            "job or user; in the details also to the tenants around that one"),
    ("", ""),
    ("Symbols and columns", ""),
    ("▶", "the program holds the GPU"),
    ("█ ▒", "its memory: on the card, and swapped; a full bar would be the whole card"),
    ("STATE", "waiting: for its turn; loading: its memory is loaded; idle: it needs no turn; "
              "limited: it has used its share of the time; crowded: programs that do not share "
              "the GPU leave too little memory; unshared: it uses the GPU without nvshare"),
    ("HELD", "how long it has held the GPU in total"),
    ("WAITS, LEFT", "how long it has been waiting, and the estimated time left"),
    ("Graphs", "the last minutes, the present on the right; graphs of bytes have one scale. Beside "
               "each: the present figure, and below it the value of a full column, as in "
               "9.8G/s of 12.0G"),
    ("LIMITS", "its terms: memory, share of the time, weight, as in 20.0G,50%,w200"),
    ("TQ", "the time quantum: how long a program may keep the GPU while others wait"),
    ("", ""),
    ("Anywhere", ""),
    ("? q F10", "this page; quits. Ctrl-L redraws the screen"),
)


def page(width: int) -> list[Text]:
    label = max(len(key) for key, words in _HELP if words) + 4
    found: list[Text] = []
    for key, words in _HELP:
        lead = fit(Text(f"  {key}", style="bold cyan"), label)
        found += indented(lead, words, width) if words else [Text(key, style="bold")]
    return [fit(line, width) for line in found]


def keys(screen: Screen, width: int, line: int, lead: Text) -> tuple[Text, list[Hit]]:
    """The keys of a screen, after `lead`, and the areas that can be clicked.

    If the line is too narrow, keys that sort or change settings have no description."""
    found, hits = fit(lead, min(lead.cell_len, width)), []
    whole = sum(len(written) + len(label) + 3 for _, written, label in KEYS[screen]) - 2
    narrow = found.cell_len + whole > width
    for key, written, label in KEYS[screen]:
        words = " " if narrow and (key in (">", "i") or label in COMMANDS) else f" {label}  "
        end = found.cell_len + len(written) + len(words.rstrip())
        if end > width:
            break
        hits.append(Hit(line, found.cell_len, end, Key(key)))
        found.append(written, "bold cyan").append(words, "dim")
    found.rstrip()
    return fit(found, width), hits


NARROWEST, LOWEST = 40, 8               # columns and lines of the smallest usable terminal
MESSAGE_LINES = 4                          # most lines of a message


def draw(state: State, width: int, height: int) -> Frame:
    if width < NARROWEST or height < LOWEST:
        words = f"top needs {NARROWEST} columns and {LOWEST} lines; here are {width} and {height}. "
        words += "q quits."
        return Frame(_padded(wrapped(words, max(1, width)), width, height))
    below, hits = _bottom(state, width)
    room = height - len(below)
    found = _body(state, width, room)
    if found.last and state.screen is Screen.MAIN:
        note = f" {found.first + 1}-{found.first + found.page} of {found.last + found.page}"
        below, hits = _bottom(state, width, note)
    if state.daemon_error:
        for line in found.lines:
            line.stylize("dim")         # the snapshot drawn is outdated
    hits = [hit._replace(line=hit.line + height) for hit in hits]
    lines = (*_padded(found.lines, width, room), *below)
    return Frame(lines, (*found.hits, *hits), found.page, found.first, found.last)


def _body(state: State, width: int, height: int) -> Frame:
    if state.screen is Screen.HELP:
        lines = frame(page(width - 4), width, title=Text("Help", style="bold"))
        return _scrolled(lines, state, height)
    if state.snapshot is None:
        return Frame((fit("" if state.daemon_error else "waiting for nvshared …", width),))
    if state.opened is not None:
        return _scrolled(details(state.snapshot, state.opened, width), state, height)
    if not state.snapshot.gpus:
        return Frame((fit(Text("nvshared manages no GPU.", style="yellow"), width),))
    shown = rows(state)
    above = gpus(state.snapshot, state.past, width, height, len(shown) + 1 if shown else 1)
    if not shown:
        words = "No program uses a GPU through nvshare. Start one with: nvsharectl run COMMAND"
        if state.filter:
            words = f"No program matches {state.filter!r}. Esc removes the filter."
        return Frame((*above, *wrapped(words, width)))
    visible = max(1, height - len(above) - 1)
    last = max(0, len(shown) - visible)
    first = min(last, max(state.at - visible + 1, min(state.first, state.at)))
    lines, hits = listing(state, shown, first, visible, width, len(above))
    return Frame((*above, *lines), tuple(hits), visible, first, last)


def _scrolled(lines: list[Text], state: State, height: int) -> Frame:
    last = max(0, len(lines) - height)
    first = min(last, state.scroll)
    seen = lines[first:first + height]
    if first < last and seen:
        more = f"  … {len(lines) - first - height + 1} more lines: ↓"
        seen[-1] = fit(Text(more, style="dim"), seen[-1].cell_len)
    return Frame(tuple(seen), (), height, first, last)


def _bottom(state: State, width: int, note: str = "") -> tuple[list[Text], list[Hit]]:
    """The lines at the bottom: a question, an input line, a message, or the keys with `note`.

    The field `line` of these hits is negative: -1 is the screen's last line."""
    if state.unconfirmed is not None:
        pending = f"{state.unconfirmed.question()} y/n"
        if not COMMANDS[state.unconfirmed.verb].prompt:
            pending += tab_hint(state, state.unconfirmed)
        return _message_lines(pending, width, "bold yellow"), []
    typed: list[Text] = []
    if state.prompt is not None:
        prompt, label = state.prompt, "Filter"
        if prompt.client is not None:
            hint = tab_hint(state, prompt)
            label = f"{target_name(prompt)}{hint}: {COMMANDS[prompt.verb].prompt}"
        typed = _message_lines(f"{label}: {prompt.text}▏", width, "bold")
    found = _message_lines(state.message, width, "yellow") if state.message else []
    if state.daemon_error:
        found += _message_lines(f"{state.daemon_error}. Trying again.", width, "bold red")
    if typed:
        return [*found, *typed], []
    lead = Text()
    if state.filter and state.screen is Screen.MAIN:
        lead = Text.assemble(
            ("filter ", "dim"), (state.filter, "bold yellow"), ("  Esc off  ", "dim"))
    line, hits = keys(state.screen, width - len(note), -1, lead)
    return [*found, line.append(note)], hits


def _message_lines(text: str, width: int, style: str) -> list[Text]:
    return [fit(line, width) for line in wrapped(text, width, style)[:MESSAGE_LINES]]


def _padded(lines: tuple[Text, ...] | list[Text], width: int, height: int) -> tuple[Text, ...]:
    shown = [fit(line, width) for line in lines[:height]]
    return (*shown, *(Text(" " * width) for _ in range(height - len(shown))))
