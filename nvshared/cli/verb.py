# SPDX-License-Identifier: Apache-2.0
"""Helpers of all verbs of nvsharectl, which must start fast.

So a module that is slow to import, such as rich, is imported in the function that uses it."""

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from nvshared import quantity
from nvshared.errors import ExitCode, InvalidArgs, NvshareError
from nvshared.names import TENANT_KINDS
from nvshared.tui.tables import Column, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nvshared.control import Daemon

Options = argparse.Namespace
Act = Callable[[Options], ExitCode | None]          # None: ExitCode.OK
Argument = tuple[list[str], dict[str, Any]]         # parameters of add_argument()
LONGEST_PID = 1 << 22                   # the kernel's PID_MAX_LIMIT
NARROWEST = 40                          # columns; a narrower terminal is treated as one with 40
EXAMPLE = re.compile(r"^ *(\S.*?)\s+# (.+)$", re.MULTILINE)


class Verb(NamedTuple):
    name: str
    summary: str                        # one line, for the list of verbs
    description: str                    # for --help
    examples: list[tuple[str, str]]     # (command, its effect)
    act: Act
    arguments: tuple[Argument, ...]
    usage: str | None                   # text after "usage:"; None: argparse generates the text
    more: str                           # sections below the examples, printed unchanged


def verb(name: str, *arguments: Argument, usage: str | None = None,
         more: str = "") -> Callable[[Act], Verb]:
    """Makes a verb of a function. The docstring is the help: summary, description, examples.

    An example is a command and, behind " # ", its effect."""
    def made(act: Act) -> Verb:
        summary, _, text = (act.__doc__ or "").partition(".\n")
        description = " ".join(EXAMPLE.split(text)[0].split())
        return Verb(name, summary[:1].lower() + summary[1:], description, EXAMPLE.findall(text),
                    act, arguments, usage, more)

    return made


def argument(names: str, metavar: str, help: str, **options: Any) -> Argument:
    """An argument or option for add_argument(); an option without metavar is a switch."""
    kind = {"metavar": metavar or None} if metavar or names[0] != "-" else {"action": "store_true"}
    return names.split(), {**kind, "help": help, **options}


def parsed(parse: Callable[[str], Any], wrong: str) -> Callable[[str], Any]:
    """A parser that raises InvalidArgs where `parse` raises ValueError.

    The message is `wrong` with the argument in place of {}; the hint is the ValueError's message.
    """
    def value(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise InvalidArgs(wrong.format(text), str(error)) from None

    return value


def whole(least: int, most: int, wrong: str) -> Callable[[str], Any]:
    """A parser of whole numbers in a range; `wrong` as for `parsed`."""
    return parsed(lambda text: quantity.whole(text, least, most), wrong)


def gpu(without: str) -> Argument:
    """The option --gpu of a verb. `without`: the GPUs that the verb changes without the option."""
    return argument("--gpu", "GPU", f"index, UUID or PCI address of one GPU (default: {without})")


GPU = gpu("all GPUs")


def tenant(text: str) -> str:
    """Checks for the form KIND:NAME; the daemon checks the kind. Raises InvalidArgs."""
    if ":" not in text:
        raise InvalidArgs(f"{text!r} is no tenant", f"give {TENANT_KINDS}")
    return text


def named_tenant(daemon: "Daemon", text: str) -> str:
    """The tenant that a text names: a container by its name, id or the begin of that."""
    from nvshared.containers import names

    if text.partition(":")[0] != names.KIND:
        return text
    return names.resolved(text.partition("=")[0], [one.name for one in daemon.tenants()])


def is_unknown_container(tenant: str) -> bool:
    """Whether a tenant is a container by a name that no runtime tells."""
    from nvshared.containers import names

    kind, _, name = tenant.partition(":")
    return kind == names.KIND and not names.id_of(tenant) and name not in (
        one.name for one in names.listed())


def container_names(tenants: Iterable[str]) -> dict[str, str]:
    """How tables show containers whose names the caller may know: container:ollama=3f2a1b2c4d5e."""
    from nvshared.containers import names

    return {
        tenant: f"{tenant.removesuffix(id)}{name}={id[:12]}"
        for tenant, name in names.names_of(tenants).items() if (id := names.id_of(tenant))}


def _target(text: str) -> int | str:
    if ":" in text:
        return text
    if not text.isdigit():
        raise InvalidArgs(
            f"{text!r} is neither a process id nor a tenant", f"give a number, or {TENANT_KINDS}")
    try:
        return quantity.whole(text, 1, LONGEST_PID)
    except ValueError:
        raise InvalidArgs(f"{text!r} is no process id",
                          "see the programs' process ids with: nvsharectl clients") from None


PID = argument("pid", "PID", "a program that shares a GPU, as nvsharectl clients shows it",
               type=whole(1, LONGEST_PID, "{!r} is no process id"))
# `target` is parsed to an int (process id) or a str (tenant). --gpu is valid only with a pid.
TARGET = (
    argument("target", "PID|TENANT", "process id of a program, as nvsharectl clients shows it, or "
             "a tenant: all programs of a user, unit, container, job or pod, as nvsharectl tenants "
             f"shows it: {TENANT_KINDS}", type=_target),
    gpu("all GPUs that the program uses"),
)


def show(options: Options, data: dict[str, Any], text: Callable[[], None]) -> None:
    if options.json:
        print(json.dumps(data, indent=2))
    else:
        text()


def drawable(stream: TextIO | None = None) -> bool:
    """Whether stdout, or this stream, is a terminal with cursor movement and colours."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def show_table(columns: list[Column], rows: Sequence[Any]) -> None:
    if drawable():
        from nvshared.tui.canvas import table

        draw(table(columns, rows, shutil.get_terminal_size().columns))
    else:
        print(plain(columns, rows))


def draw(picture: "RenderableType") -> None:
    """Prints a renderable with rich, which obeys NO_COLOR by itself."""
    from rich.console import Console

    # rich takes COLUMNS=0, which a terminal of unknown size has, for a width, and prints nothing.
    Console(highlight=False, width=shutil.get_terminal_size().columns).print(picture)


class Unwritable(Exception):
    """Standard output cannot be written; the cause is the OSError."""


class Output:
    """Standard output, whose errors are Unwritable: other OSErrors have nothing to do with it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._tried(self._stream.write, text))

    def flush(self) -> None:
        self._tried(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _tried(self, act: Callable[..., Any], *values: str) -> Any:
        try:
            return act(*values)
        except OSError as error:
            raise Unwritable from error


def print_error(error: NvshareError, *, as_json: bool) -> None:
    """Prints the error on stderr. If stderr cannot be written, only the exit status reports it."""
    if sys.stderr is None:              # the parent closed stderr; print() would use stdout
        return
    text = f"nvsharectl: {error}"
    if as_json:
        text = json.dumps({"error": error.message, "hint": error.hint, **error.details})
    elif sys.stderr.isatty():
        # Wrapped between words on a terminal, so that commands can be copied; in a file, one line.
        text = "\n".join(textwrap.wrap(
            text, max(NARROWEST, shutil.get_terminal_size().columns - 1),
            subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
    try:
        print(text, file=sys.stderr)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Points the stream to /dev/null, lest Python's flush at exit fail and print an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
