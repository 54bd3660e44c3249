# SPDX-License-Identifier: Apache-2.0
"""The verbs, in the order in which help lists them."""

from nvshared.cli import (
    antithrash,
    clients,
    completion,
    demo,
    doctor,
    drain,
    limit,
    preempt,
    preload,
    priority,
    quantum,
    reset,
    run,
    status,
    suspension,
    tenants,
    top,
    trial,
    weight,
)
from nvshared.cli.verb import Verb

VERBS: tuple[Verb, ...] = (
    status.VERB,
    top.VERB,
    clients.VERB,
    tenants.VERB,
    run.VERB,
    quantum.VERB,
    antithrash.VERB,
    limit.VERB,
    weight.VERB,
    priority.VERB,
    suspension.SUSPEND,
    suspension.RESUME,
    preempt.VERB,
    reset.VERB,
    drain.VERB,
    preload.VERB,
    doctor.VERB,
    demo.VERB,
    trial.VERB,
    completion.VERB,
)
