# SPDX-License-Identifier: Apache-2.0
"""Verb, the type of nvsharectl's verbs; parsers of values and arguments that several verbs use.

A module of this package defines `VERB = Verb(…)`, and parser.py lists it; help,
completion and dispatch use that list. At their top, modules import only what is
imported fast; an action that draws imports rich itself.
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
AUTO = "auto"                           # nvshared chooses the quantum by the cost of hand-overs
QUANTUM = f"TIME|{AUTO}"                # metavar of a quantum
LONGEST_PID = 1 << 22                   # the kernel's PID_MAX_LIMIT


class Argument(NamedTuple):
    """Arguments for argparse's add_argument()."""

    names: tuple[str, ...]
    options: dict[str, Any]


def argument(*names: str, **options: Any) -> Argument:
    """An argument or option of a verb; parameters as of add_argument()."""
    return Argument(names, options)


class Verb(NamedTuple):
    """One subcommand of nvsharectl."""

    name: str
    summary: str                        # one line, for the list of verbs
    description: str                    # for --help
    examples: tuple[tuple[str, str], ...]           # (command, what it does)
    act: Callable[[Options], ExitCode | None]       # None: OK
    arguments: tuple["Argument", ...] = ()
    usage: str | None = None            # text behind "usage:"; None: by argparse
    more: str = ""                      # sections below the examples, printed unchanged


def whole(text: str, most: int, wrong: str, least: int = 1) -> int:
    """Parses a whole number. Raises InvalidArgs with `wrong` and, as hint, the valid range."""
    try:
        return quantity.whole(text, least, most)
    except ValueError as error:
        raise InvalidArgs(wrong, str(error)) from None


def number_or_none(term: str) -> Callable[[str], int]:
    """A parser for values of `term`; "none", which unsets the term, is 0."""
    def parsed(text: str) -> int:
        try:
            return 0 if text == "none" else MEANINGS[term].parse(text)
        except ValueError as wrong:
            name = term.replace("-", " ")
            raise InvalidArgs(f"the {name} cannot be {text!r}", f"{wrong}, or none") from None

    return parsed


def quantum(text: str) -> int:
    """Parses a quantum to microseconds; auto is 0. Raises InvalidArgs."""
    try:
        return 0 if text == AUTO else quantity.quantum(text)
    except ValueError as error:
        raise InvalidArgs(f"the quantum cannot be {text!r}", f"{error}, or auto") from None


def gpu(without: str) -> Argument:
    """The option --gpu, for verbs that change one GPU or several. `without`: which, by default."""
    return argument(
        "--gpu", metavar="GPU",
        help=f"index, UUID or PCI address of one GPU; without it, {without}",
    )


GPU = gpu("all GPUs")


def tenant(text: str) -> str:
    """Checks for the form KIND:NAME; the daemon checks the kind. Raises InvalidArgs."""
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


# `target` is an int (process id) or a str (tenant). --gpu is only for a process id.
TARGET = (
    argument(
        "target", metavar="PID|TENANT", type=_target,
        help="a program, as nvsharectl clients shows it, or all programs together of a user, "
        f"unit, container, job or pod, as nvsharectl tenants shows it: {TENANT_KINDS}",
    ),
    gpu("all that the program uses"),
)


def add_everywhere(parser: argparse.ArgumentParser, *, default: object) -> None:
    """Adds the options that are accepted both before and after the verb."""
    parser.add_argument(
        "--bus", metavar="BUS", default=default,
        help=f"message bus of nvshared: system, session or an address (or set {BUS_VARIABLE})",
    )
    parser.add_argument(
        "--json", action="store_true",
        default=default if default is argparse.SUPPRESS else False,
        help="print JSON, from the same data as the text",
    )
