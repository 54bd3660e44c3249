# SPDX-License-Identifier: Apache-2.0
"""nvsharectl doctor: prints what keeps programs from sharing GPUs, with advice."""

import shutil
import textwrap
from typing import TYPE_CHECKING

from nvshared.cli.output import NARROWEST, draw, drawable, show
from nvshared.cli.verb import Options, verb
from nvshared.errors import ExitCode

if TYPE_CHECKING:
    from nvshared.doctor import Examination, Finding

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "fault": "bold red"}
TOPICS = 17                             # characters of the column; the longest is nvshared.service


@verb("doctor")
def doctor(options: Options) -> ExitCode:
    """What keeps programs from sharing GPUs, and what to do.

    Looks at what is installed, at nvshared and whether it can be reached, at the driver and the
    GPUs, at programs that use a GPU without sharing it, at static pods of Kubernetes that lack the
    GPU they ask for, and at host memory. For each it says what to do. It needs neither nvshared nor
    a bus, a driver or root, but root sees more. The exit status is 1 if programs cannot share their
    GPUs, and 0 otherwise.

        nvsharectl doctor         # everything, with advice
        nvsharectl doctor --json  # the same as data, to report a problem with
        sudo nvsharectl doctor    # looks into other users' programs, too
    """
    from nvshared.doctor import examine

    examination = examine(options.bus)
    show(options, examination.as_dict(), lambda: _print(examination))
    return ExitCode.OK if examination.healthy else ExitCode.FAILURE


def _print(examination: "Examination") -> None:
    drawn = drawable()
    width = max(NARROWEST, shutil.get_terminal_size().columns) if drawn else 0
    for finding in examination.findings:
        lines = _lines(finding, width)
        if drawn:
            from rich.text import Text

            text = Text("\n".join(lines))
            text.stylize(STYLES[finding.grade], 0, len(finding.grade))
            draw(text)
        else:
            print("\n".join(lines))
    faults = sum(finding.grade == "fault" for finding in examination.findings)
    print()
    if not faults:
        print("Programs on this machine can share their GPUs.")
    else:
        what = "this keeps" if faults == 1 else f"these {faults} faults keep"
        print(f"Programs cannot share their GPUs here: {what} them from it.")


def _lines(finding: "Finding", width: int) -> list[str]:
    """The finding as lines, folded to `width` characters; 0: not folded, for a pipe."""
    start = f"{finding.grade:8} {finding.topic:{TOPICS}} "
    rest = " " * len(start)
    advice = [f"→ {finding.advice}"] if finding.advice else []
    if not width:
        return [start + finding.words, *(rest + line for line in advice)]
    lines = textwrap.wrap(
        finding.words, width, initial_indent=start, subsequent_indent=rest, break_on_hyphens=False
    )
    for line in advice:
        lines += textwrap.wrap(
            line, width, initial_indent=rest, subsequent_indent=rest + "  ", break_on_hyphens=False
        )
    return lines
