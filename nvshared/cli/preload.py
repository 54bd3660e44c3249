# SPDX-License-Identifier: Apache-2.0
"""nvsharectl preload: puts libnvshare.so into /etc/ld.so.preload, or takes it out."""

from typing import Any

from nvshared.cli.verb import Options, argument, show, verb
from nvshared.errors import InvalidArgs, NvshareError

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


@verb(
    "preload",
    argument(
        "action", "ACTION", "enable: add the library to the list; disable: remove it; status: "
        "show the list", choices=ACTIONS),
    argument(
        "--root", "DIR", "change the system below this folder, such as an image, not the running "
        "system", default="/"),
    argument("--library", "PATH",
             "libnvshare.so as the system's programs find it, if not the one installed"),
    more=RESCUE)
def preload(options: Options) -> None:
    """Have every program of this machine share its GPU, or not.

    Puts libnvshare.so into /etc/ld.so.preload, or takes it out; other entries stay. In programs
    that use no GPU the library does nothing. enable first checks that the library fits this system,
    that only root can change it, and that a simple program, Python and a setuid program run with
    it. For single programs, use nvsharectl run.

        nvsharectl preload status                    # whether it is preloaded; other entries
        nvsharectl preload enable                    # from now on, for every program that starts
        nvsharectl preload disable                   # from now on, for none
        nvsharectl preload enable --root /srv/image  # in an image that you make
    """
    from pathlib import Path

    from nvshared.preload import switch
    from nvshared.preload.tree import Tree

    tree = Tree.below(options.root)
    if options.library is not None and options.action != "enable":
        raise InvalidArgs(
            f"{options.action} applies to every libnvshare.so in the list", "leave out --library")
    data: dict[str, Any] = {}
    lines = []
    match options.action:
        case "enable":
            if options.library == "":
                raise InvalidArgs("'' is no library", "give the path of libnvshare.so")
            library = switch.find(tree, None if options.library is None else Path(options.library))
            before, tried = switch.read_state(tree), switch.enable(tree, library)
            state = switch.read_state(tree)
            data["changed"] = before.entries != state.entries
            data["tried"] = [one._asdict() for one in tried]
            for one in tried:
                outcome = f"could not be tried, {one.obstacle}" if one.obstacle else "works"
                lines.append(f"With the library preloaded, {one.program} {outcome}.")
            if data["changed"]:
                lines += [f"{entry} was removed from the list."
                          for entry in before.entries if entry != str(library)]
                lines += [f"{library} is preloaded into every program that starts from now on.",
                          "Running programs are not affected. Undo: nvsharectl preload disable"]
            else:
                lines.append(f"{library} was in {state.place} already.")
        case "disable":
            data["changed"] = switch.disable(tree)
            state = switch.read_state(tree)
            lines = [f"No libnvshare.so is in {state.place}{' any more' * data['changed']}."]
            lines += ["Running programs keep the library until they end."] * data["changed"]
        case _:
            state = switch.read_state(tree)
            lines = [f"{entry} is in {state.place}: every program that starts loads it."
                     for entry in state.entries] or [f"No libnvshare.so is in {state.place}."]
            lines += [f"Another entry: {entry}" for entry in state.others]
    show(options, state.as_dict() | data, lambda: print("\n".join(lines)))
    if options.action == "status" and state.fault:
        raise NvshareError(f"the list has a fault: {state.fault}",
                           "repair it with: nvsharectl preload enable, or disable")
