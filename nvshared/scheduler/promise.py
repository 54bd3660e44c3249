# SPDX-License-Identifier: Apache-2.0
"""One client's promised memory, and the memory that it claims to hold; promises.py decides."""

from dataclasses import dataclass
from typing import NamedTuple

from nvshared.scheduler import events
from nvshared.scheduler.events import Evidence, Memory
from nvshared.scheduler.records import Counting


class Pin(NamedTuple):
    """A grant to pin that the hook may not have received, so Memory.to_pin does not contain it."""

    number: int
    bytes: int
    until: int                          # when the grant expires if the hook never acknowledges it


@dataclass(slots=True)
class Promise(Counting):
    """How far a client may grow, its COMMIT request, and the last LIMITS."""

    commit: int = 0                     # bytes promised to the client
    withdrawn: int = 0                  # earlier commit, counted until the smaller one is confirmed
    confirmed_by: int = 0               # number of an order; its reply confirms `commit`; 0: none
    request: events.CommitAsked | None = None   # the unanswered COMMIT request
    requested: int = 0                  # when `request` arrived
    wanted: int = 0                     # bytes of the last grant, until the client needs as much
    wanted_until: int = 0               # when an unused grant can be called back
    pins: tuple[Pin, ...] = ()          # grants to pin that the hook may not have received
    last_most: int = 0                  # `most` of the last LIMITS
    last_total: int = 0                 # `total` of the last LIMITS

    @property
    def in_force(self) -> int:
        """The commit that counts while the hook may not have received a smaller one."""
        return max(self.commit, self.withdrawn, self.wanted)

    def ask(self, request: events.CommitAsked | None, now: int) -> None:
        """Records a COMMIT request. None: the last one was answered."""
        self.request, self.requested = request, now

    def make(self, commit: int) -> None:
        self.commit = commit

    def grant(self, commit: int, wanted: int, until: int) -> None:
        """Grants a COMMIT request for `wanted` bytes, which is not called back before `until`."""
        self.commit = max(self.commit, commit)
        self.wanted, self.wanted_until = wanted, until

    def forget_grant(self) -> None:
        """The last grant was used, or not in time."""
        self.wanted = 0

    def grant_pins(self, *pins: Pin) -> None:
        """Sets the grants to pin that the hook may not have received."""
        if pins != self.pins:
            self.pins = pins

    def call_back(self, least: int) -> None:
        """Takes back the promise beyond `least` bytes, once the client has confirmed that."""
        self.withdrawn, self.commit = self.commit, least

    def confirm_by(self, number: int) -> None:
        """The reply to the order of this number shows that the hook has the smaller commit."""
        self.confirmed_by = number

    def confirm(self, number: int, used: int) -> None:
        """The hook has answered the order of this number. Of the earlier commit it may have `used`
        more bytes than the smaller one, before that reached it."""
        if self.confirmed_by and self.confirmed_by <= number:
            self.commit = max(self.commit, min(used, self.withdrawn))
            self.confirmed_by = self.withdrawn = 0

    def note_limits(self, most: int, total: int) -> None:
        self.last_most, self.last_total = most, total


class Overclaims(NamedTuple):
    """Bytes that a client claims to hold, but that do not count for it."""

    filled: int = 0
    host: int = 0
    beyond: int = 0


@dataclass(slots=True)
class Claims(Counting):
    """Evidence, from other sources, of the memory that a client claims to hold."""

    account: str                        # the account of the claims; "": trusted
    evidence: Evidence = Evidence()
    over: Overclaims = Overclaims()
    unshown: int = 0                    # claimed bytes that the last sample did not show
    silenced: bool = False              # unresponsive: its evidence counts, not its claims
    unproved: int = 0                   # bytes on the disk by its own claim only

    def begin(self, stored: int) -> None:
        """Records that only the client's claim shows the bytes that an earlier daemon stored."""
        self.unproved = stored

    def overclaim(self, over: Overclaims) -> None:
        self.over = over

    def follow(self, before: Memory, reported: Memory, room: int, host: int) -> None:
        """Records how claims change from `before` to `reported`: they may grow up to the room and
        the host memory that orders allow."""
        self.silenced, self.unproved = False, min(self.unproved, reported.disk)
        if self.account:
            self.over = Overclaims(
                max(0, reported.filled - max(before.filled - self.over.filled, room)),
                max(0, reported.host - max(before.host - self.over.host, host)),
                max(0, reported.beyond - (before.beyond - self.over.beyond)))

    def see(self, evidence: Evidence, *, silenced: bool) -> None:
        """Records a sample of NVML's and the kernel's figures."""
        self.evidence, self.silenced = evidence, silenced

    def judge(self, unshown: int) -> None:
        """Claims of bytes on the card that two samples in a row did not show become overclaims: a
        single sample may miss memory that was freed a moment ago."""
        overclaimed = min(unshown, max(self.unshown, self.over.filled))
        self.unshown, self.over = unshown, self.over._replace(filled=overclaimed)
