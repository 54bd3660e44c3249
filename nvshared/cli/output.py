# SPDX-License-Identifier: Apache-2.0
"""Printing: JSON or text, for a person or for a pipe."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from nvshared.cli.verb import Options
from nvshared.errors import NvshareError
from nvshared.tui.tables import Column, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROWEST = 40                          # columns; assumed if a terminal reports fewer


def show(options: Options, data: dict[str, Any], text: Callable[[], None]) -> None:
    """Prints `data` as JSON with --json; calls `text`, which prints text, without."""
    if options.json:
        print(json.dumps(data, indent=2))
    else:
        text()


def drawable() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def show_table(columns: list[Column], rows: Sequence[Any]) -> None:
    """Prints a table: drawn on a terminal, plain text elsewhere."""
    if drawable():
        from nvshared.tui.canvas import table

        draw(table(columns, rows, shutil.get_terminal_size().columns))
    else:
        print(plain(columns, rows))


def draw(what: "RenderableType") -> None:
    """Prints a renderable with rich, which obeys NO_COLOR by itself."""
    from rich.console import Console

    Console(highlight=False).print(what)


def print_error(error: NvshareError, *, as_json: bool) -> None:
    """Prints the error on stderr. If stderr cannot be written, only the exit status reports it."""
    if sys.stderr is None:              # the parent closed it; print() would write to stdout
        return
    text = f"nvsharectl: {error}"
    if as_json:
        text = json.dumps({"error": error.message, "hint": error.hint, **error.details})
    elif sys.stderr.isatty():
        # Wrapped between words, so commands can be copied. In a file: one line, for grep.
        text = "\n".join(textwrap.wrap(
            text, max(NARROWEST, shutil.get_terminal_size().columns - 1),
            subsequent_indent="  ", break_long_words=False, break_on_hyphens=False,
        ))
    try:
        print(text, file=sys.stderr)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Points the stream to /dev/null, lest Python's flush at exit fail and print an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
