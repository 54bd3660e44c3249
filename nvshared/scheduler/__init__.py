# SPDX-License-Identifier: Apache-2.0
"""Which clients may use one GPU, when, and with how much memory: a state machine without I/O."""

from nvshared.scheduler.scheduler import Scheduler
from nvshared.scheduler.snapshot import CardSnapshot, CardState, ClientView
from nvshared.scheduler.tenants import Counters

__all__ = ["CardSnapshot", "CardState", "ClientView", "Counters", "Scheduler"]
