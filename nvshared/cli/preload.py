# SPDX-License-Identifier: Apache-2.0
"""nvsharectl preload: the library in every program of the machine."""

import argparse
from typing import TYPE_CHECKING

from nvshared.cli.output import show
from nvshared.cli.verb import Options, Verb
from nvshared.errors import ExitCode, InvalidArgs, NvshareError

if TYPE_CHECKING:
    from nvshared.preload.tree import Tree

ACTIONS = ("enable", "disable", "status")

RESCUE = """\
RESCUE
  nvsharectl preload disable always works as long as programs start at all: it
  neither needs the library nor tries it. Where programs no longer start:
  1. In a shell that is still open, as root. This starts no program:
       : > /etc/ld.so.preload
     It empties the whole list; put back what others had in it later.
  2. With no such shell, boot into the initramfs, whose programs have a list of
     their own: add rd.break (Fedora, RHEL, SUSE) or break=bottom (Debian,
     Ubuntu) to the kernel's command line in the boot menu. Then:
       mount -o remount,rw /sysroot && : > /sysroot/etc/ld.so.preload
     (on Debian and Ubuntu write /root for /sysroot), and: reboot -f
  3. From another medium, with the system mounted at /mnt:
       sed -i /libnvshare/d /mnt/etc/ld.so.preload
  In a container or an image that is not running, from outside of it:
       nvsharectl preload disable --root DIR
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", metavar="ACTION", choices=ACTIONS,
        help="enable: put the library into the list; disable: take it out; status: look",
    )
    parser.add_argument(
        "--root", metavar="DIR", default="/",
        help="change the system below this folder, such as an image, not the running one",
    )
    parser.add_argument(
        "--library", metavar="PATH",
        help="libnvshare.so as the system's programs find it, if not where it was installed",
    )


def _act(options: Options) -> ExitCode:
    from nvshared.preload.tree import Tree

    tree = Tree.below(options.root)
    match options.action:
        case "enable":
            return _enable(options, tree)
        case "disable":
            return _disable(options, tree)
        case _:
            return _status(options, tree)


def _enable(options: Options, tree: "Tree") -> ExitCode:
    from pathlib import Path

    from nvshared.preload import switch

    if options.library == "":
        raise InvalidArgs("'' is no library", "give the path of libnvshare.so")
    named = None if options.library is None else Path(options.library)
    library = switch.find(tree, named)
    was = switch.look(tree)
    tried = switch.enable(tree, library)
    state = switch.look(tree)

    def text() -> None:
        for one in tried:
            outcome = f"could not be tried, {one.obstacle}" if one.obstacle else "works"
            print(f"With it preloaded, {one.program} {outcome}.")
        if was.entries == state.entries:
            print(f"{library} stood in {state.place} already.")
            return
        for entry in was.entries:
            if entry != str(library):
                print(f"{entry} was in the list and gave way.")
        print(f"{library} is preloaded into every program that starts from now on.")
        print("Programs that run already are not concerned. Undo: nvsharectl preload disable")

    data = state.as_dict() | {
        "changed": was.entries != state.entries,
        "tried": [{"program": one.program, "obstacle": one.obstacle} for one in tried],
    }
    show(options, data, text)
    return ExitCode.OK


def _disable(options: Options, tree: "Tree") -> ExitCode:
    from nvshared.preload import switch

    if options.library is not None:
        raise InvalidArgs("disable takes out any libnvshare.so", "leave --library away")
    changed = switch.disable(tree)
    state = switch.look(tree)

    def text() -> None:
        if changed:
            print(f"No libnvshare.so is in {state.place} any more.")
            print("Programs that run already keep it until they end.")
        else:
            print(f"No libnvshare.so is in {state.place}.")

    show(options, state.as_dict() | {"changed": changed}, text)
    return ExitCode.OK


def _status(options: Options, tree: "Tree") -> ExitCode:
    from nvshared.preload import switch

    if options.library is not None:
        raise InvalidArgs("status shows what is in the list", "leave --library away")
    state = switch.look(tree)

    def text() -> None:
        if not state.enabled:
            print(f"No libnvshare.so is in {state.place}.")
        for entry in state.entries:
            print(f"{entry} is in {state.place}: every program that starts has it.")
        for entry in state.others:
            print(f"Besides: {entry}")

    show(options, state.as_dict(), text)
    if state.fault:
        raise NvshareError(
            f"the list is not right: {state.fault}",
            "put it right with: nvsharectl preload enable, or disable",
        )
    return ExitCode.OK


PRELOAD = Verb(
    name="preload",
    summary="have every program of this machine share its GPU, or not",
    description=(
        "Puts libnvshare.so into /etc/ld.so.preload, or takes it out. In programs that use no GPU "
        "the library does nothing. The command writes only if the library fits this system, only "
        "root can change the library, and programs run with it preloaded: a simple one, Python, "
        "and a setuid one. Other entries in the list stay. For single programs, use nvsharectl "
        "run."
    ),
    examples=(
        ("nvsharectl preload status", "whether it is preloaded, and what else is"),
        ("nvsharectl preload enable", "from now on, for every program that starts"),
        ("nvsharectl preload disable", "from now on, for none"),
        ("nvsharectl preload enable --root /srv/image", "in an image that you make"),
    ),
    configure=_configure,
    act=_act,
    more=RESCUE,
)
