# SPDX-License-Identifier: Apache-2.0
"""The parser of the command lines of all commands."""

import argparse
import re
from pathlib import Path
from typing import Any, NoReturn

from nvshared.errors import InvalidArgs

PATHS = frozenset({"PATH", "DIR", "FILE"})      # metavars of arguments that are paths
NEGATIVE = re.compile(r"-\.?\d")        # the begin of a value, not of an option


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises InvalidArgs instead of exiting."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # -5GiB and -1d are values, too: they are refused by the option that they are given to.
        self._negative_number_matcher = NEGATIVE

    def error(self, message: str) -> NoReturn:
        """Raises InvalidArgs with the message and a hint to --help."""
        raise InvalidArgs(message, f"see: {self.prog} --help")


def absolute(text: str) -> Path:
    """The path of an option, which may be relative to the working directory.

    Raises ArgumentTypeError."""
    if not text:                        # pathlib takes it for the working directory
        raise argparse.ArgumentTypeError("'' is no path")
    try:
        return Path(text).absolute()
    except FileNotFoundError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is relative to the working directory, which was removed") from None
