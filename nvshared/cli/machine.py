# SPDX-License-Identifier: Apache-2.0
"""nvsharectl doctor, preload, trial and demo, which work without nvshared.

doctor looks for faults, and preload changes /etc/ld.so.preload. A trial runs the service on
simulated GPUs, for all users' programs: a drop-in of the unit, below /run, makes the service load
the simulated driver, and keep terms and history in the trial's folder. Its file `settings` has the
number and size of the GPUs."""

import os
import shutil
import sys
import textwrap
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvshared import __version__, library
from nvshared.cli import verb as shared
from nvshared.cli.verb import Options, argument, draw, drawable, show, show_table, verb, whole
from nvshared.control import Daemon, unit
from nvshared.errors import ExitCode, InvalidArgs, NotPermitted, NvshareError
from nvshared.names import TRIAL_FOLDER
from nvshared.quantity import counted, sized
from nvshared.quantity import size as parse_size
from nvshared.units import MIB

if TYPE_CHECKING:
    from nvshared.doctor import Finding

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "fault": "bold red"}
TOPICS = 17                             # characters of a topic; the longest is nvshared.service


@verb("doctor")
def doctor(options: Options) -> ExitCode:
    """Find faults that keep programs from sharing GPUs.

    Checks the packages, nvshared and its bus, the driver and GPUs, programs that use a GPU without
    sharing it, static pods of Kubernetes that lack the GPU they request, and host memory. Each
    finding comes with advice. Needs neither nvshared nor a bus, a driver or root, but root sees
    more. The exit status is 1 if programs cannot share their GPUs, or one of them.

        nvsharectl doctor         # everything, with advice
        nvsharectl doctor --json  # the same as data, to report a problem with
        sudo nvsharectl doctor    # looks into other users' programs, too
    """
    from nvshared.doctor import examine

    findings = examine(options.bus)
    faults = sum(finding.grade == "fault" for finding in findings)
    data = {"version": __version__, "healthy": not faults,
            "findings": [finding._asdict() for finding in findings]}
    show(options, data, lambda: _print(findings, faults))
    return ExitCode.FAILURE if faults else ExitCode.OK


def _print(findings: "list[Finding]", faults: int) -> None:
    for finding in findings:
        if drawable():
            from rich.text import Text

            text = Text(_text(finding, max(shared.NARROWEST, shutil.get_terminal_size().columns)))
            text.stylize(STYLES[finding.grade], 0, len(finding.grade))
            draw(text)
        else:
            print(_text(finding, sys.maxsize))
    print()
    print(_verdict(findings, faults))


def _verdict(findings: "list[Finding]", faults: int) -> str:
    if not faults:
        return "Programs on this machine can share their GPUs."
    faulty = {one.topic for one in findings if one.grade == "fault"}
    gpus = {one.topic for one in findings if one.topic.startswith("gpu ")}
    if faulty < gpus:
        named = ", ".join(sorted(topic.removeprefix("gpu ") for topic in faulty))
        return f"Programs on this machine can share their GPUs, but for GPU {named}."
    return f"Programs on this machine cannot share their GPUs: {counted(faults, 'fault')}."


def _text(finding: "Finding", width: int) -> str:
    start = f"{finding.grade:8} {finding.topic:{TOPICS}} "
    rest = " " * len(start)
    fold = partial(textwrap.wrap, width=width, break_on_hyphens=False)
    lines = fold(finding.words, initial_indent=start, subsequent_indent=rest)
    if finding.advice:
        lines += fold(f"→ {finding.advice}", initial_indent=rest, subsequent_indent=rest + "  ")
    return "\n".join(lines)


ACTIONS = ("enable", "disable", "status")

RESCUE = """\
RESCUE
  nvsharectl preload disable always works as long as programs start at all: it
  neither needs the library nor tries it. Where programs no longer start:
  1. In a shell that is still open, as root. This starts no program:
       : > /etc/ld.so.preload
     It empties the whole list; put back entries of others later.
  2. With no such shell, boot into the initramfs: its programs have a list of
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
        "action", "ACTION", "status (the default): show the list; enable: add the library to it; "
        "disable: remove it", choices=ACTIONS, nargs="?", default="status"),
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
    it. A 32-bit program cannot load the library: it prints an error of ld.so when it starts, and
    runs as before. For single programs, use nvsharectl run.

        nvsharectl preload                           # whether it is preloaded; other entries
        nvsharectl preload enable                    # from now on, for every program that starts
        nvsharectl preload disable                   # from now on, for none
        nvsharectl preload enable --root /srv/image  # in an image that you make
    """
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
                if switch.runs_32_bit(tree):
                    lines.append(f"{switch.IN_32_BIT}.")
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
            if state.entries and switch.runs_32_bit(tree):
                lines.append(f"{switch.IN_32_BIT}.")
            lines += [f"Another entry: {entry}" for entry in state.others]
    show(options, state.as_dict() | data, lambda: print("\n".join(lines)))
    if options.action == "status" and state.fault:
        raise NvshareError(f"the list has a fault: {state.fault}",
                           "repair it with: nvsharectl preload enable, or disable")


FOLDER = Path(TRIAL_FOLDER)
STATE = FOLDER / "state"                # the service's state directory during a trial
SERVICE = "nvshared.service"
DROP_IN = Path(f"/run/systemd/system/{SERVICE}.d/nvshare-trial.conf")
HELPER_DROP_IN = Path("/run/systemd/system/nvshare-checkpoint@.service.d/nvshare-trial.conf")
USER = "nvshare"                        # the user of both units during a trial
SPECIFICATION = Path("/run/cdi/nvshare-trial.json")    # of containers' devices, where none is
RAN = "ran"                             # name of a file in FOLDER: the service ran before the trial
MOST_GPUS = 16
LEAST_MEMORY = 64 * MIB
DAEMON = "/usr/bin/nvshared"
CONTEXT = 8 * MIB                       # bytes of a simulated GPU that one CUDA context uses


def _memory(text: str) -> int:
    memory: int = shared.parsed(parse_size, "the memory cannot be {!r}")(text)
    if memory < LEAST_MEMORY:
        raise InvalidArgs(f"{sized(memory)} is too little", f"give at least {sized(LEAST_MEMORY)}")
    return memory


@verb(
    "trial",
    argument("action", "ACTION", "start: run the service on simulated GPUs; stop: on real ones "
             "again", choices=("start", "stop")),
    argument("--gpus", "N", "number of GPUs (default: 1)", default="1",
             type=whole(1, MOST_GPUS, "there cannot be {} GPUs")),
    argument("--memory", "SIZE", "memory of each GPU (default: 1GiB)", default="1GiB",
             type=_memory))
def trial(options: Options) -> None:
    """Run the service on simulated GPUs, to try it.

    Puts the service on simulated GPUs that the programs of all users and containers can share, on a
    machine with or without a real one, and takes them away again. Programs on the real GPU do not
    share it meanwhile. The simulated driver runs its own kernels alone, not PyTorch's;
    nvshare-workload computes with them and checks its results. The number and size of the GPUs hold
    through restarts of the service. Terms and history of the trial go with it. A boot, or removing
    the package, ends it.

        nvsharectl trial start  # one GPU of 1 GiB; this says how programs find it
        nvsharectl trial start --gpus 2 --memory 4GiB  # two larger ones
        nvsharectl trial stop                          # as it was before
    """
    if os.geteuid() != 0:
        raise NotPermitted("only root changes how the service runs", "run it with sudo")
    if not unit.runs_here():
        raise NvshareError(
            "systemd does not run here, and a trial changes its service", "see: nvsharectl demo")
    (_start if options.action == "start" else _stop)(options)


def _start(options: Options) -> None:
    from nvshared.containers import cdi

    number, memory = options.gpus, options.memory
    if DROP_IN.exists():
        raise NvshareError("a trial is on already", "end it with: nvsharectl trial stop")
    _refuse_while_clients_run(options)
    SPECIFICATION.unlink(missing_ok=True)   # left by an interrupted `trial start`
    offers = cdi.read() is None
    ran = unit.state(SERVICE).get("ActiveState") == "active"
    environment = {"LD_LIBRARY_PATH": str(library.simulator()), "NVSHARE_SIM_DIR": str(FOLDER)}
    both = ["[Service]", *(f"Environment={name}={value}" for name, value in environment.items()),
            f"ReadWritePaths={FOLDER}"]
    # systemd makes the state directory for the service's user, and keeps it when the service ends.
    lines = [f"RuntimeDirectory={STATE.relative_to(STATE.parents[1])}",
             "RuntimeDirectoryPreserve=yes"]
    # The default reserve for contexts would leave too little memory of a simulated GPU.
    lines += ["ExecStart=", f"ExecStart={DAEMON} --context-reserve {CONTEXT} --state-dir {STATE}"]
    with suppress(FileNotFoundError):
        shutil.rmtree(FOLDER)           # left by an interrupted `trial start`
    FOLDER.mkdir()
    # Despite umask, all users may read `settings` and write `gpus`.
    for file, mode, text in ((FOLDER / "settings", 0o644, f"gpus {number}\nmemory {memory}\n"),
                             (FOLDER / "gpus", 0o666, "")):
        file.write_text(text)
        file.chmod(mode)
    FOLDER.chmod(0o755)
    if ran:
        (FOLDER / RAN).touch()
    if offers:                          # nvshare-cdi.service sees it, and writes ours
        SPECIFICATION.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        cdi.replace(SPECIFICATION, cdi.simulated(number, environment, {
            library.simulator().parent: False, FOLDER: True}).encode())
    # All users may write the state of the GPUs, so no process of root's may read it.
    for drop_in, more in ((DROP_IN, lines), (HELPER_DROP_IN, [f"User={USER}"])):
        drop_in.parent.mkdir(parents=True, exist_ok=True)
        drop_in.write_text("\n".join([*both, *more, ""]))
    try:
        _systemctl("daemon-reload")
        _systemctl("restart", SERVICE)
    except BaseException:
        _undo()
        raise
    words = " ".join(f"{name}={value}" for name, value in environment.items())
    show(options, {"gpus": number, "memory": memory, "environment": environment}, lambda: print(
        f"The service shares {counted(number, 'simulated GPU')} of {sized(memory)} now. Programs "
        f"find them with\n  export {words}\nsuch as\n"
        f"  nvsharectl run -- {library.workload()} --memory 70% --seconds 60\n" + (
            f"Containers find them with: --device {cdi.KIND}=all\n" if offers else "") +
        "Undo: nvsharectl trial stop"))


def _stop(options: Options) -> None:
    if not DROP_IN.exists():
        raise NvshareError("no trial is on", "start one with: nvsharectl trial start")
    _refuse_while_clients_run(options)
    ran_before = _undo()
    show(options, {"running": ran_before}, lambda: print(
        "The simulated GPUs are gone. The service " + (
            "runs on the machine's own GPUs again." if ran_before else
            "does not run, as before the trial.")))


def _undo() -> bool:
    """Ends the trial. True: the service ran before the trial, and was started again."""
    ran = (FOLDER / RAN).exists()
    for drop_in in (DROP_IN, HELPER_DROP_IN):
        drop_in.unlink(missing_ok=True)
        with suppress(OSError):
            drop_in.parent.rmdir()      # fails if the unit has other drop-ins
    SPECIFICATION.unlink(missing_ok=True)
    try:
        _systemctl("daemon-reload")
        _systemctl("restart" if ran else "stop", SERVICE)
    finally:                            # not before: the daemon writes its history when it ends
        with suppress(FileNotFoundError):
            shutil.rmtree(FOLDER)
    return ran


def _refuse_while_clients_run(options: Options) -> None:
    if unit.state(SERVICE).get("ActiveState") != "active":
        return
    with Daemon(options.bus) as daemon:
        number = len(daemon.snapshot().clients)
    if number:
        raise NvshareError(f"a change of the GPUs would stop {counted(number, 'program')}",
                           "end all programs first; see: nvsharectl clients")


def _systemctl(*words: str) -> None:
    import subprocess

    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NvshareError(f"systemctl {' '.join(words)} failed: {done.stderr.strip()}",
                           "see why: journalctl -u nvshared")


@verb(
    "demo", argument("--simulate", "", "use a simulated GPU, even if this machine has a real one"))
def demo(options: Options) -> ExitCode:
    """See two programs that do not fit together share one GPU.

    Runs two programs that each need 70 % of a GPU's memory: together with nvshared, one after the
    other, and together without nvshared, where the second gets out of memory. Checks every word
    that they compute, uses a daemon of its own and leaves nothing behind. Without an NVIDIA GPU it
    simulates one. Takes less than a minute.

        nvsharectl demo             # on the GPU, if there is one
        nvsharectl demo --simulate  # on a simulated one
    """
    from nvshared.demo import COLUMNS, run

    # With --json, standard output gets the report alone, and stderr the progress.
    report = run(simulate=options.simulate, file=sys.stderr if options.json else sys.stdout)
    faults = report.faults()

    def text() -> None:
        print()
        show_table(COLUMNS, report[1:])
        for fault in faults:
            print(f"WRONG  {fault}")

    show(options, report.as_dict(), text)
    return ExitCode.FAILURE if faults else ExitCode.OK
