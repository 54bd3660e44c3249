# SPDX-License-Identifier: Apache-2.0
"""nvsharectl completion: the Tab key, made from the parser."""

import argparse
import shlex
from typing import NamedTuple

from nvshared.cli.verb import Options, Verb
from nvshared.errors import ExitCode

SHELLS = ("bash", "zsh", "fish")
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


def _valued(all_words: list[Words]) -> dict[tuple[bool, tuple[str, ...]], list[str]]:
    """The options that a value follows, by what it may be: a file, or one of these."""
    found: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for one in all_words:
        for option in one.options:
            names = found.setdefault((option.files, option.values), []) if option.takes else []
            if option.name not in names:
                names.append(option.name)
    return found


def bash(all_words: list[Words]) -> str:
    """For bash; put it into /usr/share/bash-completion/completions/nvsharectl."""
    valued = _valued(all_words)
    takers = "|".join(name for names in valued.values() for name in names)
    runners = "|".join(one.verb for one in all_words if one.runs)
    lines = [
        "_nvsharectl() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" verb="" words="" takes="" program=0 i',
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        '        if [[ -n "$takes" ]]; then',
        '            [[ "${COMP_WORDS[i]}" == "=" ]] || takes=""     # bash parts words there',
        "            continue",
        "        fi",
        '        case "${COMP_WORDS[i]}" in',
        f'            {takers}) takes="${{COMP_WORDS[i]}}" ;;',
        f'            --) case "$verb" in {runners}) program=$((i + 1)); break ;; esac ;;',
        "            -*) ;;",
        '            *) case "$verb" in',
        '                "") verb="${COMP_WORDS[i]}" ;;',
        f"                {runners}) program=$i; break ;;",
        "            esac ;;",
        "        esac",
        "    done",
        '    [[ "$word" == "=" ]] && word=""',
        "    if ((program && program < COMP_CWORD)); then",
        "        # The program's own words, as if they stood alone.",
        "        if declare -F _command_offset >/dev/null; then",
        '            _command_offset "$program"',
        "        else",
        '            COMPREPLY=($(compgen -f -- "$word"))',
        "        fi",
        "        return",
        "    fi",
        '    if ((program)) || [[ -z "$takes" && "$word" != -* ]]; then',
        f'        case "$verb" in {runners})',
        '            COMPREPLY=($(compgen -c -f -- "$word"))',
        "            return ;;",
        "        esac",
        "    fi",
        '    case "${takes:-$verb}" in',
    ]
    for (files, values), names in valued.items():
        what = f"words={shlex.quote(' '.join(values))}"
        if files:
            what = 'COMPREPLY=($(compgen -f -- "$word")); return'
        lines.append(f"        {'|'.join(names)}) {what} ;;")
    for one in all_words:
        verbs = [] if one.verb else [each.verb for each in all_words if each.verb]
        known = " ".join([*verbs, *one.values, *(option.name for option in one.options)])
        lines.append(f"        {shlex.quote(one.verb)}) words={shlex.quote(known)} ;;")
    lines += [
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -F _nvsharectl nvsharectl",
    ]
    return "\n".join(lines)


def zsh(all_words: list[Words]) -> str:
    """For zsh; put it as _nvsharectl into a folder of $fpath."""
    verbs = [one for one in all_words if one.verb]
    described = " ".join(shlex.quote(f"{one.verb}:{one.summary}") for one in verbs)
    runners = "|".join(one.verb for one in all_words if one.runs)
    lines = [
        "#compdef nvsharectl",
        "_nvsharectl() {",
        "    local verb=${words[(r)(" + "|".join(one.verb for one in verbs) + ")]}",
        "    local -i dashes=${words[(i)--]}",
        f"    if [[ $verb == ({runners}) ]] && ((dashes < CURRENT)); then",
        "        shift $dashes words",
        "        ((CURRENT -= dashes))",
        "        _normal",
        "        return",
        "    fi",
        '    case "${words[CURRENT-1]}" in',
    ]
    for (files, values), names in _valued(all_words).items():
        what = "_files" if files else f"compadd -- {' '.join(values)}" if values else ":"
        lines.append(f"        {'|'.join(names)}) {what}; return ;;")
    lines += ["    esac", '    case "$verb" in']
    for one in all_words:
        options = " ".join(
            shlex.quote(f"{option.name}:{option.help.replace(':', ';')}") for option in one.options
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
        for option in one.options:
            form = "-l" if option.name.startswith("--") else "-s"
            takes = (" -r -F" if option.files else " -x") if option.takes else ""
            if option.values:
                takes += f" -a {_quoted(' '.join(option.values))}"
            name = option.name.lstrip("-")
            lines.append(f"{when} {form} {name}{takes} -d {_quoted(option.help)}")
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
