# SPDX-License-Identifier: Apache-2.0
"""The parser of the command lines of all commands."""

import argparse
from typing import NoReturn

from nvshared.errors import InvalidArgs

PATHS = frozenset({"PATH", "DIR", "FILE"})      # metavars of arguments that are paths


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises InvalidArgs instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raises InvalidArgs with the message and a hint to --help."""
        raise InvalidArgs(message, f"see: {self.prog} --help")
