# SPDX-License-Identifier: Apache-2.0
"""The verbs, in the order in which help lists them."""

from nvshared.cli import (
    antithrash,
    clients,
    completion,
    demo,
    doctor,
    preload,
    quantum,
    reset,
    run,
    status,
    top,
)
from nvshared.cli.verb import Verb

VERBS: tuple[Verb, ...] = (
    status.VERB,
    top.VERB,
    clients.VERB,
    run.VERB,
    quantum.VERB,
    antithrash.VERB,
    reset.VERB,
    preload.VERB,
    doctor.VERB,
    demo.VERB,
    completion.VERB,
)
