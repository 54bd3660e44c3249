# SPDX-License-Identifier: Apache-2.0
"""The entry point of nvsharectl: parses the command line, runs the verb, reports errors."""

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence

from nvshared.cli import settings
from nvshared.cli.output import discard, print_error
from nvshared.cli.parser import VERBS, build
from nvshared.cli.status import status
from nvshared.cli.verb import Options, Verb
from nvshared.errors import ExitCode, NvshareError
from nvshared.names import DEBUG_VARIABLE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status. Prints an error as a sentence on stderr."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    _prepare_output()
    # A guess until the parser has succeeded. Words after "--" belong to the program of `run`.
    as_json = "--json" in (given[:given.index("--")] if "--" in given else given)
    try:
        options = _parsed(given)
        as_json = options.json
        code: ExitCode | None = None
        if not settings.act_predecessors(options):      # nvshare's flags -T and -S
            verb: Verb = options.verb or status
            code = verb.act(options)
        sys.stdout.flush()
        return code or ExitCode.OK
    except NvshareError as error:
        print_error(error, as_json=as_json)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)                # the reader has closed the pipe
        return 128 + signal.SIGPIPE
    except OSError as error:
        discard(sys.stdout)
        print_error(
            NvshareError(f"the output cannot be written: {error.strerror}"), as_json=as_json)
        return ExitCode.FAILURE
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE, "0") != "0":
            raise
        fault = f"a fault in nvsharectl itself, {type(error).__name__}: {error}"
        again = f"report it with what this prints: {DEBUG_VARIABLE}=1 nvsharectl {' '.join(given)}"
        print_error(NvshareError(fault, again), as_json=as_json)
        return ExitCode.FAILURE


def _parsed(given: Sequence[str]) -> Options:
    """The parsed command line. Raises InvalidArgs; SystemExit after --help and --version."""
    try:
        parser = build(VERBS)
        return parser.parse_args(given, argparse.Namespace(parser=parser))
    except SystemExit:
        sys.stdout.flush()              # an OSError goes to main(), as for a verb's output
        raise


def _prepare_output() -> None:
    if sys.stdout is None:              # the parent process closed it
        sys.stdout = open(os.devnull, "w")      # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        # An encoding without "▶" gets a question mark instead of a UnicodeEncodeError.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
