# SPDX-License-Identifier: Apache-2.0
"""The parser of the command lines of all commands."""

import argparse
from pathlib import Path
from typing import NoReturn

from nvshared.errors import InvalidArgs

PATHS = frozenset({"PATH", "DIR", "FILE"})      # metavars of arguments that are paths


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises InvalidArgs instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raises InvalidArgs with the message and a hint to --help."""
        raise InvalidArgs(message, f"see: {self.prog} --help")


def absolute(text: str) -> Path:
    """The path of an option, which may be relative to the working directory.

    Raises ArgumentTypeError."""
    try:
        return Path(text).absolute()
    except FileNotFoundError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is relative to the working directory, which was removed") from None
