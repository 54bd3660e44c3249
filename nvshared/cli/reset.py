# SPDX-License-Identifier: Apache-2.0
"""nvsharectl reset: back to the configuration."""

from nvshared.cli.output import show
from nvshared.cli.quantum import in_words
from nvshared.cli.verb import AUTO, Options, Verb
from nvshared.control import Daemon
from nvshared.errors import NvshareError


def _act(options: Options) -> None:
    with Daemon(options.bus) as daemon:
        daemon.reset_settings()
        try:
            now = daemon.snapshot()
        except NvshareError as error:
            forgotten = "what was set is forgotten, but what holds now is not known"
            error.message = f"{forgotten}: {error.message}"
            raise
    data = {
        "tq": AUTO if now.tq_auto else now.tq, "tq_usec": None if now.tq_auto else now.tq_usec,
        "anti_thrash": now.anti_thrash,
    }
    tq = AUTO if now.tq_auto else in_words(now.tq_usec)
    show(
        options, data,
        lambda: print(f"The configuration holds again: TQ {tq}, anti-thrash {now.anti_thrash}."),
    )


VERB = Verb(
    name="reset",
    summary="forget what was set with set-tq and anti-thrash",
    description=(
        "Forgets what was set with set-tq and anti-thrash, for all GPUs and for single ones. Then "
        "the settings that nvshared last read hold again: those of /etc/nvshare/nvshared.conf, "
        "and the defaults for the rest: 30 seconds, auto. What is set for single programs with "
        "limit, weight and suspend stays, and so does what is set for tenants."
    ),
    examples=(("nvsharectl reset", "the TQ and the anti-thrash mode of the file"),),
    act=_act,
)
