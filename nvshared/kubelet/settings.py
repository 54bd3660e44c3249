# SPDX-License-Identifier: Apache-2.0
"""Options by node label: one DaemonSet serves nodes of several kinds.

The last text is kept in the folder --state, for starts while the API server does not answer."""

import logging
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nvshared.containers.cdi import replace
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kept import read_regular
from nvshared.kubelet.options import SETTINGS_DEFAULT, SETTINGS_LABEL, Options, parse

logger = logging.getLogger(__name__)

KEPT = "settings"                       # file in the folder --state
CHANGEABLE = ("replicas", "classes", "foreign")
NAME = re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", re.ASCII)    # a label's value, and a file


class NodeSettings:
    """The options of the command line together with those of the node's file."""

    def __init__(self, arguments: Sequence[str] | None, options: Options) -> None:
        self._arguments = sys.argv[1:] if arguments is None else arguments
        self._folder: Path = options.settings
        self._kept = options.state / KEPT
        self._text: str | None = None
        self._written: str | None = None    # the text in the file of --state
        self._problem = ""

    def last(self) -> Options | None:
        """The options as they were in an earlier process; None: not known, or not usable."""
        with suppress(OSError, NvshareError):
            return self._parsed(_text(self._kept))
        return None

    def changed(self, labels: Mapping[str, str]) -> Options | None:
        """The options for a node with these labels, if they are others than at the last call."""
        try:
            text = self._read(labels.get(SETTINGS_LABEL, ""))
            options = None if text == self._text else self._parsed(text)
        except (NvshareError, OSError) as error:
            self._complain("the node's settings are not used", error)
            return None
        try:
            if text != self._written:   # again at each call after a failure: the disk was full
                replace(self._kept, text.encode())
            self._written, self._problem = text, ""
        except OSError as error:
            self._complain("the node's settings hold, and are not kept for the next start", error)
        if options is not None:
            self._text = text
            logger.info("the node's settings: %s",
                        " ".join(shlex.split(text, comments=True)) or "none")
        return options

    def _complain(self, words: str, error: Exception) -> None:
        if self._problem != (problem := f"{words}: {error}"):
            logger.error("%s", problem)
        self._problem = problem

    def _read(self, name: str) -> str:
        """The text of the node's file. Raises InvalidArgs; OSError."""
        if not name:
            path = self._folder / SETTINGS_DEFAULT
            return _text(path) if path.exists() else ""
        if not NAME.fullmatch(name) or not (path := self._folder / name).is_file():
            there = sorted(one.name for one in self._folder.iterdir() if one.is_file())
            raise InvalidArgs(
                f"the label {SETTINGS_LABEL} of the node cannot be {name!r}",
                f"{self._folder} has {', '.join(there) or 'no file'}")
        return _text(path)

    def _parsed(self, text: str) -> Options:
        try:
            options = parse([*self._arguments, *shlex.split(text, comments=True)])
        except (ValueError, SystemExit) as error:       # --help ends a program
            raise InvalidArgs(f"{text!r} cannot be used as options: {error}") from None
        # Not the options of __init__(): the main program adds kubelet's folder to them.
        given = vars(parse(self._arguments))
        for name, value in vars(options).items():
            if name not in CHANGEABLE and given[name] != value:
                raise InvalidArgs(
                    f"a file of --settings cannot have --{name}",
                    "it may have --replicas, --priority-class and --foreign-annotations")
        return options


def _text(path: Path) -> str:
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgs(f"{path} is not text: {error}") from None
