# SPDX-License-Identifier: Apache-2.0
"""Printing: JSON or text, for a person or for a pipe."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TextIO

from nvshared.cli.verb import Options
from nvshared.errors import NvshareError
from nvshared.tui.tables import Column, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROWEST = 40                          # a terminal that says less is not believed


def show(options: Options, data: dict[str, Any], text: Callable[[], None]) -> None:
    """`data` as JSON if that is wanted, else whatever `text` prints."""
    if options.json:
        print(json.dumps(data, indent=2))
    else:
        text()


def drawable() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def show_table(columns: list[Column], rows: Iterable[Any]) -> None:
    """A table: drawn for a terminal, plain for anything else."""
    if drawable():
        from nvshared.tui.canvas import table

        draw(table(columns, rows, shutil.get_terminal_size().columns))
    else:
        print(plain(columns, rows))


def draw(what: "RenderableType") -> None:
    """Something that rich can draw. It obeys NO_COLOR by itself."""
    from rich.console import Console

    Console(highlight=False).print(what)


def complain(error: NvshareError, *, as_json: bool) -> None:
    """Says on stderr what went wrong, if that can be written to; the exit status says it too."""
    if sys.stderr is None:              # closed by whoever started us; print would take stdout
        return
    text = f"nvsharectl: {error}"
    if as_json:
        text = json.dumps({"error": error.message, "hint": error.hint, **error.details})
    elif sys.stderr.isatty():
        # Whole words, and commands that can be copied: one line elsewhere, for those who search.
        text = "\n".join(textwrap.wrap(
            text, max(NARROWEST, shutil.get_terminal_size().columns - 1),
            subsequent_indent="  ", break_long_words=False, break_on_hyphens=False,
        ))
    try:
        print(text, file=sys.stderr)
    except OSError:
        drop(sys.stderr)


def warn(sentence: str) -> None:
    """Says on stderr what may not be what the caller meant, though it is done."""
    if sys.stderr is not None:
        print(f"nvsharectl: warning: {sentence}", file=sys.stderr)


def drop(stream: TextIO) -> None:
    """Gives up what is left of it: Python would try once more when it exits, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
