# SPDX-License-Identifier: Apache-2.0
"""nvsharectl clients: the programs that use a GPU."""

import argparse

from nvshared.cli.output import show, show_table
from nvshared.cli.verb import Options, Verb
from nvshared.control import Daemon
from nvshared.errors import NoSuchGPU
from nvshared.tui.tables import client_columns


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", metavar="GPU", help="only those of this GPU")


def _act(options: Options) -> None:
    with Daemon(options.bus) as daemon:
        index = None if options.gpu is None else daemon.gpu(options.gpu)
        now = daemon.snapshot()
    if index is not None and index not in {gpu.index for gpu in now.gpus}:
        raise NoSuchGPU(f"GPU {index} has just gone")
    chosen = [one for one in now.clients if index is None or one.gpu == index]
    wanted = {one.id for one in chosen}
    data = [one for one in now.as_dict()["clients"] if one["id"] in wanted]
    show(options, {"clients": data}, lambda: show_table(client_columns(chosen), chosen))


VERB = Verb(
    name="clients",
    summary="the programs that use a GPU",
    description=(
        "Shows one line for each program on each GPU it uses: its memory (MEM), how much of that "
        "is on the card (RESIDENT) and in host memory (SWAPPED), what it does, and how long it "
        "has held the GPU and waited for it, also before nvshared was restarted. IDLE shows for "
        "how long a program has had nothing to do since its last turn. LIMITS shows what is set "
        "for a program: its memory limit, its share of the time in percent, its weight (w200). "
        "STAYS shows why nothing of a program leaves the GPU any more: its work does not end "
        "(undrained), the library may not see its work (unseen), or a device or another library "
        "has its memory (given). A narrow terminal shows fewer columns, a pipe all of them."
    ),
    examples=(
        ("nvsharectl clients", "all of them"),
        ("nvsharectl clients --gpu 0", "those of one GPU"),
        ("nvsharectl clients | awk 'NR > 1 {print $2}'", "their process ids"),
    ),
    configure=_configure,
    act=_act,
)
