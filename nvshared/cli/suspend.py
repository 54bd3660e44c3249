# SPDX-License-Identifier: Apache-2.0
"""nvsharectl suspend: have a program leave the GPU for a while."""

from functools import partial

from nvshared.cli.output import show
from nvshared.cli.steps import Step, carry_out, where
from nvshared.cli.verb import Options, Verb, add_client
from nvshared.control import Daemon
from nvshared.errors import ExitCode


def _act(options: Options) -> ExitCode:
    with Daemon(options.bus) as client:
        carry_out([
            Step(
                f"process {options.pid}", {"gpu": gpu, "suspended": True},
                partial(client.suspend, one),
            )
            for one, gpu in client.clients_of(options.pid, options.gpu).items()
        ], "suspended")
    show(
        options, {"pid": options.pid, "gpu": options.gpu, "suspended": True},
        lambda: print(f"Process {options.pid} is suspended{where(options.gpu)}."),
    )
    return ExitCode.OK


VERB = Verb(
    name="suspend",
    summary="have a program leave the GPU until it is resumed",
    description=(
        "Ends the program's turn and moves its memory to the host. The program goes on until it "
        "needs the GPU, and then waits."
    ),
    examples=(("nvsharectl suspend 4711", "until: nvsharectl resume 4711"),),
    configure=add_client,
    act=_act,
)
