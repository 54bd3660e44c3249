# SPDX-License-Identifier: Apache-2.0
"""The driver and the cards, as NVML tells of them."""

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nvshared import library
from nvshared.doctor.finding import Finding, fault, note, ok, warning
from nvshared.errors import NvshareError
from nvshared.machine.nvml import NVML, Facts, Mode, Sample
from nvshared.names import TRIAL_FOLDER
from nvshared.units import GIB


@dataclass(frozen=True, slots=True)
class InspectedGPU:
    """One card at one moment."""

    facts: Facts
    mode: Mode
    sample: Sample | None               # None: it does not answer
    error: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """The driver and all cards, or why there are none."""

    driver: str = ""                    # version
    cards: tuple[InspectedGPU, ...] = ()
    error: NvshareError | None = field(default=None)
    trial: str = ""                     # the variables with which programs find its GPUs, if any


def look() -> Seen:
    """Asks NVML. During a trial it is the simulated one, as for the service."""
    trial = ""
    try:
        if Path(TRIAL_FOLDER).is_dir():
            trial = _find_trial()
        nvml = NVML()
        driver = nvml.driver()
        facts = nvml.find()
    except NvshareError as error:
        return Seen(error=error, trial=trial)
    return Seen(driver, tuple(_look(nvml, one) for one in facts), trial=trial)


def _find_trial() -> str:
    """Loads the simulated NVML, which this process then has in place of the driver's.

    Raises NvshareError if it is not installed.
    """
    folder = library.simulator()
    os.environ["NVSHARE_SIM_DIR"] = TRIAL_FOLDER
    ctypes.CDLL(str(folder / "libnvidia-ml.so.1"))
    return f"LD_LIBRARY_PATH={folder} NVSHARE_SIM_DIR={TRIAL_FOLDER}"


def findings(seen: Seen) -> Iterator[Finding]:
    """The trial if one is on, the driver, then each card."""
    if seen.trial:
        yield note(
            "trial", "the service shares simulated GPUs, and no real one",
            f"programs find them with: export {seen.trial}; end it with: nvsharectl trial stop",
        )
    if seen.error is not None:
        yield fault("driver", seen.error.message, seen.error.hint or "see what nvidia-smi says")
        return
    yield ok("driver", f"version {seen.driver}")
    for card in seen.cards:
        yield _card(card)


def _look(nvml: NVML, facts: Facts) -> InspectedGPU:
    try:
        return InspectedGPU(facts, nvml.mode(facts.uuid), nvml.sample(facts.uuid))
    except NvshareError as error:
        return InspectedGPU(facts, Mode(), None, error.message)


def _card(card: InspectedGPU) -> Finding:
    facts = card.facts
    topic = f"gpu {facts.index}"
    words = f"{facts.name}, {facts.memory_total / GIB:.1f} GiB, {facts.pci_bus_id}"
    if card.sample is None:
        return fault(topic, f"{words}, does not answer: {card.error}", "see what dmesg says")
    if card.mode.exclusive:
        return fault(
            topic, f"{words}, lets one process use it at a time (compute mode)",
            f"let several: nvidia-smi -i {facts.index} -c DEFAULT",
        )
    if card.mode.mig:
        return warning(
            topic, f"{words}, is divided (MIG), and nvshared shares whole cards",
            f"undo it if nobody needs it: nvidia-smi -i {facts.index} -mig 0",
        )
    if card.sample.memory_used is not None:
        words += f", {card.sample.memory_used / GIB:.1f} GiB used"
    return ok(topic, words)
