# SPDX-License-Identifier: Apache-2.0
"""The entry point of nvsharectl: the list of verbs, the parser, completion, the report of errors.

A shell that completes words runs nvsharectl with _ARGCOMPLETE in the environment, and argcomplete
prints the candidates."""

import argparse
import io
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import Any, TextIO, cast

from nvshared import __version__, parser
from nvshared.cli import containers, history, machine, run, saving, settings, status
from nvshared.cli.verb import (
    Options,
    Output,
    Unwritable,
    Verb,
    argument,
    discard,
    print_error,
    verb,
)
from nvshared.control import Daemon
from nvshared.errors import ExitCode, InvalidArgs, NvshareError
from nvshared.names import BUS_VARIABLE, DEBUG_VARIABLE, MODES, PRIORITIES
from nvshared.parser import PATHS
from nvshared.quantity import counted


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status. Prints an error as a sentence on stderr."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    _prepare_streams()
    # Output has the attributes of its stream, which the type of redirect_stdout() does not know.
    with redirect_stdout(cast(TextIO, Output(sys.stdout))):
        return _carry_out(given)


def _carry_out(given: Sequence[str]) -> int:
    # Whether the parser's errors are printed as JSON. Arguments after "--" belong to run's program.
    as_json = "--json" in (given[:given.index("--")] if "--" in given else given)
    try:
        try:
            # The installed command had Ctrl-C end it at once, while modules were loaded.
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            parser = build(VERBS)
            if "_ARGCOMPLETE" in os.environ:        # a shell completes a command (Tab key)
                print_candidates(parser, os.environ.get("_ARGCOMPLETE_SHELL", ""))
            options = parser.parse_args(given)
            as_json = options.json
            chosen: Verb = options.verb or status.status
            code = None if settings.act_predecessors(options) else chosen.act(options)
        except SystemExit:              # after --help, --version and help
            sys.stdout.flush()          # raises Unwritable
            raise
        sys.stdout.flush()
        return code or ExitCode.OK
    except NvshareError as known:
        error = known
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Unwritable as failed:
        discard(sys.stdout)
        if isinstance(failed.__cause__, BrokenPipeError):   # the reader has closed the pipe
            return 128 + signal.SIGPIPE
        error = NvshareError(f"the output cannot be written: {_reason(failed.__cause__)}")
    except Exception as bug:
        if os.environ.get(DEBUG_VARIABLE, "0") != "0":
            raise
        words = f"a fault in nvsharectl itself, {type(bug).__name__}: {bug}"
        again = "report it with"
        if isinstance(bug, OSError):    # as of a full /tmp, or a filter of system calls
            words, again = f"the system refuses what nvsharectl needs: {_reason(bug)}", "see with"
        error = NvshareError(
            words, f"{again} what this prints: {DEBUG_VARIABLE}=1 nvsharectl {' '.join(given)}")
    print_error(error, as_json=as_json)
    return error.exit_code


def _reason(error: BaseException | None) -> str:
    """An OSError's message, with the file that it names."""
    words = getattr(error, "strerror", None) or str(error)
    file = getattr(error, "filename", None)
    return words if file is None else f"{words}: {file}"


def _prepare_streams() -> None:
    if sys.stdin is None:               # the parent process closed stdin
        sys.stdin = open(os.devnull)            # noqa: SIM115, PTH123
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")      # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        # A character that the encoding lacks, such as "▶", becomes "?": no UnicodeEncodeError.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


# Suggested values, by metavar; BUS may also be a D-Bus address.
KNOWN = {"BUS": ("system", "session"), "PRIORITY": tuple(PRIORITIES)}
QUICK = 1.0                             # seconds for nvshared to reply to a shell that completes
SHELLS = ("bash", "zsh", "fish")


def print_candidates(parser: argparse.ArgumentParser, shell: str) -> None:
    """Prints the candidates for the word at the cursor, and exits."""
    import argcomplete

    values: Any = _values               # typed as Any: argcomplete's annotation excludes a function
    argcomplete.autocomplete(
        parser, default_completer=values, always_complete_options=shell == "bash")


def _values(
    prefix: str, action: argparse.Action, parsed_args: Options, **_: Any
) -> Iterable[str] | Mapping[str, str]:
    """The candidates for an argument without choices: paths, programs, `auto` of TIME|auto, and
    what nvshared has now. Those in a mapping have a description, which zsh and fish show."""
    from argcomplete.completers import FilesCompleter

    meant, runs = str(action.metavar), action.nargs == argparse.REMAINDER
    if meant not in PATHS and not runs:
        words = dict.fromkeys(KNOWN.get(meant, ()), "")
        if meant == "HELP":
            words = {verb.name: verb.summary for verb in VERBS}
        words |= {one: "" for one in meant.split("|")[1:] if one.islower()}
        return words | _present(meant.split("|"), parsed_args)
    found: list[str] = FilesCompleter()(prefix)
    if runs and parsed_args.command in ([], ["--"]):
        programs = subprocess.run(["bash", "-c", 'compgen -c -- "$0"', prefix], text=True,
                                  capture_output=True, check=False)
        found += programs.stdout.split()
    return found


def _present(metavars: Sequence[str], options: Options) -> dict[str, str]:
    """What nvshared has now for arguments of these metavars, with descriptions. Empty if nvshared
    does not answer: an error would be printed amid the command line that is being typed."""
    look: dict[str, Callable[[Daemon], dict[str, str]]] = {
        "GPU": lambda daemon: {str(one["Index"]): one["Name"] for one in daemon.gpus()},
        "PID": lambda daemon: {
            str(one.pid): one.command for one in daemon.snapshot().clients if one.pid},
        "TENANT": lambda daemon: {
            one.name: counted(one.programs, "program") for one in daemon.tenants()},
        "FOLDER": lambda daemon: {
            one.folder: one.state for one in daemon.saved(getattr(options, "to", None) or "")},
    }
    found: dict[str, str] = {}
    if wanted := [look[one] for one in metavars if one in look]:
        with suppress(NvshareError), Daemon(options.bus, QUICK, asks=False) as daemon:
            for one in wanted:
                found |= one(daemon)
    return found


@verb("completion", argument("shell", "SHELL", ", ".join(SHELLS), choices=SHELLS))
def completion(options: Options) -> None:
    """Print the script that makes the Tab key complete words.

    Prints a completion script for bash, zsh or fish. Tab also offers the GPUs, process ids, tenants
    and saved programs that nvshared has at that moment.

        eval "$(nvsharectl completion bash)"                                     # in ~/.bashrc
        eval "$(nvsharectl completion zsh)"  # in ~/.zshrc, after compinit
        nvsharectl completion fish > ~/.config/fish/completions/nvsharectl.fish  # once
    """
    from argcomplete.shell_integration import shellcode

    print(shellcode(["nvsharectl"], use_defaults=False, shell=options.shell))


@verb("help", argument("about", "HELP", "the verb to explain (default: all)", nargs="?"))
def help(options: Options) -> None:
    """The same as --help.

    Prints the help of nvsharectl, or that of one verb.

        nvsharectl help limit  # the same as: nvsharectl limit --help
    """
    options.parser.parse_args([*filter(None, [options.about]), "--help"])


VERBS: tuple[Verb, ...] = (
    status.status, status.top, status.clients, status.tenants, history.history, run.run,
    settings.set_tq, settings.anti_thrash, settings.policy, settings.limit, settings.weight,
    settings.priority, settings.suspend, settings.resume, settings.park, settings.move,
    saving.save, saving.restore, settings.preempt, settings.reset, settings.drain,
    settings.forget_gpu,
    machine.preload, containers.containers, machine.doctor, machine.demo, machine.trial,
    completion, help,
)

Examples = Sequence[tuple[str, str]]    # (command, its effect)
WIDTH = 78                              # columns of help text, for a terminal of 80
FEW = 5                                 # most choices that a hint lists; of more, only the closest
# Verbs that systemd's programs have: the closest verb of nvsharectl would be a wrong hint.
ELSEWHERE = {
    verb: f"give: systemctl {verb} nvshared"
    for verb in ("start", "stop", "restart", "reload", "enable", "disable")
}
VERB = "VERB"
HELP_COLUMN = 18                        # column where the text for an option or verb begins

DESCRIPTION = "See and change how programs share this machine's GPUs."
EXAMPLES = (
    ("nvsharectl", "the GPUs and their programs, as does: nvsharectl status"),
    ("nvsharectl run -- python train.py", "run a program that shares the GPU with others"),
    ("nvsharectl top", "watch the programs take turns"),
    ("nvsharectl set-tq 10", "let a program keep a GPU for 10 s while others wait"),
)


class CommandParser(parser.Parser):
    def _print_message(self, message: str, file: Any = None) -> None:
        """Raises OSError if `message` cannot be written, which argparse would ignore."""
        print(message, end="", file=file)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(one) for one in action.choices]
        close = []
        if len(known) > FEW:
            from difflib import get_close_matches

            close = get_close_matches(str(value), known, 1)
        hint = f"did you mean {close[0]}?" if close else f"give one of {', '.join(known)}"
        name = action.metavar or f"the {action.dest}"
        raise InvalidArgs(f"{name} cannot be {value!r}", ELSEWHERE.get(str(value), hint)
                          if action.metavar == VERB else hint)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        self._check_leading_options(args)
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            verb = f" {options.verb.name}" if options.verb else ""
            raise InvalidArgs(f"nvsharectl{verb} does not know {' '.join(unknown)!r}",
                              f"see: nvsharectl{verb} --help")
        return options

    def _check_leading_options(self, args: Sequence[str]) -> None:
        """Raises InvalidArgs for an option before the verb that is no option of nvsharectl itself.

        argparse would take the option's value for the verb, and report an unknown verb."""
        left = list(args)
        while left and left[0].startswith("-") and left[0] != "--":
            name, equals, _ = left.pop(0).partition("=")
            short = name if name.startswith("--") else name[:2]     # -T5: option with value
            action = self._option_string_actions.get(short)
            if action is None:
                of_a_verb = any(
                    short in verb._option_string_actions
                    for one in self._actions if isinstance(one, argparse._SubParsersAction)
                    for verb in one.choices.values())
                raise InvalidArgs(
                    f"{short!r} belongs behind its verb, not before it" if of_a_verb else
                    f"nvsharectl does not know {name!r}", "see: nvsharectl --help")
            if action.nargs != 0 and not equals and name == short:
                del left[:1]


def build(verbs: tuple[Verb, ...]) -> CommandParser:
    """Makes the parser of nvsharectl. It sets `verb` to None if the user gives no verb."""
    parser = _parser(DESCRIPTION, EXAMPLES, CommandParser, prog="nvsharectl")
    parser.add_argument("--version", action="version", version=f"nvsharectl {__version__}",
                        help="print the version")
    _add_common(parser, os.environ.get(BUS_VARIABLE) or "system", False)
    old = parser.add_argument_group("as in nvshare")
    old.add_argument("-T", "--set-tq", metavar=settings.QUANTUM, type=settings.quantum,
                     help="the same as: nvsharectl set-tq")
    old.add_argument("-S", "--anti-thrash", metavar="MODE", choices=MODES,
                     help="the same as: nvsharectl anti-thrash")
    verb_parsers = parser.add_subparsers(metavar=VERB, title="verbs", parser_class=CommandParser)
    parser.set_defaults(verb=None, parser=parser)
    for known in verbs:
        one = _parser(known.description, known.examples, verb_parsers.add_parser, known.more,
                      name=known.name, help=known.summary, usage=known.usage)
        # SUPPRESS: an option before the verb keeps its value unless it is repeated after the verb.
        _add_common(one, argparse.SUPPRESS, argparse.SUPPRESS)
        for names, parameters in known.arguments:
            one.add_argument(*names, **parameters)
        one.set_defaults(verb=known)
    return parser


def _add_common(parser: CommandParser, bus: str, json: bool | str) -> None:
    parser.add_argument(
        "--bus", metavar="BUS", default=bus,
        help=f"message bus of nvshared: system, session or an address (or set {BUS_VARIABLE})")
    parser.add_argument("--json", action="store_true", default=json,
                        help="print JSON, from the same data as the text")


def _parser(description: str, examples: Examples, make: Any, below: str = "",
            **options: Any) -> CommandParser:
    parser: CommandParser = make(
        allow_abbrev=False,
        description=textwrap.fill(description, WIDTH, break_on_hyphens=False),
        epilog="\n".join(["examples:", *_lines(examples), *(["", below] if below else [])]),
        formatter_class=partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=HELP_COLUMN),
        **options)
    return parser


def _lines(examples: Examples) -> list[str]:
    """The examples, with explanations beside or, if a line would exceed WIDTH, below commands."""
    longest = max((len(command) for command, _ in examples), default=0)
    beside = [f"  {command.ljust(longest)}   {what}" for command, what in examples]
    if max(map(len, beside), default=0) <= WIDTH:
        return beside
    return [line for command, what in examples for line in (f"  {command}", f"      {what}")]
