# SPDX-License-Identifier: Apache-2.0
"""nvsharectl preempt, drain, park and move."""

import time
from collections.abc import Callable
from functools import partial

from nvshared.cli.settings import Step, carry_out
from nvshared.cli.verb import LONGEST_PID, Options, argument, show, verb, whole
from nvshared.control import Daemon
from nvshared.control.snapshot import ClientSnapshot
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.quantity import counted
from nvshared.tui.tables import command, process, size


@verb(
    "preempt",
    argument(
        "gpu", "GPU", "index, UUID or PCI address; not needed where there is one GPU", nargs="?"))
def preempt(options: Options) -> None:
    """End the present turns on a GPU at once, if a program waits.

    The program that has waited longest gets its turn now; those that must make room queue again.

        nvsharectl preempt 0  # on the first GPU
    """
    with Daemon(options.bus) as daemon:
        indices = [options.gpu] if options.gpu else [str(gpu["Index"]) for gpu in daemon.gpus()]
        if len(indices) != 1:
            raise InvalidArgs(
                f"there are {len(indices)} GPUs here", f"name one: {', '.join(indices) or 'none'}")
        (gpu,) = indices
        daemon.preempt(gpu)
    show(options, {"gpu": gpu},
         lambda: print(f"The turns on GPU {gpu} end now if a program waits."))


POLL = 1.0                              # seconds between two polls of the daemon
SETTLED = 5                             # polls with equal results after which --no-wait gives up
SLOW = 30                               # in place of SETTLED while a program's state is in MOVING
LONGEST = 60.0                          # seconds until --no-wait gives up though results change
EMPTY_WITHIN = 3600.0                   # most seconds until the reply: programs move one by one
MOVING = frozenset({"loading", "draining", "evicting"})


@verb(
    "drain",
    argument("--gpu", "GPU", "empty one GPU (index, UUID or PCI address) instead: move its "
             "programs to other GPUs, or park them; exit status 1 if programs stay"),
    argument(
        "--check", "", "only report: exit status 1 if there are programs that would stand still"),
    argument("--no-wait", "", "admit the programs that fit, and do not wait for the rest: exit "
             "status 1 if programs remain, after a minute at most"))
def drain(options: Options) -> None:
    """Admit waiting programs, so that nvshared can be stopped.

    Without nvshared, a program that holds a GPU keeps it; any other one stands still at its next
    use of the GPU, until nvshared is started again. This command lists those others, one line each,
    admits all that fit beside the holders, the smallest first, and waits until none is left. No
    program's turn ends meanwhile. apt and dnf do the same before they remove nvshared, but do not
    wait for programs that do not fit. With --gpu, nvshared goes on: the programs of one GPU move to
    GPUs of the same kind, or are parked.

        nvsharectl drain            # before: systemctl stop nvshared
        nvsharectl drain --no-wait  # the same; programs that do not fit are named
        nvsharectl drain --check    # which programs would stand still
        nvsharectl drain --gpu 1    # before maintenance of the second GPU
    """
    if options.gpu is not None:
        if options.check or options.no_wait:
            raise InvalidArgs("--gpu empties a GPU", "leave out --check and --no-wait")
        with Daemon(options.bus, EMPTY_WITHIN) as daemon:
            stay = daemon.drain_gpu(options.gpu)
        if stay:
            raise NvshareError(
                f"{counted(len(stay), 'program')} could not leave GPU {options.gpu}: "
                + "; ".join(f"{pid}: {why}" for pid, why in stay),
                left=[{"pid": pid, "why": why} for pid, why in stay])
        show(options, {"left": []}, lambda: print(f"No program is on GPU {options.gpu} any more."))
        return
    if options.check and options.no_wait:
        raise InvalidArgs("--check admits no program", "leave out --no-wait")
    reported: dict[int, str] = {}
    settled, before = 0, None
    end = time.monotonic() + LONGEST
    with Daemon(options.bus) as daemon:
        while left := [one for one in daemon.snapshot().clients if one.state != "running"]:
            if not options.json:
                _report(left, reported)
            if options.check:
                raise _error(
                    left, "admit the programs that fit, and wait for the rest: nvsharectl drain")
            if before is None:
                daemon.drain()
            now = [(one.id, one.state, one.swapped) for one in left]
            settled, before = settled + 1 if now == before else 0, now
            patience = SLOW if any(one.state in MOVING for one in left) else SETTLED
            if options.no_wait and (settled >= patience or time.monotonic() >= end):
                raise _error(left, "end these programs or the holders of their GPU, or wait: "
                             "nvsharectl drain")
            time.sleep(POLL)
        if not options.json:
            _report([], reported)
    show(options, {"left": []}, lambda: print("nvshared can be stopped: no program needs it now."))


def _report(left: list[ClientSnapshot], reported: dict[int, str]) -> None:
    """Prints each program when it joins `left`, and again when it is admitted or has ended."""
    for one in left:
        if one.id not in reported:
            reported[one.id] = process(one)
            memory = f", {size(one.swapped)} in host memory" if one.swapped else ""
            state = "" if one.state == "idle" else f", {one.state}"
            print(f"{process(one)} on GPU {one.gpu}{memory}{state}: {command(one)}", flush=True)
    for id in reported.keys() - {one.id for one in left}:
        print(f"{reported.pop(id)} goes on without nvshared, or has ended", flush=True)


def _error(left: list[ClientSnapshot], hint: str) -> NvshareError:
    return NvshareError(f"{counted(len(left), 'program')} would stand still without nvshared", hint,
                        left=[{"pid": one.pid, "gpu": one.gpu} for one in left])


PATIENCE = 600.0                        # most seconds until nvshared replies: evictions may be slow

PID = argument("pid", "PID", "a program that shares a GPU, as nvsharectl clients shows it",
               type=whole(1, LONGEST_PID, "{!r} is no process id"))


def _change(options: Options, become: str, data: dict[str, object],
            put: Callable[[Daemon, int], None], result: str) -> None:
    """Calls `put` for each client of the process. `become`: such as "moved", for errors."""
    with Daemon(options.bus, PATIENCE) as daemon:
        carry_out([
            Step(become, {"gpu": gpu, **data}, partial(put, daemon, client))
            for client, gpu in daemon.clients_of(options.pid, None).items()])
    show(options, {"pid": options.pid, **data}, lambda: print(result))


@verb("park", PID)
def park(options: Options) -> None:
    """Take a program off its GPU until it uses the GPU again.

    Moves the program's memory to the host and has the driver take its context off the GPU, too,
    which is 0.5 to 3 GiB. The program goes on, and wakes by itself when it calls the driver. The
    setting deep-idle does so with programs that are idle for long. Needs driver 570 or later.
    Programs with managed memory, memory shared with other processes, several GPUs or a gang are
    not parked.

        nvsharectl park 4711  # takes process 4711 off its GPU
    """
    _change(options, "parked", {}, Daemon.park,
            f"Process {options.pid} is parked: its memory and context are off the GPU.")


@verb(
    "move",
    PID,
    argument("--to", "GPU", "index, UUID or PCI address of a GPU of the same kind", required=True,
             dest="target"))
def move(options: Options) -> None:
    """Move a program to another GPU.

    Parks the program and restores it on another GPU of the same kind, under the same number as
    before. If the driver does not restore it there, it goes on where it was.

        nvsharectl move 4711 --to 1  # to the second GPU
    """
    _change(options, "moved", {"to": options.target},
            lambda daemon, client: daemon.move(client, options.target),
            f"Process {options.pid} is on GPU {options.target} now.")
