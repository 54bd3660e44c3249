# SPDX-License-Identifier: Apache-2.0
"""nvsharectl completion: completes words at the Tab key in bash, zsh and fish; nvsharectl help.

A shell runs nvsharectl with _ARGCOMPLETE in the environment, and argcomplete prints candidates."""

import argparse
import subprocess
from collections.abc import Iterable
from typing import Any

from nvshared.cli.verb import Options, argument, verb
from nvshared.parser import PATHS

KNOWN = {"BUS": ("system", "session")}  # suggested values; BUS may also be a D-Bus address
SHELLS = ("bash", "zsh", "fish")


def print_candidates(parser: argparse.ArgumentParser, shell: str) -> None:
    """Prints the candidates for the word at the cursor, and exits."""
    import argcomplete

    values: Any = _values               # typed as Any: argcomplete's annotation excludes a function
    argcomplete.autocomplete(
        parser, default_completer=values, always_complete_options=shell == "bash")


def _values(prefix: str, action: argparse.Action, parsed_args: Options, **_: Any) -> Iterable[str]:
    """The candidates for an argument without choices: paths, programs, `auto` of TIME|auto."""
    from argcomplete.completers import FilesCompleter

    meant, runs = str(action.metavar), action.nargs == argparse.REMAINDER
    if meant not in PATHS and not runs:
        return KNOWN.get(meant) or [one for one in meant.split("|")[1:] if one.islower()]
    found: list[str] = FilesCompleter()(prefix)
    if runs and parsed_args.command in ([], ["--"]):
        programs = subprocess.run(["bash", "-c", 'compgen -c -- "$0"', prefix], text=True,
                                  capture_output=True, check=False)
        found += programs.stdout.split()
    return found


@verb("completion", argument("shell", "SHELL", ", ".join(SHELLS), choices=SHELLS))
def completion(options: Options) -> None:
    """Print the script that makes the Tab key complete words.

    Prints a completion script for bash, zsh or fish.

        eval "$(nvsharectl completion bash)"                                     # in ~/.bashrc
        eval "$(nvsharectl completion zsh)"  # in ~/.zshrc, after compinit
        nvsharectl completion fish > ~/.config/fish/completions/nvsharectl.fish  # once
    """
    from argcomplete.shell_integration import shellcode

    print(shellcode(["nvsharectl"], use_defaults=False, shell=options.shell))


@verb("help", argument("about", "HELP", "the verb to explain (default: all)", nargs="?"))
def help(options: Options) -> None:
    """The same as --help.

    Prints the help of nvsharectl, or that of one verb.

        nvsharectl help limit  # the same as: nvsharectl limit --help
    """
    options.parser.parse_args([*filter(None, [options.about]), "--help"])
