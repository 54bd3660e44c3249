# SPDX-License-Identifier: Apache-2.0
"""nvsharectl resume: let a suspended program use the GPU again."""

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
                f"process {options.pid}", {"gpu": gpu, "suspended": False},
                partial(client.resume, one),
            )
            for one, gpu in client.clients_of(options.pid, options.gpu).items()
        ], "resumed")
    show(
        options, {"pid": options.pid, "gpu": options.gpu, "suspended": False},
        lambda: print(f"Process {options.pid} is no longer suspended{where(options.gpu)}."),
    )
    return ExitCode.OK


VERB = Verb(
    name="resume",
    summary="let a suspended program use the GPU again",
    description="Puts a program that was suspended back in the queue.",
    examples=(("nvsharectl resume 4711", "after: nvsharectl suspend 4711"),),
    configure=add_client,
    act=_act,
)
