# SPDX-License-Identifier: Apache-2.0
"""nvsharectl run: starts a program with libnvshare.so preloaded."""

import argparse
import errno
import os
import shlex
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from nvshared import quantity
from nvshared.cli.verb import Argument, Options, argument, parsed, print_error, verb, whole
from nvshared.errors import ExitCode, InvalidArgs, NotRunning, NvshareError
from nvshared.names import DEFAULT_SOCKET, SOCKET_VARIABLE
from nvshared.parser import absolute
from nvshared.terms import DEFAULT_WEIGHT

TRIM = "NVSHARE_TRIM_CACHES"            # 1: PyTorch and CuPy free caches when the library asks
MODULES = "PYTHONPATH"
REQUIRED = "NVSHARE_REQUIRED"           # without nvshared, 1: the program waits; 0: runs unshared
VERBOSE = "NVSHARE_VERBOSE"             # 1: the library prints that the program waits, and why
NAME = "NVSHARE_NAME"                   # the program's name in tables
GANG = "NVSHARE_GANG"                   # NAME:N: the program's gang and its number of processes
RANKS_MOST = 1024
NAME_LONGEST = 88                       # bytes of NAME, see libhook/include/nvshare/protocol.h
# By option: the variable from which the library reads the same.
VARIABLES = {"socket": SOCKET_VARIABLE, "name": NAME, "memory": "NVSHARE_MEMORY_LIMIT",
             "compute": "NVSHARE_COMPUTE_LIMIT", "weight": "NVSHARE_WEIGHT",
             "priority": "NVSHARE_PRIORITY"}


class NotFound(NvshareError, exit_code=ExitCode.NOT_FOUND):
    """The program to run does not exist. Shells exit with the same status."""


class NotExecutable(NvshareError, exit_code=ExitCode.NOT_EXECUTABLE):
    """The program cannot be executed. Shells exit with the same status."""


def _name(text: str) -> str:
    if text.strip() and text.isprintable() and len(os.fsencode(text)) <= NAME_LONGEST:
        return text
    raise InvalidArgs(f"the program cannot be called {text!r}",
                      f"give letters, digits, signs and blanks: at most {NAME_LONGEST} bytes")


def _not_running(path: str, does: str, start: str) -> NotRunning:
    if path == DEFAULT_SOCKET:
        return NotRunning(f"nvshared is not running, the program {does}", f"start it with: {start}")
    return NotRunning(                  # the service listens at the default socket alone
        f"no nvshared listens at {path}, the program {does}",
        f"start one there: nvshared --socket {shlex.quote(path)}; or, to use the machine's own "
        f"nvshared, unset {SOCKET_VARIABLE} and leave out --socket")


def _term(name: str, metavar: str, parse: Callable[[str], object], help: str) -> Argument:
    """An option for a term; the library parses the text again."""
    def checked(text: str) -> str:
        parsed(parse, f"the {name} cannot be {{!r}}")(text)
        return text

    return argument(f"--{name}", metavar, f"{help} (or set {VARIABLES[name]})", type=checked)


SCRIPT = ("is it a script without a first line such as #!/bin/sh? Then write: nvsharectl run -- sh "
          "SCRIPT")
PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
LOCALE = "LC_CTYPE"


def _environment() -> dict[str, str]:
    """The environment without the LC_CTYPE that Python sets for itself in the C locale."""
    environment = dict(os.environ)
    with suppress(OSError):
        given = os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
        environment.pop(LOCALE, None)
        environment |= dict(one.split("=", 1) for one in given if one.startswith(f"{LOCALE}="))
    return environment


def _restore_signals() -> None:
    """Restores the signals that Python ignores to how the parent process handles them.

    Python forgets which it inherited. A service inherits an ignored SIGPIPE of systemd."""
    parent, ignored = os.getppid(), 0
    if parent:                          # 0: in a container, the parent is outside it
        try:
            status = Path(f"/proc/{parent}/status").read_text(errors="replace")
            ignored = int(status.partition("\nSigIgn:")[2].split()[0], 16)
        except (OSError, LookupError, ValueError):
            return
    for one in PYTHON_IGNORES:
        if not ignored >> (one - 1) & 1:
            signal.signal(one, signal.SIG_DFL)


@verb(
    "run",
    argument("--name", "NAME", f"the program's name in tables, which all users see (or set {NAME})",
             type=_name),
    argument("--gang", "", "give all processes of the program their turns together, on several "
             f"GPUs at once (or set {GANG} to NAME:N)"),
    argument("-n", "N", "number of the gang's processes that use a GPU; torchrun reports it",
             type=whole(2, RANKS_MOST, "a gang cannot be of {!r} processes"), dest="ranks"),
    _term("memory", "SIZE", quantity.limit, "the most memory that each process has on a GPU"),
    _term("compute", "PERCENT", quantity.share, "the largest share of a GPU's time, 1 to 100"),
    _term("weight", "WEIGHT", partial(quantity.whole, least=1, most=DEFAULT_WEIGHT),
          "a smaller share of its tenant's time than other programs, 1 to 100"),
    _term("priority", "PRIORITY", quantity.priority,
          "background or normal; high where a rule gives it"),
    argument("--verbose", "",
             f"report when the program has waited for two seconds, and why (or set {VERBOSE})"),
    argument("--socket", "PATH",
             f"nvshared's socket, if not the default one (or set {SOCKET_VARIABLE})",
             # The program may change its working directory before it connects.
             type=lambda text: str(absolute(text))),
    argument(
        "command", "PROGRAM", "the program, and its arguments behind it", nargs=argparse.REMAINDER),
    usage="nvsharectl run [-h] [--name NAME] [--gang [-n N]] [--memory SIZE]\n"
          "                      [--compute PERCENT] [--weight WEIGHT]\n"
          "                      [--priority PRIORITY] [--verbose] [--socket PATH]\n"
          "                      -- PROGRAM [ARGUMENT ...]")
def run(options: Options) -> NoReturn:
    """Run a program that shares its GPU with others.

    Runs a CUDA program with libnvshare.so preloaded, beside the libraries in LD_PRELOAD. The
    program and its child processes share the GPU with other such programs, each with all of its
    memory. Where nvshared does not run, the program reports that and waits; with NVSHARE_REQUIRED=0
    in the environment it runs unshared. The exit status is the program's. --memory, --compute,
    --weight and --priority hold for each process of the program, and never give it more than the
    administrator does.

        nvsharectl run -- python train.py --epochs 3                   # one program
        nvsharectl run --name 'llama, 3rd try' -- python train.py      # shown by that name
        nvsharectl run --memory 8GiB -- python train.py   # the GPU is that large for it
        nvsharectl run --gang -- torchrun --nproc-per-node=2 train.py
            # a training on two GPUs: both at once, or none
        nvsharectl run -- bash  # a shell; programs started from it share the GPU
    """
    from nvshared import library
    from nvshared.containers import apptainer
    from nvshared.control import unit

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command or not command[0]:
        raise InvalidArgs("no program is named", "write: nvsharectl run -- PROGRAM ARGUMENTS")
    environment = library.preloaded(_environment())
    if environment.get(TRIM) == "1":
        others = environment.get(MODULES)
        environment[MODULES] = f"{library.program()}{':' + others if others else ''}"
    if options.ranks is not None and not options.gang:
        raise InvalidArgs("-n is the size of a gang", "add --gang")
    if options.gang:
        environment[GANG] = f"{os.urandom(8).hex()}:{options.ranks or ''}"
    environment |= {variable: value for name, variable in VARIABLES.items()
                    if (value := getattr(options, name)) is not None}
    if options.verbose:
        environment[VERBOSE] = "1"
    environment.setdefault(REQUIRED, "1")
    environment = apptainer.environment(command[0], environment)
    path = environment.get(SOCKET_VARIABLE) or DEFAULT_SOCKET
    fault = unit.unreachable(path)
    if fault is not None and shutil.which(command[0]):
        waits = environment[REQUIRED] == "1"
        does = "waits for it when it uses a GPU" if waits else "runs unshared"
        error = NvshareError(f"nvshared cannot be reached, the program {does}: "
                             f"{fault.strerror or fault}",
                             "see what is wrong: nvsharectl doctor")
        if isinstance(fault, (FileNotFoundError, ConnectionRefusedError)):
            error = _not_running(path, does, unit.START)
        print_error(error, as_json=options.json)
    _restore_signals()
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError as error:
        if not shutil.which(command[0]):
            raise NotFound(
                f"there is no program {command[0]!r}", "check its name and PATH") from error
        raise NotExecutable(f"{command[0]!r} cannot be run: its interpreter or its loader is not "
                            "on this machine", "see its first line, or: file PROGRAM") from error
    except OSError as error:
        hint = SCRIPT if error.errno == errno.ENOEXEC else ""
        raise NotExecutable(f"{command[0]!r} cannot be run: {error.strerror}", hint) from error
