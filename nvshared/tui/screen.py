# SPDX-License-Identifier: Apache-2.0
"""The whole screen of `nvsharectl top`, drawn from its state."""

from rich.text import Text

from nvshared.tui.actions import next_whom
from nvshared.tui.canvas import fit, frame, wrapped
from nvshared.tui.commands import KINDS, question
from nvshared.tui.details import details
from nvshared.tui.guide import keys, page
from nvshared.tui.listing import listing
from nvshared.tui.panels import gpus
from nvshared.tui.quantities import process
from nvshared.tui.rows import rows
from nvshared.tui.state import Command, Frame, Hit, Prompt, Screen, State, tenant_named

NARROWEST, LOWEST = 40, 8               # what can be drawn on
MOST_WORDS = 4                          # lines of a message


def draw(state: State, width: int, height: int) -> Frame:
    """Any size; on a screen that is too small it is said how large one is needed."""
    if width < NARROWEST or height < LOWEST:
        words = f"top needs {NARROWEST} columns and {LOWEST} lines; here are {width} and {height}. "
        words += "q quits."
        return Frame(_filled(wrapped(words, max(1, width)), width, height))
    below, hits = _bottom(state, width)
    room = height - len(below)
    found = _body(state, width, room)
    if found.last and state.screen is Screen.MAIN:
        note = f" {found.first + 1}-{found.first + found.page} of {found.last + found.page}"
        below, hits = _bottom(state, width, note)
    if state.trouble:
        for line in found.lines:
            line.stylize("dim")         # it may have changed since
    hits = [hit._replace(line=hit.line + height) for hit in hits]
    lines = (*_filled(found.lines, width, room), *below)
    return Frame(lines, (*found.hits, *hits), found.page, found.first, found.last)


def _body(state: State, width: int, height: int) -> Frame:
    if state.screen is Screen.HELP:
        lines = frame(page(width - 4), width, title=Text("Help", style="bold"))
        return _scrolled(lines, state, height)
    if state.snapshot is None:
        return Frame((fit("" if state.trouble else "nvshared is asked …", width),))
    if state.screen is Screen.DETAILS and state.opened is not None:
        return _scrolled(details(state.snapshot, state.opened, width), state, height)
    return _main(state, width, height)


def _main(state: State, width: int, height: int) -> Frame:
    assert state.snapshot is not None
    if not state.snapshot.gpus:
        return Frame((fit(Text("nvshared manages no GPU.", style="yellow"), width),))
    shown = rows(state)
    above = gpus(state.snapshot, state.past, width, height, len(shown) + 1 if shown else 1)
    if not shown:
        words = "No program uses a GPU through nvshare. Start one with: nvsharectl run COMMAND"
        if state.filter:
            words = f"No program has {state.filter!r} in it. Esc takes the filter away."
        return Frame((*above, *wrapped(words, width)))
    page = max(1, height - len(above) - 1)
    last = max(0, len(shown) - page)
    first = min(last, max(state.at - page + 1, min(state.first, state.at)))
    lines, hits = listing(state, shown, first, page, width, len(above))
    return Frame((*above, *lines), tuple(hits), page, first, last)


def _scrolled(lines: list[Text], state: State, height: int) -> Frame:
    last = max(0, len(lines) - height)
    first = min(last, state.scroll)
    seen = lines[first:first + height]
    if first < last and seen:
        more = f"  … {len(lines) - first - height + 1} more lines: ↓"
        seen[-1] = fit(Text(more, style="dim"), seen[-1].cell_len)
    return Frame(tuple(seen), (), height, first, last)


def _bottom(state: State, width: int, note: str = "") -> tuple[list[Text], list[Hit]]:
    """A question, what is typed, what was said, or else the keys; hits count lines from below.

    `note`: at the end of the line of keys.
    """
    if state.question is not None:
        asked = f"{question(state.question)} y/n"
        if not KINDS[state.question.verb].prompt:
            asked += _tab(state, state.question)
        return _words(asked, width, "bold yellow"), []
    typed: list[Text] = []
    if state.prompt is not None:
        label = "Filter"
        if state.prompt.client is not None:
            whom = tenant_named(state.prompt.tenant) or process(state.prompt.client)
            label = f"{whom}{_tab(state, state.prompt)}: {KINDS[state.prompt.verb].prompt}"
        typed = _words(f"{label}: {state.prompt.text}▏", width, "bold")
    found = _words(state.words, width, "yellow") if state.words else []
    if state.trouble:
        found += _words(f"{state.trouble}. It is asked again.", width, "bold red")
    if typed:
        return [*found, *typed], []
    lead = Text()
    if state.filter and state.screen is Screen.MAIN:
        lead = Text.assemble(
            ("filter ", "dim"), (state.filter, "bold yellow"), ("  Esc off  ", "dim"))
    line, hits = keys(state.screen, width - len(note), -1, lead)
    return [*found, line.append(note)], hits


def _tab(state: State, asked: Prompt | Command) -> str:
    """Whom Tab makes it about."""
    tenant = next_whom(state, asked)
    if tenant:
        return f" (Tab: {tenant_named(tenant)})"
    return f" (Tab: {process(asked.client)})" if asked.tenant and asked.client else ""


def _words(text: str, width: int, style: str) -> list[Text]:
    lines = wrapped(text, width)
    return [fit(Text(line.plain, style=style), width) for line in lines[:MOST_WORDS]]


def _filled(lines: tuple[Text, ...] | list[Text], width: int, height: int) -> tuple[Text, ...]:
    shown = [fit(line, width) for line in lines[:height]]
    return (*shown, *(Text(" " * width) for _ in range(height - len(shown))))
