# SPDX-License-Identifier: Apache-2.0
"""The command line of nvshared, made from the table of settings."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvshared import __version__
from nvshared.parser import Parser
from nvshared.settings.config import DEFAULT_FILE, options

DESCRIPTION = """\
Lets several programs share the machine's NVIDIA GPUs, each as if it were alone.
Programs that do not fit together take turns. Memory that does not fit waits on
the host.
"""

EPILOG = f"""\
Usually systemd runs it:       systemctl enable --now nvshared
To try it without root:        nvshared --bus session --socket /tmp/nvshare.sock
and then, in another terminal:
  NVSHARE_SOCKET=/tmp/nvshare.sock nvsharectl run -- python train.py
and to see what happens:       nvsharectl --bus session status

Each setting can also stand in {DEFAULT_FILE} or in
{DEFAULT_FILE}.d/*.conf; the last one wins. When a file has changed,
and at SIGHUP, all are read again; settings of [gpu] and debug hold at once.
Rules for users, units, pods, jobs and containers stand there too, in sections
[tenant PATTERN].
"""

PATHS = frozenset({"PATH", "DIR", "FILE"})


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="nvshared", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
                  formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--version", action="version", version=f"nvshared {__version__}")
    made.add_argument(
        "--config", metavar="FILE", type=Path, help=f"the settings' file (default: {DEFAULT_FILE})")
    made.add_argument("--check", action="store_true",
                      help="read all settings, say what is wrong with them, and end; start nothing")
    groups = {
        "nvshared": made.add_argument_group("the daemon ([nvshared] in the file)"),
        "gpu": made.add_argument_group("the cards ([gpu] in the file)")}
    for option in options():
        words = f"{option.help} (default: {option.default}"
        if option.variable:
            takes = f", {option.variable_words}" if option.variable_words else ""
            words += f"; environment: {option.variable}{takes}"
        kind: dict[str, Any] = {"action": "store_const", "const": "on"}
        if option.metavar:
            kind = {"metavar": option.metavar, "type": _path if option.metavar in PATHS else str}
        groups[option.section].add_argument(
            f"--{option.name}", help=words.replace("%", "%%") + ")", **kind)
    return made


def _path(text: str) -> str:
    """Makes a path absolute: on the command line it may be relative to the working directory."""
    return text if text == "none" else str(Path(text).absolute())


def parse(arguments: Sequence[str] | None) -> tuple[Path | None, dict[str, str], bool]:
    """Returns --config, the given options by name, and whether --check was given.

    Raises InvalidArgs."""
    given = vars(parser().parse_args(arguments))
    found = {option.name: text for option in options()
             if (text := given[option.attribute]) is not None}
    return given["config"], found, given["check"]
