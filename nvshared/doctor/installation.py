# SPDX-License-Identifier: Apache-2.0
"""What is installed: the library, and whether every program is to have it."""

import os
from collections.abc import Iterator
from pathlib import Path

from nvshared import __version__, library
from nvshared.doctor.finding import Finding, fault, note, ok, warning
from nvshared.errors import NvshareError
from nvshared.preload import switch, trial
from nvshared.preload.tree import Tree

MACHINE = Tree(Path("/"))


def findings() -> Iterator[Finding]:
    """The command itself, the library, and the list of preloaded ones."""
    yield ok("nvsharectl", f"version {__version__}, in {Path(__file__).parents[1]}")
    yield _library()
    yield _preload()
    named = [
        entry for entry in os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
        if Path(entry).name == "libnvshare.so"
    ]
    if named:
        yield note("environment", f"LD_PRELOAD names {named[0]} here")


def _library() -> Finding:
    try:
        path = library.hook().resolve()
        trial.check(MACHINE, path)
    except NvshareError as error:
        return fault("library", error.message, error.hint or "install it again")
    return ok("library", f"{path} can be loaded by this machine's programs")


def _preload() -> Finding:
    try:
        state = switch.look(MACHINE)
    except NvshareError as error:
        return warning("preload", error.message, error.hint or "see: nvsharectl preload status")
    if state.fault:
        return fault(
            "preload", f"{state.place} is not right: {state.fault}",
            "put it right with: nvsharectl preload enable, or disable",
        )
    if state.enabled:
        return ok("preload", f"every program has {state.entries[0]}, by {state.place}")
    return note(
        "preload", "only programs that are started so share their GPU",
        "start them with: nvsharectl run -- PROGRAM, or have all do it: nvsharectl preload enable",
    )
