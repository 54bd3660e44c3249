# SPDX-License-Identifier: Apache-2.0
"""nvsharectl completion: completes words at the Tab key in bash, zsh and fish; nvsharectl help.

A shell runs `nvsharectl completion SHELL WORD...`, which prints the candidates for the last word,
one a line; or @files where a path is due; or `@program N` if word N is another program's name."""

import argparse
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from nvshared.cli.verb import Options, argument, verb

FILES = frozenset({"PATH", "DIR", "FILE"})      # metavars of arguments that are paths
KNOWN = {"BUS": ("system", "session")}  # suggested values; BUS may also be a D-Bus address

# bash also splits words at = and :, so the script joins words that no blank separates. bash keeps
# the part before the last = or :, so the script strips that part from each candidate.
BASH = r"""_nvsharectl() {
    local word="${COMP_WORDS[COMP_CWORD]}" rest="$COMP_LINE" i value
    local -a line=() from=()
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
    [[ "$value" == --*=* ]] && value="${value#*=}"
    mapfile -t COMPREPLY < <(nvsharectl completion bash "${line[@]:1}" 2>/dev/null)
    case "${COMPREPLY[0]}" in
        @files)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$value") ;;
        "@program "*)
            i=${from[${COMPREPLY[0]#@program }]}
            compopt -o filenames 2>/dev/null
            if ((i == COMP_CWORD)); then
                mapfile -t COMPREPLY < <(compgen -c -f -- "$word")
            elif declare -F _command_offset >/dev/null; then
                _command_offset "$i"
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$word")
            fi
            return ;;
    esac
    [[ "$word" == "=" ]] && word=""
    COMPREPLY=("${COMPREPLY[@]#"${value%"$word"}"}")
}
complete -F _nvsharectl nvsharectl"""

ZSH = r"""#compdef nvsharectl
_nvsharectl() {
    local -a found
    found=("${(@f)$(nvsharectl completion zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    [[ "$PREFIX" == --*=* ]] && compset -P '*='
    case "${found[1]}" in
        @files) _files ;;
        "@program "*)
            shift "${found[1]#@program }" words
            ((CURRENT -= ${found[1]#@program }))
            _normal ;;
        ?*) _describe nvsharectl found ;;
    esac
}
# Zsh runs this file at a completion if $fpath has it. If sourced, it only registers the function.
if [[ "${funcstack[1]}" == _nvsharectl ]]; then
    _nvsharectl "$@"
else
    compdef _nvsharectl nvsharectl
fi"""

FISH = r"""function __nvsharectl
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l found (nvsharectl completion fish $words[2..] "$word" 2>/dev/null)
    switch "$found[1]"
        case @files
            set -l parts (string match -r -- '^((?:--[^=]*=)?)(.*)$' "$word")
            printf '%s\n' "$parts[2]"(__fish_complete_path "$parts[3]")
        case '@program *'
            set -l first (math (string split ' ' "$found[1]")[2] + 1)
            set -l line (string escape -- $words[$first..]) "$word"
            complete "--do-complete="(string join ' ' -- $line)
        case '*'
            printf '%s\n' $found
    end
end
complete -c nvsharectl -f -a '(__nvsharectl)'"""

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def offered(parser: argparse.ArgumentParser, words: Sequence[str], shell: str) -> Iterator[str]:
    """Yields the lines that the completion script reads. Finds the verb as argparse finds it."""
    *before, typed = words
    verbs = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    known = [parser, *verbs.choices.values()]
    taking = {name: action for one in known for name, action in one._option_string_actions.items()
              if action.nargs != 0}
    verb, option = "", None             # `option`: the option with the next word as its value
    for at, word in enumerate(before, 1):
        runs = _runs(verbs, verb)
        if option is not None:
            option = None
        elif word == "--" and runs:
            yield f"@program {at + 1}"
            return
        elif word.startswith("-"):
            option = taking.get(word)
        elif runs:
            yield f"@program {at}"
            return
        else:
            verb = verb or word
    if verb and verb not in verbs.choices:
        return
    start = ""
    if option is None and typed.startswith("--") and "=" in typed:
        name, _, typed = typed.partition("=")
        option, start = taking.get(name), f"{name}=" if shell == "fish" else ""
    if option is not None:
        if option.metavar in FILES:
            yield "@files"
        found = dict.fromkeys(_values(option), "")
    elif not typed.startswith("-") and _runs(verbs, verb):
        yield f"@program {len(words)}"
        return
    else:
        found = _after(parser, verbs, verb, options=shell == "bash" or typed.startswith("-"))
    for word, help in found.items():
        if word.startswith(typed):
            yield start + _described(word, help, shell)


def _after(parser: argparse.ArgumentParser, verbs: Verbs, verb: str, *,
           options: bool) -> dict[str, str]:
    found = {} if verb else {one.dest: one.help or "" for one in verbs._choices_actions}
    for action in (verbs.choices[verb] if verb else parser)._actions:
        if options:
            found |= dict.fromkeys(action.option_strings, action.help or "")
        if not action.option_strings and action is not verbs:
            found |= dict.fromkeys(_values(action), "")
    return found


def _runs(verbs: Verbs, verb: str) -> bool:
    return verb in verbs.choices and any(
        one.nargs == argparse.REMAINDER and one.help != argparse.SUPPRESS
        for one in verbs.choices[verb]._actions)


def _values(action: argparse.Action) -> tuple[str, ...]:
    """The argument's choices, or the literal words of its metavar: `auto` of SECONDS|auto."""
    if action.choices is not None:
        return tuple(action.choices)
    meant = str(action.metavar)
    return KNOWN.get(meant) or tuple(one for one in meant.split("|")[1:] if one.islower())


def _described(word: str, help: str, shell: str) -> str:
    if shell == "bash" or not help:
        return word.replace(":", r"\:") if shell == "zsh" else word
    help = " ".join(help.split())
    return f"{word}\t{help}" if shell == "fish" else f"{word}:{help}"


@verb(
    "completion",
    argument("shell", "SHELL", ", ".join(SCRIPTS), choices=SCRIPTS),
    argument("words", "", argparse.SUPPRESS, nargs=argparse.REMAINDER))
def completion(options: Options) -> None:
    """Print the script that makes the Tab key complete words.

    Prints a completion script for bash, zsh or fish.

        eval "$(nvsharectl completion bash)"                                     # in ~/.bashrc
        eval "$(nvsharectl completion zsh)"  # in ~/.zshrc, after compinit
        nvsharectl completion fish > ~/.config/fish/completions/nvsharectl.fish  # once
    """
    if options.words:
        print("\n".join(offered(options.parser, options.words, options.shell)))
    else:
        print(SCRIPTS[options.shell])


@verb("help", argument("about", "HELP", "the verb to explain (default: all)", nargs="?"))
def help(options: Options) -> None:
    """The same as --help.

    Prints the help of nvsharectl, or that of one verb.

        nvsharectl help limit  # the same as: nvsharectl limit --help
    """
    options.parser.parse_args([*filter(None, [options.about]), "--help"])
