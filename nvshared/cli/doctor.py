# SPDX-License-Identifier: Apache-2.0
"""nvsharectl doctor: prints the faults that keep programs from sharing GPUs, with advice."""

import shutil
import sys
import textwrap
from functools import partial
from typing import TYPE_CHECKING

from nvshared import __version__
from nvshared.cli.verb import NARROWEST, Options, draw, drawable, show, verb
from nvshared.errors import ExitCode
from nvshared.quantity import counted

if TYPE_CHECKING:
    from nvshared.doctor import Finding

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "fault": "bold red"}
TOPICS = 17                             # characters of a topic; the longest is nvshared.service


@verb("doctor")
def doctor(options: Options) -> ExitCode:
    """Find faults that keep programs from sharing GPUs.

    Checks the packages, nvshared and its bus, the driver and GPUs, programs that use a GPU without
    sharing it, static pods of Kubernetes that lack the GPU they request, and host memory. Each
    finding comes with advice. Needs neither nvshared nor a bus, a driver or root, but root sees
    more. The exit status is 1 if programs cannot share their GPUs.

        nvsharectl doctor         # everything, with advice
        nvsharectl doctor --json  # the same as data, to report a problem with
        sudo nvsharectl doctor    # looks into other users' programs, too
    """
    from nvshared.doctor import examine

    findings = examine(options.bus)
    faults = sum(finding.grade == "fault" for finding in findings)
    data = {"version": __version__, "healthy": not faults,
            "findings": [finding._asdict() for finding in findings]}
    show(options, data, lambda: _print(findings, faults))
    return ExitCode.FAILURE if faults else ExitCode.OK


def _print(findings: "list[Finding]", faults: int) -> None:
    for finding in findings:
        if drawable():
            from rich.text import Text

            text = Text(_text(finding, max(NARROWEST, shutil.get_terminal_size().columns)))
            text.stylize(STYLES[finding.grade], 0, len(finding.grade))
            draw(text)
        else:
            print(_text(finding, sys.maxsize))
    print()
    print("Programs on this machine can share their GPUs." if not faults else
          f"Programs on this machine cannot share their GPUs: {counted(faults, 'fault')}.")


def _text(finding: "Finding", width: int) -> str:
    start = f"{finding.grade:8} {finding.topic:{TOPICS}} "
    rest = " " * len(start)
    fold = partial(textwrap.wrap, width=width, break_on_hyphens=False)
    lines = fold(finding.words, initial_indent=start, subsequent_indent=rest)
    if finding.advice:
        lines += fold(f"→ {finding.advice}", initial_indent=rest, subsequent_indent=rest + "  ")
    return "\n".join(lines)
