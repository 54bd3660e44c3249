# SPDX-License-Identifier: Apache-2.0
"""Finds what keeps programs of this machine from sharing GPUs, with advice.

    for finding in examine("system").findings:
        print(finding.grade, finding.topic, finding.words, finding.advice)

Each module examines one part. If the daemon, the bus or the driver is missing,
that is a finding, and the other modules go on.
"""

from dataclasses import asdict, dataclass
from typing import Any

from nvshared import __version__
from nvshared.doctor import cards, machine, service
from nvshared.doctor.finding import Finding, Grade

__all__ = ["Examination", "Finding", "Grade", "examine"]


@dataclass(frozen=True, slots=True)
class Examination:
    """All findings. --json prints `as_dict`."""

    version: str                        # of nvsharectl
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether no finding is a fault."""
        return all(finding.grade is not Grade.FAULT for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The findings as values for JSON."""
        return {
            "version": self.version,
            "healthy": self.healthy,
            "findings": [asdict(finding) for finding in self.findings],
        }


def examine(bus: str) -> Examination:
    """Runs all checks; `bus`: the bus of nvshared. Never raises NvshareError."""
    seen = cards.look()
    answer = service.ask(bus)
    findings = [
        *machine.installed(),
        *service.findings(bus, answer),
        *cards.findings(seen),
        *cards.programs(seen, answer.snapshot),
        *cards.neighbours(seen, answer.snapshot, machine.neighbour_mode()),
        *machine.static_pods(),
        *machine.host_memory(seen),
    ]
    return Examination(__version__, tuple(findings))
