# SPDX-License-Identifier: Apache-2.0
"""nvsharectl completion: the Tab key in bash, zsh and fish, from the parser; and nvsharectl help.

Each script finds the verb as the parser does: the value of an option is none, whatever it reads;
and behind `run` the words are another program's.
"""

import argparse
import re
import shlex
import string
from typing import NamedTuple

from nvshared.cli.verb import Options, Verb

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


class _Script(string.Template):
    """@@{name} stands for what is put in, as shells use $ themselves."""

    delimiter = "@@"


_BASH = _Script(r"""_nvsharectl() {
    local word="${COMP_WORDS[COMP_CWORD]}" rest="$COMP_LINE" i value
    local verb="" words="" takes="" program=0
    local -a line=() from=()
    # bash parts words at = and : too, which stand in values; only a blank parts ours.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        if ((i)) && [[ "$rest" != [[:blank:]]* ]]; then
            line[${#line[@]}-1]+="${COMP_WORDS[i]}"
        else
            line+=("${COMP_WORDS[i]}")
            from+=("$i")
        fi
        rest="${rest#*"${COMP_WORDS[i]}"}"
    done
    value="${line[${#line[@]}-1]}"
    for ((i = 1; i < ${#line[@]} - 1; i++)); do
        if [[ -n "$takes" ]]; then
            takes=""
            continue
        fi
        case "${line[i]}" in
            @@{takers}) takes="${line[i]}" ;;
            --) case "$verb" in @@{runners}) program=${from[i + 1]}; break ;; esac ;;
            -*) ;;
            *) case "$verb" in
                "") verb="${line[i]}" ;;
                @@{runners}) program=${from[i]}; break ;;
            esac ;;
        esac
    done
    if ((program && program < COMP_CWORD)); then
        # The program's own words, as if they stood alone.
        if declare -F _command_offset >/dev/null; then
            _command_offset "$program"
        else
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
        fi
        return
    fi
    if ((program)) || [[ -z "$takes" && "$value" != -* ]]; then
        case "$verb" in @@{runners})
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -c -f -- "$word")
            return ;;
        esac
    fi
    if [[ -z "$takes" && "$value" == --*=* ]]; then
        takes="${value%%=*}"
        value="${value#*=}"
        [[ "$word" == "=" ]] && word=""
    fi
    COMPREPLY=()
    case "${takes:-$verb}" in
@@{values}
    esac
    [[ -n "$words" ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$value")
    # What bash takes for a word of its own is all that it replaces.
    COMPREPLY=("${COMPREPLY[@]#"${value%"$word"}"}")
}
complete -F _nvsharectl nvsharectl""")

_ZSH = _Script(r"""#compdef nvsharectl
_nvsharectl() {
    local context state line
    local -A opt_args
    local -a verbs=(@@{verbs})
    # -A: what stands behind the verb is the verb's.
    _arguments -C -A '-*' @@{options} '1: :->verb' '*:: :->rest'
    case "$state" in
        verb) _describe verb verbs ;;
        rest) case "${words[1]}" in
@@{rest}
        esac ;;
    esac
}
_nvsharectl_program() {
    if [[ "${words[1]}" == -- ]] && ((CURRENT > 1)); then
        shift words
        ((CURRENT--))
    fi
    _normal
}
# As a file of $fpath this is called; read in any other way, it only makes itself known.
if [[ "${funcstack[1]}" == _nvsharectl ]]; then
    _nvsharectl "$@"
else
    compdef _nvsharectl nvsharectl
fi
""".rstrip("\n"))

_FISH = _Script(r"""function __nvsharectl_words -d 'The verb; or -- and the words of its program'
    set -l words (commandline -opc)
    set -e words[1]
    set -l verb ''
    while set -q words[1]
        set -l word $words[1]
        set -e words[1]
        switch $word
            case @@{takers}
                set -e words[1]
            case --
                if contains -- "$verb" @@{runners}
                    printf '%s\n' -- $words
                    return
                end
            case '-*'
            case '*'
                if contains -- "$verb" @@{runners}
                    printf '%s\n' -- $word $words
                    return
                end
                test -z "$verb"; and set verb $word
        end
    end
    printf '%s\n' "$verb"
end
function __nvsharectl_at -d 'Whether that begins with one of these'
    set -l found (__nvsharectl_words)
    contains -- "$found[1]" $argv
end
function __nvsharectl_program -d 'What may follow the words of the program'
    set -l found (__nvsharectl_words)
    complete "--do-complete="(string join ' ' -- (string escape -- $found[2..]) (commandline -ct))
end
complete -c nvsharectl -f
@@{lines}""")


def bash(all_words: list[Words]) -> str:
    """For bash; put it into /usr/share/bash-completion/completions/nvsharectl."""
    lines = []
    for (files, values), names in valued(all_words).items():
        what = f"words={shlex.quote(' '.join(values))}"
        if files:
            what = "compopt -o filenames 2>/dev/null"
            what += '; mapfile -t COMPREPLY < <(compgen -f -- "$value")'
        lines.append(f"        {'|'.join(names)}) {what} ;;")
    for one in all_words:
        verbs = [] if one.verb else [each.verb for each in all_words if each.verb]
        known = " ".join([*verbs, *one.values, *(option.name for option in one.options)])
        lines.append(f"        {shlex.quote(one.verb)}) words={shlex.quote(known)} ;;")
    return _BASH.substitute(
        takers="|".join(takers(all_words)), runners="|".join(runners(all_words)),
        values="\n".join(lines),
    )


def zsh(all_words: list[Words]) -> str:
    """For zsh; put it as _nvsharectl into a folder of $fpath, or eval it after compinit."""
    own, *verbs = all_words
    lines = []
    for one in verbs:
        # zsh itself has words behind the first that is no option stand alone (*::).
        rest = "'*:: :_nvsharectl_program'" if one.runs else f"'*: :({' '.join(one.values)})'"
        lines.append(f"            {one.verb}) _arguments -S {_zsh_options(one)} {rest} ;;")
    return _ZSH.substitute(
        verbs=" ".join(shlex.quote(f"{one.verb}:{one.summary}") for one in verbs),
        options=_zsh_options(own), rest="\n".join(lines),
    )


def _zsh_options(of: Words) -> str:
    """As _arguments wants them: '--bus=[what it is]:value:(system session)'."""
    specs = []
    for option in of.options:
        # The value stands behind "=" or in the next word; of a short one, at once or there.
        form = "=" if option.name.startswith("--") else "+"
        what = re.sub(r"([]\[\\:])", r"\\\1", option.help)
        spec = f"{option.name}{form if option.takes else ''}[{what}]"
        if option.takes:
            listed = f"({' '.join(option.values)})" if option.values else " "
            spec += f":value:{'_files' if option.files else listed}"
        specs.append(shlex.quote(spec))
    return " ".join(specs)


def fish(all_words: list[Words]) -> str:
    """For fish; put it into ~/.config/fish/completions/nvsharectl.fish."""
    lines = []
    for one in all_words:
        there = _fish_at(one.verb)
        if one.verb:
            lines.append(f"{_fish_at('')} -a {one.verb} -d {_quoted(one.summary)}")
        if one.verb and one.values:
            lines.append(f"{there} -a {_quoted(' '.join(one.values))}")
        if one.runs:
            lines.append(f"{_fish_at(one.verb, '--')} -a '(__nvsharectl_program)' -F")
        for option in one.options:
            form = "-l" if option.name.startswith("--") else "-s"
            takes = (" -r -F" if option.files else " -x") if option.takes else ""
            if option.values:
                takes += f" -a {_quoted(' '.join(option.values))}"
            name = option.name.lstrip("-")
            lines.append(f"{there} {form} {name}{takes} -d {_quoted(option.help)}")
    return _FISH.substitute(
        takers=" ".join(takers(all_words)), runners=" ".join(runners(all_words)),
        lines="\n".join(lines),
    )


def _fish_at(*places: str) -> str:
    where = " ".join(place or '""' for place in places)
    return f"complete -c nvsharectl -n {_quoted(f'__nvsharectl_at {where}')}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS = ("bash", "zsh", "fish")


def _configure_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _act_completion(options: Options) -> None:
    script = {"bash": bash, "zsh": zsh, "fish": fish}[options.shell]
    print(script(words(options.parser)))


COMPLETION = Verb(
    name="completion",
    summary="print what makes the Tab key work in a shell",
    description="Prints a completion script for bash, zsh or fish.",
    examples=(
        ('eval "$(nvsharectl completion bash)"', "in ~/.bashrc"),
        ('eval "$(nvsharectl completion zsh)"', "in ~/.zshrc, after compinit"),
        ("nvsharectl completion fish > ~/.config/fish/completions/nvsharectl.fish", "once"),
    ),
    configure=_configure_completion,
    act=_act_completion,
)


def _configure_help(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("about", metavar="HELP", nargs="?", help="about one verb; without it, all")


def _act_help(options: Options) -> None:
    options.parser.parse_args([options.about, "--help"] if options.about else ["--help"])


HELP = Verb(
    name="help",
    summary="the same as --help",
    description="Prints the help of nvsharectl, or that of one verb.",
    examples=(("nvsharectl help limit", "the same as: nvsharectl limit --help"),),
    configure=_configure_help,
    act=_act_help,
)
