# SPDX-License-Identifier: Apache-2.0
"""What may stand on nvsharectl's command line, as the Tab key needs it: from the parser."""

import argparse
from typing import NamedTuple

FILES = frozenset({"PATH", "DIR", "FILE"})      # what stands for a file in help
KNOWN = {"BUS": ("system", "session")}  # values that can be listed though others may be given


class Option(NamedTuple):
    """One option under one of its names."""

    name: str
    help: str
    takes: bool                         # whether a value follows it
    values: tuple[str, ...]             # those that can be listed
    files: bool                         # whether it names one


class Words(NamedTuple):
    """What may follow a verb, or nvsharectl itself (then `verb` is empty)."""

    verb: str
    summary: str
    options: tuple[Option, ...]
    values: tuple[str, ...]                         # of the argument, where they can be listed
    runs: bool                                      # a command line of its own follows


def words(parser: argparse.ArgumentParser) -> list[Words]:
    """All verbs of nvsharectl's parser; its own options come first."""
    found = [_words("", "", parser)]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [
                _words(verb.dest, verb.help or "", action.choices[verb.dest])
                for verb in action._choices_actions
            ]
    return found


def _words(verb: str, summary: str, parser: argparse.ArgumentParser) -> Words:
    options: list[Option] = []
    values: list[str] = []
    runs = False
    for action in parser._actions:
        options += [
            Option(one, action.help or "", action.nargs != 0, _values(action),
                   action.metavar in FILES)
            for one in action.option_strings
        ]
        if not action.option_strings:
            values += _values(action)
            runs = runs or action.nargs == argparse.REMAINDER
    return Words(verb, summary, tuple(options), tuple(values), runs)


def _values(action: argparse.Action) -> tuple[str, ...]:
    """The choices, or what stands in help as it is typed: auto of SECONDS|auto."""
    if action.choices is not None:
        return tuple(action.choices)
    meant = str(action.metavar)
    return KNOWN.get(meant) or tuple(one for one in meant.split("|")[1:] if one.islower())


def takers(all_words: list[Words]) -> list[str]:
    """The options that a value follows."""
    return sorted({option.name for one in all_words for option in one.options if option.takes})


def runners(all_words: list[Words]) -> list[str]:
    """The verbs that a command line of its own follows."""
    return [one.verb for one in all_words if one.runs]


def valued(all_words: list[Words]) -> dict[tuple[bool, tuple[str, ...]], list[str]]:
    """The options that a value follows, by what it may be: a file, or one of these."""
    found: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for one in all_words:
        for option in one.options:
            names = found.setdefault((option.files, option.values), []) if option.takes else []
            if option.name not in names:
                names.append(option.name)
    return found
