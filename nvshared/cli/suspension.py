# SPDX-License-Identifier: Apache-2.0
"""nvsharectl suspend and resume: have a program or tenant leave the GPU for a while."""

import argparse
import time
from functools import partial

from nvshared.cli.output import show
from nvshared.cli.steps import change, where
from nvshared.cli.tenant import set_terms
from nvshared.cli.verb import Options, Verb, add_target
from nvshared.control import Daemon
from nvshared.tui.tables import user

POLL = 0.02                             # seconds


def _configure(suspended: bool, parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    if suspended:
        parser.add_argument(
            "--wait", action="store_true", help="return when nothing that can leave is on the GPU",
        )


def _act(suspended: bool, options: Options) -> None:
    if isinstance(options.target, str):
        set_terms(options, options.target, {"suspended": int(suspended)})
    else:
        _change(suspended, options)
    if suspended and options.wait:
        with Daemon(options.bus) as daemon:
            while _on_a_gpu(daemon, options):
                time.sleep(POLL)


def _change(suspended: bool, options: Options) -> None:
    put, become, now = Daemon.resume, "resumed", "no longer suspended"
    if suspended:
        put, become, now = Daemon.suspend, "suspended", "suspended"
    pid = options.target
    data = change(options, pid, f"process {pid}", {"suspended": suspended}, put, become)
    show(options, data, lambda: print(f"Process {pid} is {now}{where(options.gpu)}."))


def _on_a_gpu(daemon: Daemon, options: Options) -> bool:
    index, target = None if options.gpu is None else daemon.gpu(options.gpu), options.target
    return any(
        one.state != "suspended" or (one.resident and not one.stays)
        for one in daemon.snapshot().clients
        if target in (one.pid, one.tenant, f"user:{user(one.uid)}") and index in (None, one.gpu)
    )


SUSPEND = Verb(
    name="suspend",
    summary="have a program or tenant leave the GPU until it is resumed",
    description=(
        "Ends the program's turn and moves its memory to the host. The program goes on until it "
        "needs the GPU, and then waits. For a tenant (a user, unit, container, job or pod), that "
        "is so for all its programs, also for those to come."
    ),
    examples=(
        ("nvsharectl suspend 4711", "until: nvsharectl resume 4711"),
        ("nvsharectl suspend --wait job:4711", "returns when its memory has left the GPU"),
    ),
    configure=partial(_configure, True),
    act=partial(_act, True),
)
RESUME = Verb(
    name="resume",
    summary="let a suspended program or tenant use the GPU again",
    description=(
        "Puts a program that was suspended back in the queue. One that was suspended itself and "
        "with its tenant needs both."
    ),
    examples=(
        ("nvsharectl resume 4711", "after: nvsharectl suspend 4711"),
        ("nvsharectl resume job:4711", "after: nvsharectl suspend job:4711"),
    ),
    configure=partial(_configure, False),
    act=partial(_act, False),
)
