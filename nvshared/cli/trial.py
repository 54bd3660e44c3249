# SPDX-License-Identifier: Apache-2.0
"""nvsharectl demo and trial. A trial runs the service on simulated GPUs, for all users' programs.

A drop-in of the unit, below /run, makes the service load the simulated driver, and keep terms and
history in the trial's folder. Its file `settings` has the number and size of the GPUs."""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from nvshared import library
from nvshared.cli.verb import Options, argument, parsed, show, show_table, verb, whole
from nvshared.control import Daemon, unit
from nvshared.errors import ExitCode, InvalidArgs, NotPermitted, NvshareError
from nvshared.names import TRIAL_FOLDER
from nvshared.quantity import counted, sized
from nvshared.quantity import size as parse_size
from nvshared.units import MIB

FOLDER = Path(TRIAL_FOLDER)
STATE = FOLDER / "state"                # the service's state directory during a trial
DROP_IN = Path("/run/systemd/system/nvshared.service.d/nvshare-trial.conf")
SERVICE = "nvshared.service"
RAN = "ran"                             # name of a file in FOLDER: the service ran before the trial
MOST_GPUS = 16
LEAST_MEMORY = 64 * MIB
DAEMON = "/usr/bin/nvshared"
CONTEXT = 8 * MIB                       # bytes that a CUDA context takes of a simulated GPU


def _memory(text: str) -> int:
    memory: int = parsed(parse_size, "the memory cannot be {!r}")(text)
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
    number, memory = options.gpus, options.memory
    if DROP_IN.exists():
        raise NvshareError("a trial is on already", "end it with: nvsharectl trial stop")
    _refuse_while_clients_run(options)
    ran = unit.state(SERVICE).get("ActiveState") == "active"
    environment = {"LD_LIBRARY_PATH": str(library.simulator()), "NVSHARE_SIM_DIR": str(FOLDER)}
    lines = [f"Environment={name}={value}" for name, value in environment.items()]
    # systemd makes the state directory for the service's user, and keeps it when the service ends.
    lines += [f"RuntimeDirectory={STATE.relative_to(STATE.parents[1])}",
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
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text("\n".join(["[Service]", *lines, f"ReadWritePaths={FOLDER}", ""]))
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
        f"  nvsharectl run -- {library.workload()} --memory 70% --seconds 60\n"
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
    DROP_IN.unlink(missing_ok=True)
    with suppress(OSError):
        DROP_IN.parent.rmdir()          # fails if the unit has other drop-ins
    with suppress(FileNotFoundError):
        shutil.rmtree(FOLDER)
    _systemctl("daemon-reload")
    _systemctl("restart" if ran else "stop", SERVICE)
    return ran


def _refuse_while_clients_run(options: Options) -> None:
    if unit.state(SERVICE).get("ActiveState") != "active":
        return
    with Daemon(options.bus) as daemon:
        number = len(daemon.snapshot().clients)
    if number:
        raise NvshareError(f"{counted(number, 'program')} would lose their GPU",
                           "end these programs first; see: nvsharectl clients")


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
