# SPDX-License-Identifier: Apache-2.0
"""Everything at once, in the order in which one would look."""

from dataclasses import asdict, dataclass
from typing import Any

from nvshared import __version__
from nvshared.doctor import cards, installation, memory, pods, service, tenants
from nvshared.doctor.finding import Finding, Grade


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
        *installation.findings(),
        *service.findings(bus, answer),
        *cards.findings(seen),
        *tenants.findings(seen, answer.snapshot),
        *pods.findings(),
        *memory.findings(seen),
    ]
    return Examination(__version__, tuple(findings))
