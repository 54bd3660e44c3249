# SPDX-License-Identifier: Apache-2.0
"""Derives the schedulers' initial settings from the configuration, the host and its GPUs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from nvshared.errors import ConfigError
from nvshared.machine import disk, host
from nvshared.machine.capacity import Allowances, Capacity
from nvshared.machine.nvml import Facts
from nvshared.quantity import Amount, rounded
from nvshared.scheduler.events import Accounting, AntiThrash, Settings
from nvshared.settings.config import Config
from nvshared.units import MIB, SECOND

# Most bytes of one EVICT or LOAD order: PCIe needs about 10 ms for them, the order itself 0.1 ms.
STEP = 512 * MIB
STEP_SHARE = 32                         # on small cards, an order moves at most 1/32 of the memory
STEP_LEAST = 32 * MIB                   # least bytes of an order: one block of the library
PAGE = 2 * MIB                          # granularity of device memory
# After a restart programs connect again within this time; a decision without them would count
# their memory as free.
GATHER = SECOND


class GPUDefaults(NamedTuple):
    """Settings that depend on a GPU's memory size, in bytes."""

    allowances: Allowances
    step: int


@dataclass(frozen=True, slots=True)
class Defaults:
    """Settings derived from the configuration.

    `settings` applies to all GPUs, but for `capacity`, `total` and `step`, which `card` computes.
    `safe`: swap-budget is auto, so the host budget is measured at start (SafeBudget)."""

    settings: Settings
    card: Callable[[Facts], GPUDefaults]
    safe: bool = False
    neighbour: str = "auto"             # which cards lend memory: see Lending in sharing/budget.py
    deep_idle: int | None = None        # microseconds; None: idle clients keep their contexts
    balance: bool = False               # whether clients move between GPUs: sharing/balancing.py
    disk: tuple[Path, int] | None = None    # directory, most bytes of swapped memory there


def derive(config: Config, cards: Sequence[Facts], safe_budget: int) -> Defaults:
    """Derives the settings. Raises ConfigError if a setting does not fit a card or the host.

    `safe_budget`: bytes of host memory for swap-budget = auto, measured at start."""
    for facts in cards:
        _card(config, facts)
    budget = safe_budget if config.swap_budget is None else config.swap_budget.of(host.total())
    if budget > host.total():
        raise ConfigError(f"{_place(config, 'swap-budget')}a swap-budget of {rounded(budget)} is "
                          f"more than the {rounded(host.total())} this host has",
                          "give less, a percentage, or auto")
    same_name = {one.name: getattr(config, one.name) for one in fields(Settings)
                 if hasattr(config, one.name)}
    accounting = Accounting(config.compute_window, config.quota_sample_interval,
                            config.quota_carryover, config.drop_tail_billing)
    settings = Settings(**same_name | {
        "anti_thrash": AntiThrash(config.anti_thrash), "capacity": 0, "total": 0,
        "host_budget": budget, "step": PAGE, "gather": GATHER,
        "deep_idle": config.deep_idle is not None, "accounting": accounting})
    return Defaults(settings, lambda facts: _card(config, facts), config.swap_budget is None,
                    config.neighbour if "neighbour" in config.tiers else "off", config.deep_idle,
                    config.balance, config.disk if "disk" in config.tiers else None)


def disk_doubts(config: Config) -> Iterator[str]:
    """A sentence if the disk tier's directory cannot be used. May block."""
    if config.disk is not None and (fault := disk.fault(*config.disk)):
        yield (f"{_place(config, 'disk')}the disk cannot be used: {fault}; the daemon starts, and "
               "uses host memory alone")


def _card(config: Config, facts: Facts) -> GPUDefaults:
    total = facts.memory_total
    allowances = Allowances(
        configured=_within(config, "capacity", config.capacity, facts),
        reserve=_within(config, "reserve", config.reserve, facts),
        context_reserve=_within(config, "context-reserve", config.context_reserve, facts))
    offer = Capacity(total, allowances)
    if not offer.bytes:
        raise ConfigError(f"{_place(config, 'reserve', 'context-reserve', 'capacity')}a reserve of "
                          f"{rounded(offer.reserve)} and a context-reserve of "
                          f"{rounded(offer.context_reserve)} leave nothing of GPU {facts.index} "
                          f"({facts.name}), which has {rounded(total)}",
                          "give less, or a percentage")
    step = max(STEP_LEAST, min(STEP, total // STEP_SHARE))
    return GPUDefaults(allowances, step // PAGE * PAGE)


def _within(config: Config, name: str, amount: Amount | None, facts: Facts) -> int | None:
    """Bytes of an amount; None: automatic. Raises ConfigError if the card has less memory."""
    if amount is None:
        return None
    wanted = amount.of(facts.memory_total)
    if wanted > facts.memory_total:
        raise ConfigError(f"{_place(config, name)}a {name} of {rounded(wanted)} is more than GPU "
                          f"{facts.index} ({facts.name}) has: {rounded(facts.memory_total)}",
                          "give less, or a percentage")
    return wanted


def _place(config: Config, *names: str) -> str:
    """A prefix for an error message: FILE:LINE or variable of the first of these settings set."""
    places = [config.places[name] for name in names if name in config.places]
    return f"{places[0]}: " if places else ""
