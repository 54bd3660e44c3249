# SPDX-License-Identifier: Apache-2.0
"""What a verb of nvsharectl is.

A module of this package defines `VERB = Verb(…)`, and parser.py lists it; help,
completion and dispatch follow from that. A module imports at its top only what
is cheap; rich and the like are imported by the action that draws with them.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from nvshared import quantity
from nvshared.errors import ExitCode, InvalidArgs
from nvshared.names import BUS_VARIABLE, TENANT_KINDS
from nvshared.tui.terms import MEANINGS

Options = argparse.Namespace
MODES = ("auto", "on", "off")
AUTO = "auto"                           # a quantum that follows from what hand-overs cost
QUANTUM = f"TIME|{AUTO}"                # what stands for one in help
LONGEST_PID = 1 << 22                   # as the kernel has it


class Argument(NamedTuple):
    """What argparse's add_argument() is given."""

    names: tuple[str, ...]
    options: dict[str, Any]


def argument(*names: str, **options: Any) -> Argument:
    """One of a verb's, as add_argument() takes it."""
    return Argument(names, options)


class Verb(NamedTuple):
    """One thing that nvsharectl does."""

    name: str
    summary: str                        # one line, for the list of verbs
    description: str                    # what one should know before using it
    examples: tuple[tuple[str, str], ...]           # (command, what it does)
    act: Callable[[Options], ExitCode | None]       # None: OK
    arguments: tuple["Argument", ...] = ()
    usage: str | None = None            # what stands behind "usage:"; None: what argparse makes
    more: str = ""                      # sections that stand below the examples, as they are


def whole(text: str, most: int, wrong: str, least: int = 1) -> int:
    """A whole number from the command line. Raises InvalidArgs: `wrong`, and what is right."""
    try:
        return quantity.whole(text, least, most)
    except ValueError as error:
        raise InvalidArgs(wrong, str(error)) from None


def number_or_none(term: str) -> Callable[[str], int]:
    """Reads a term from the command line; 0 for none, which takes back what was set."""
    def parsed(text: str) -> int:
        try:
            return 0 if text == "none" else MEANINGS[term].parse(text)
        except ValueError as wrong:
            name = term.replace("-", " ")
            raise InvalidArgs(f"the {name} cannot be {text!r}", f"{wrong}, or none") from None

    return parsed


def quantum(text: str) -> int:
    """Microseconds from the command line, 0 for auto. Raises InvalidArgs."""
    try:
        return 0 if text == AUTO else quantity.quantum(text)
    except ValueError as error:
        raise InvalidArgs(f"the quantum cannot be {text!r}", f"{error}, or auto") from None


def gpu(without: str) -> Argument:
    """--gpu G, for verbs that change one card or all."""
    return argument(
        "--gpu", metavar="GPU",
        help=f"index, UUID or PCI address of one GPU; without it, {without}",
    )


GPU = gpu("all GPUs")


def tenant(text: str) -> str:
    """KIND:NAME from the command line; the daemon knows the kinds. Raises InvalidArgs."""
    if ":" not in text:
        raise InvalidArgs(f"{text!r} is no tenant", f"give {TENANT_KINDS}")
    return text


def _target(text: str) -> int | str:
    if ":" in text:
        return tenant(text)
    if text.isdigit():
        try:
            return quantity.whole(text, 1, LONGEST_PID)
        except ValueError:
            raise InvalidArgs(f"{text!r} is no process id", "see those of the programs with: "
                              "nvsharectl clients") from None
    raise InvalidArgs(
        f"{text!r} is neither a process id nor a tenant", f"give a number, or {TENANT_KINDS}"
    )


# A number or a text; --gpu G is for the former.
TARGET = (
    argument(
        "target", metavar="PID|TENANT", type=_target,
        help="a program, as nvsharectl clients shows it, or all programs together of a user, "
        f"unit, container, job or pod, as nvsharectl tenants shows it: {TENANT_KINDS}",
    ),
    gpu("all that the program uses"),
)


def add_everywhere(parser: argparse.ArgumentParser, *, default: object) -> None:
    """The options that may stand before the verb or after it."""
    parser.add_argument(
        "--bus", metavar="BUS", default=default,
        help=f"message bus of nvshared: system, session or an address (or set {BUS_VARIABLE})",
    )
    parser.add_argument(
        "--json", action="store_true",
        default=default if default is argparse.SUPPRESS else False,
        help="print JSON, from the same data as the text",
    )
