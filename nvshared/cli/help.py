# SPDX-License-Identifier: Apache-2.0
"""nvsharectl help: what --help prints, for those who type it as a verb."""

import argparse

from nvshared.cli.verb import Options, Verb


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("about", metavar="VERB", nargs="?", help="about one verb; without it, all")


def _act(options: Options) -> None:
    options.parser.parse_args([options.about, "--help"] if options.about else ["--help"])


VERB = Verb(
    name="help",
    summary="the same as --help",
    description="Prints the help of nvsharectl, or that of one verb.",
    examples=(("nvsharectl help limit", "the same as: nvsharectl limit --help"),),
    configure=_configure,
    act=_act,
)
