# SPDX-License-Identifier: Apache-2.0
"""What is wrong with nvshared on this machine, and what to do about it.

    for finding in examine("system").findings:
        print(finding.grade, finding.topic, finding.words, finding.advice)

Each module looks at one thing and needs none of the others to work: with the
daemon down, without a bus or without a driver there is only more to find.
"""

from dataclasses import asdict, dataclass
from typing import Any

from nvshared import __version__
from nvshared.doctor import cards, machine, service
from nvshared.doctor.finding import Finding, Grade

__all__ = ["Examination", "Finding", "Grade", "examine"]


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found; `as_dict` is what --json prints."""

    version: str                        # of this command
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Nothing keeps programs from sharing their GPU."""
        return all(finding.grade is not Grade.FAULT for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "version": self.version,
            "healthy": self.healthy,
            "findings": [asdict(finding) for finding in self.findings],
        }


def examine(bus: str) -> Examination:
    """Looks at everything; `bus` is where nvshared would be. Never raises NvshareError."""
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
