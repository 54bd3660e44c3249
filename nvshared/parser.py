# SPDX-License-Identifier: Apache-2.0
"""The command line, as all our commands read it."""

import argparse
from typing import NoReturn

from nvshared.errors import InvalidArgs


class Parser(argparse.ArgumentParser):
    """argparse, whose complaints are raised as InvalidArgs."""

    def error(self, message: str) -> NoReturn:
        """One sentence and where to read more."""
        raise InvalidArgs(message, f"see: {self.prog} --help")
