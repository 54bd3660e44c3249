# SPDX-License-Identifier: Apache-2.0
"""nvsharectl completion: the Tab key, made from the parser."""

import argparse
import shlex
from typing import NamedTuple

from nvshared.cli.verb import Options, Verb
from nvshared.errors import ExitCode

SHELLS = ("bash", "zsh", "fish")


class Words(NamedTuple):
    """What may follow a verb, or nvsharectl itself (then `verb` is empty)."""

    verb: str
    summary: str
    options: tuple[tuple[str, str], ...]            # (--option, help)
    values: tuple[str, ...]                         # of the argument, where they can be listed
    runs: bool                                      # a command line of its own follows


def words() -> list[Words]:
    """All verbs; nvsharectl's own options come first."""
    from nvshared.cli.parser import build
    from nvshared.cli.verbs import VERBS

    parser = build(VERBS)
    found = [_words("", "", parser)]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [
                _words(verb.name, verb.summary, action.choices[verb.name]) for verb in VERBS
            ]
    return found


def _words(verb: str, summary: str, parser: argparse.ArgumentParser) -> Words:
    options: list[tuple[str, str]] = []
    values: list[str] = []
    runs = False
    for action in parser._actions:
        options += [(one, action.help or "") for one in action.option_strings]
        if not action.option_strings:
            values += list(action.choices or ())
            runs = runs or action.nargs == argparse.REMAINDER
    return Words(verb, summary, tuple(options), tuple(values), runs)


def bash(all_words: list[Words]) -> str:
    """For bash; put it into /usr/share/bash-completion/completions/nvsharectl."""
    verbs = [one.verb for one in all_words if one.verb]
    lines = [
        "_nvsharectl() {",
        '    local verb="" words="" i',
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        '        case "${COMP_WORDS[i]}" in',
        f'            {"|".join(verbs)}) verb="${{COMP_WORDS[i]}}"; break ;;',
        "        esac",
        "    done",
        '    case "$verb" in',
    ]
    for one in all_words:
        known = " ".join([*one.values, *(option for option, _ in one.options)])
        lines.append(f"        {shlex.quote(one.verb)})")
        if one.runs:
            lines += [
                '            if [[ "${COMP_WORDS[COMP_CWORD]}" != -* ]]; then',
                '                COMPREPLY=($(compgen -c -f -- "${COMP_WORDS[COMP_CWORD]}"))',
                "                return",
                "            fi",
            ]
        lines.append(f"            words={shlex.quote(known)} ;;")
    lines += [
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))',
        "}",
        "complete -F _nvsharectl nvsharectl",
    ]
    return "\n".join(lines)


def zsh(all_words: list[Words]) -> str:
    """For zsh; put it as _nvsharectl into a folder of $fpath."""
    verbs = [one for one in all_words if one.verb]
    described = " ".join(shlex.quote(f"{one.verb}:{one.summary}") for one in verbs)
    lines = [
        "#compdef nvsharectl",
        "_nvsharectl() {",
        "    local verb=${words[(r)(" + "|".join(one.verb for one in verbs) + ")]}",
        '    case "$verb" in',
    ]
    for one in all_words:
        options = " ".join(
            shlex.quote(f"{option}:{text.replace(':', ';')}") for option, text in one.options
        )
        lines.append(f"        {shlex.quote(one.verb)})")
        if one.runs:
            lines.append("            _command_names; _files")
        elif one.values and one.verb:
            lines.append(f"            compadd -- {' '.join(one.values)}")
        elif not one.verb:
            lines.append(f"            local -a verbs=({described}); _describe verb verbs")
        lines.append(f"            local -a flags=({options}); _describe option flags ;;")
    lines += ["    esac", "}", '_nvsharectl "$@"']
    return "\n".join(lines)


def fish(all_words: list[Words]) -> str:
    """For fish; put it into ~/.config/fish/completions/nvsharectl.fish."""
    lines = ["-f"]
    for one in all_words:
        when = "-n __fish_use_subcommand"
        if one.verb:
            lines.append(f"{when} -a {one.verb} -d {_quoted(one.summary)}")
            when = f"-n '__fish_seen_subcommand_from {one.verb}'"
            if one.values:
                lines.append(f"{when} -a {_quoted(' '.join(one.values))}")
        if one.runs:
            lines.append(f"{when} -a '(__fish_complete_subcommand)' -F")
        for option, text in one.options:
            form = "-l" if option.startswith("--") else "-s"
            lines.append(f"{when} {form} {option.lstrip('-')} -d {_quoted(text)}")
    return "\n".join(f"complete -c nvsharectl {line}" for line in lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _act(options: Options) -> ExitCode:
    print({"bash": bash, "zsh": zsh, "fish": fish}[options.shell](words()))
    return ExitCode.OK


VERB = Verb(
    name="completion",
    summary="print what makes the Tab key work in a shell",
    description="Prints a completion script for bash, zsh or fish.",
    examples=(
        ('eval "$(nvsharectl completion bash)"', "in ~/.bashrc"),
        ("nvsharectl completion fish > ~/.config/fish/completions/nvsharectl.fish", "once"),
    ),
    configure=_configure,
    act=_act,
)
