# SPDX-License-Identifier: Apache-2.0
"""nvsharectl demo: two programs that do not fit together share one GPU."""

import sys

from nvshared.cli.output import show, show_table
from nvshared.cli.verb import Options, Verb, argument
from nvshared.errors import ExitCode


def _act(options: Options) -> ExitCode:
    from nvshared.demo.play import COLUMNS, run

    # With --json standard output is for JSON alone.
    report = run(simulate=options.simulate, file=sys.stderr if options.json else sys.stdout)
    faults = report.faults()

    def text() -> None:
        print()
        show_table(COLUMNS, report.acts)
        for fault in faults:
            print(f"WRONG  {fault}")

    show(options, report.as_dict(), text)
    return ExitCode.FAILURE if faults else ExitCode.OK


DEMO = Verb(
    name="demo",
    summary="see two programs that do not fit together share one GPU",
    description=(
        "Runs two programs that each need 70 % of a GPU's memory: together with nvshared, one "
        "after the other, and together without nvshared, where the second gets out of memory. It "
        "checks every word that they compute. It uses a daemon of its own and leaves nothing "
        "behind. Without an NVIDIA GPU it simulates one. Takes less than a minute."
    ),
    examples=(
        ("nvsharectl demo", "on the GPU, if there is one"),
        ("nvsharectl demo --simulate", "on a simulated one"),
    ),
    arguments=(
        argument(
            "--simulate", action="store_true",
            help="use a simulated GPU, even if this machine has a real one",
        ),
    ),
    act=_act,
)
