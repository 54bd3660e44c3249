# SPDX-License-Identifier: Apache-2.0
"""nvsharectl suspend and resume: have a program leave the GPU for a while."""

from functools import partial

from nvshared.cli.output import show
from nvshared.cli.steps import change, where
from nvshared.cli.verb import Options, Verb, add_client
from nvshared.control import Daemon


def _act(suspended: bool, options: Options) -> None:
    put, become, now = Daemon.resume, "resumed", "no longer suspended"
    if suspended:
        put, become, now = Daemon.suspend, "suspended", "suspended"
    data = change(
        options, options.pid, f"process {options.pid}", {"suspended": suspended}, put, become)
    show(options, data, lambda: print(f"Process {options.pid} is {now}{where(options.gpu)}."))


SUSPEND = Verb(
    name="suspend",
    summary="have a program leave the GPU until it is resumed",
    description=(
        "Ends the program's turn and moves its memory to the host. The program goes on until it "
        "needs the GPU, and then waits."
    ),
    examples=(("nvsharectl suspend 4711", "until: nvsharectl resume 4711"),),
    configure=add_client,
    act=partial(_act, True),
)
RESUME = Verb(
    name="resume",
    summary="let a suspended program use the GPU again",
    description="Puts a program that was suspended back in the queue.",
    examples=(("nvsharectl resume 4711", "after: nvsharectl suspend 4711"),),
    configure=add_client,
    act=partial(_act, False),
)
