# SPDX-License-Identifier: Apache-2.0
"""What a verb of nvsharectl is.

A module of this package defines `VERB = Verb(…)`, and verbs.py lists it; help,
completion and dispatch follow from that. A module imports at its top only what
is cheap; rich and the like are imported by the action that draws with them.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from nvshared import quantity
from nvshared.errors import ExitCode, InvalidArgs
from nvshared.names import BUS_VARIABLE, TENANT_KINDS
from nvshared.tui.terms import MEANINGS

Options = argparse.Namespace
MODES = ("auto", "on", "off")
AUTO = "auto"                           # a quantum that follows from what hand-overs cost
QUANTUM = f"TIME|{AUTO}"                # what stands for one in help
LONGEST_PID = 1 << 22                   # as the kernel has it


class Verb(NamedTuple):
    """One thing that nvsharectl does."""

    name: str
    summary: str                        # one line, for the list of verbs
    description: str                    # what one should know before using it
    examples: tuple[tuple[str, str], ...]           # (command, what it does)
    act: Callable[[Options], ExitCode | None]       # None: OK
    configure: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
    more: str = ""                      # sections that stand below the examples, as they are


def whole(text: str, most: int, wrong: str, hint: str) -> int:
    """A whole number from 1 to `most`, from the command line. Raises InvalidArgs."""
    # Python refuses to convert thousands of digits, with an error of its own.
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)):
        number = int(text)
        if 1 <= number <= most:
            return number
    raise InvalidArgs(wrong, hint)


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


def add_gpu(parser: argparse.ArgumentParser, without: str = "all GPUs") -> None:
    """--gpu G, for verbs that change one card or all."""
    parser.add_argument(
        "--gpu", metavar="GPU",
        help=f"index, UUID or PCI address of one GPU; without it, {without}",
    )


def process(text: str) -> int:
    """A process id from the command line. Raises InvalidArgs."""
    hint = "see those of the programs with: nvsharectl clients"
    return whole(text, LONGEST_PID, f"{text!r} is no process id", hint)


def tenant(text: str) -> str:
    """KIND:NAME from the command line; the daemon knows the kinds. Raises InvalidArgs."""
    if ":" not in text:
        raise InvalidArgs(f"{text!r} is no tenant", f"give {TENANT_KINDS}")
    return text


def add_target(parser: argparse.ArgumentParser) -> None:
    """PID or TENANT, a number or a text, and --gpu G for the former."""
    parser.add_argument(
        "target", metavar="PID|TENANT", type=_target,
        help="a program, as nvsharectl clients shows it, or all programs together of a user, "
        f"unit, container, job or pod, as nvsharectl tenants shows it: {TENANT_KINDS}",
    )
    add_gpu(parser, "all that the program uses")


def _target(text: str) -> int | str:
    if ":" in text:
        return tenant(text)
    if text.isdigit():
        return process(text)
    raise InvalidArgs(
        f"{text!r} is neither a process id nor a tenant", f"give a number, or {TENANT_KINDS}"
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
