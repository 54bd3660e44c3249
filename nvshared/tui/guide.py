# SPDX-License-Identifier: Apache-2.0
"""What the keys of the dashboard do: the line at its bottom, and the page that `?` shows."""

from collections.abc import Sequence

from rich.text import Text

from nvshared.tui.canvas import fit, wrapped
from nvshared.tui.commands import BY_KEY, KINDS
from nvshared.tui.keys import Key
from nvshared.tui.state import Hit, Screen

# By screen: the key that a click means, how it is written, what it does. Later ones are left out
# first where there is little room.
_BASIC = (("?", "?", "help"), ("q", "q", "quit"))
_CHANGES = tuple((kind.key, kind.key, verb) for verb, kind in KINDS.items())
KEYS: dict[Screen, Sequence[tuple[str, str, str]]] = {
    Screen.MAIN: (
        *_BASIC, ("down", "↑↓", "select"), ("enter", "Enter", "open"), ("/", "/", "filter"),
        (">", "<>", "sort"), ("i", "i", "order"), *_CHANGES,
    ),
    Screen.DETAILS: (*_BASIC, ("escape", "Esc", "back"), ("down", "↑↓", "scroll"), *_CHANGES),
    Screen.HELP: (*_BASIC, ("escape", "Esc", "back"), ("down", "↑↓", "scroll")),
}

_PAGE: tuple[tuple[str, str], ...] = (
    ("The list", ""),
    ("↑ ↓ j k", "selects a program; PgUp, PgDn, Home and End go farther"),
    ("Enter d", "shows its details: whose it is, its memory, its terms, its last turns"),
    ("/", "filters: each word is to be found in a GPU (gpu0), a tenant (user:alice), a state "
          "or a command; Esc takes the filter away"),
    ("< >", "chooses the column that sorts; i turns the order round"),
    ("Mouse", "a click selects, another one opens; a click on a heading sorts; the wheel scrolls. "
              "To select text as usual, hold Shift"),
    ("", ""),
    ("Changes, each of which asks first", ""),
    *((kind.key, f"{verb}: {kind.label}" if verb not in kind.label else kind.label)
      for verb, kind in KINDS.items()),
    ("Tab", "while it asks: not this program, but all of its tenant together, such as a job's or "
            "a user's; in the details also those of the tenants around it"),
    ("", ""),
    ("What is shown", ""),
    ("▶", "this program has the GPU now"),
    ("█ ▒", "its memory: on the card, and in host memory; a full bar would be the whole card"),
    ("STATE", "waiting: for its turn; loading: its memory comes in; idle: it wants no turn; "
              "limited: it has had its share of the time; crowded: others, who do not share, hold "
              "too much; unshared: nvshare has no part in it"),
    ("HELD", "how long it has had the GPU in all"),
    ("WAITS, LEFT", "how long it has been waiting this time, and about how much longer"),
    ("Graphs", "the last minutes, the present on the right; use and waiting, and in and out, each "
               "on a scale of its own: beside them the present figure, and below it what a full "
               "column is, as in 9.8G/s of 12.0G"),
    ("LIMITS", "what is set for it: memory, share of the time, weight, as in 20.0G,50%,w200"),
    ("TQ", "the time quantum: how long a program keeps the GPU while others wait"),
    ("", ""),
    ("Anywhere", ""),
    ("? q F10", "this page; quits. Ctrl-L draws everything anew"),
)


def page(width: int) -> list[Text]:
    """All of it, as long as it takes."""
    label = max(len(key) for key, words in _PAGE if words) + 4
    found: list[Text] = []
    for key, words in _PAGE:
        if not words:
            found.append(fit(Text(key, style="bold"), width))
            continue
        lines = wrapped(words, max(1, width - label))
        found.append(Text.assemble(fit(Text(f"  {key}", style="bold cyan"), label), lines[0]))
        found += [Text.assemble(" " * label, line) for line in lines[1:]]
    return [fit(line, width) for line in found]


def keys(screen: Screen, width: int, line: int, lead: Text) -> tuple[Text, list[Hit]]:
    """The line at the bottom, behind `lead`, and what clicks on it mean.

    Where not all of it fits, the keys that sort and those of changes stand there without a word.
    """
    found, hits = fit(lead, min(lead.cell_len, width)), []
    whole = sum(len(written) + len(label) + 3 for _, written, label in KEYS[screen]) - 2
    narrow = found.cell_len + whole > width
    for key, written, label in KEYS[screen]:
        words = " " if narrow and (key in (">", "i") or key in BY_KEY) else f" {label}  "
        end = found.cell_len + len(written) + len(words.rstrip())
        if end > width:
            break
        hits.append(Hit(line, found.cell_len, end, Key(key)))
        found.append(written, "bold cyan").append(words, "dim")
    found.rstrip()
    return fit(found, width), hits
