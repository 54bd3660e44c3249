# SPDX-License-Identifier: Apache-2.0
"""The parser of nvsharectl, made from its verbs."""

import argparse
import os
import textwrap
from typing import Any, NoReturn

from nvshared.cli.verb import MODES, Verb, add_everywhere, seconds
from nvshared.errors import InvalidArgs
from nvshared.names import BUS_VARIABLE

DESCRIPTION = "See and change how programs share this machine's GPUs."
EXAMPLES = (
    ("nvsharectl", "the GPUs and who uses them, as does: nvsharectl status"),
    ("nvsharectl run -- python train.py", "run a program that shares the GPU with others"),
    ("nvsharectl top", "watch them take turns"),
    ("nvsharectl set-tq 10", "let each keep a GPU for 10 seconds while others wait"),
)


class Parser(argparse.ArgumentParser):
    """argparse, whose complaints are raised as InvalidArgs."""

    def error(self, message: str) -> NoReturn:
        """One sentence and where to read more."""
        raise InvalidArgs(message, f"see: {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        known = ", ".join(map(str, action.choices))
        raise InvalidArgs(f"{action.metavar} cannot be {value!r}", f"give one of {known}")


class Version(argparse.Action):
    """--version; finding the version out takes time, so only if it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_rest: object) -> NoReturn:
        from nvshared import __version__

        print(f"nvsharectl {__version__}")
        parser.exit()


def build(verbs: tuple[Verb, ...]) -> Parser:
    """The parser; `verb` is None in what it returns if none was given."""
    parser = _parser(DESCRIPTION, EXAMPLES, Parser, prog="nvsharectl", allow_abbrev=False)
    parser.add_argument("--version", action=Version, nargs=0, help="print the version")
    add_everywhere(parser, default=os.environ.get(BUS_VARIABLE) or "system")
    old = parser.add_argument_group("as in nvshare")
    old.add_argument(
        "-T", "--set-tq", metavar="SECONDS", type=seconds, help="the same as: nvsharectl set-tq"
    )
    old.add_argument(
        "-S", "--anti-thrash", metavar="MODE", choices=MODES,
        help="the same as: nvsharectl anti-thrash"
    )
    verb_parsers = parser.add_subparsers(metavar="VERB", title="verbs", parser_class=Parser)
    parser.set_defaults(verb=None)
    for verb in verbs:
        one = _parser(
            verb.description, verb.examples, verb_parsers.add_parser, verb.more,
            name=verb.name, help=verb.summary, allow_abbrev=False,
        )
        # What stands before the verb is not forgotten when nothing stands after it.
        add_everywhere(one, default=argparse.SUPPRESS)
        verb.configure(one)
        one.set_defaults(verb=verb)
    return parser


def _parser(
    description: str, examples: tuple[tuple[str, str], ...], make: Any, below: str = "",
    **options: Any,
) -> Parser:
    longest = max((len(command) for command, _ in examples), default=0)
    lines = [f"  {command.ljust(longest)}   {what}" for command, what in examples]
    parser: Parser = make(
        description=textwrap.fill(description, 78),
        epilog="\n".join(["examples:", *lines, *(["", below] if below else [])]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    return parser
