# SPDX-License-Identifier: Apache-2.0
"""nvsharectl completion: the Tab key, made from the parser."""

import argparse

from nvshared.cli.verb import Options, Verb

SHELLS = ("bash", "zsh", "fish")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _act(options: Options) -> None:
    from nvshared.cli import shells
    from nvshared.cli.words import words

    script = {"bash": shells.bash, "zsh": shells.zsh, "fish": shells.fish}[options.shell]
    print(script(words(options.parser)))


VERB = Verb(
    name="completion",
    summary="print what makes the Tab key work in a shell",
    description="Prints a completion script for bash, zsh or fish.",
    examples=(
        ('eval "$(nvsharectl completion bash)"', "in ~/.bashrc"),
        ('eval "$(nvsharectl completion zsh)"', "in ~/.zshrc, after compinit"),
        ("nvsharectl completion fish > ~/.config/fish/completions/nvsharectl.fish", "once"),
    ),
    configure=_configure,
    act=_act,
)
