# SPDX-License-Identifier: Apache-2.0
"""Where nvsharectl begins and ends."""

import os
import signal
import sys
from collections.abc import Sequence

from nvshared.cli import antithrash, quantum, status
from nvshared.cli.output import complain
from nvshared.cli.parser import build
from nvshared.cli.verb import Options
from nvshared.cli.verbs import VERBS
from nvshared.errors import ExitCode, NvshareError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the status to exit with. An error is a sentence on stderr."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = act(build(VERBS).parse_args(given))
        sys.stdout.flush()
        return code
    except NvshareError as error:
        complain(error, as_json="--json" in given)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has enough of it. Python would complain once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def act(options: Options) -> ExitCode:
    """What the command line asks for: a verb, the predecessor's flags, or just a look."""
    if options.verb is not None:
        chosen: ExitCode = options.verb.act(options)
        return chosen
    if options.set_tq is None and options.anti_thrash is None:
        return status.VERB.act(options)
    if options.set_tq is not None:
        quantum.change(options, options.set_tq, None)
    if options.anti_thrash is not None:
        antithrash.change(options, options.anti_thrash, None)
    return ExitCode.OK
