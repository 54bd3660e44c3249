# SPDX-License-Identifier: Apache-2.0
"""How many bytes of a card can be handed out.

    capacity = min(configured, total - outside - reserve - contexts to come)

*Outside* is what nobody tells us about: contexts, modules, the driver itself
and programs that run without the library. It is the difference of what NVML
says is used and what our clients say they hold. The two are taken at different
moments, so the difference means something only if nothing moved in between:
no order on its way, and the same figures before and after (gpu.py sees to it).

Even then a client may have mapped something it has not reported yet. Taking
that for outside memory would make the scheduler evict for nothing, or refuse
memory that there is. So an increase must be seen in two samples in a row, and
what clients have reported between them does not count; a decrease is believed
at once.

A client's context is made just before it says HELLO, and the driver goes on
allocating for it (modules, printf buffers) while it starts. Until two samples
have seen a client, a reserve is kept for its context; of each account
(scheduler/trust.py) for a few at most, as anybody can connect. One is always
kept for one more, which nobody knows of before it has made its context. Where no
sample means anything, as NVML fails or something is always on its way, time has
to do: the reserve is given up after a while, and what a context took shows when
the driver has less than it should.
"""

from collections import Counter
from dataclasses import dataclass, field

from nvshared.units import MIB

CONTEXT = 600 * MIB                     # what a context takes on a large card, with its modules
RESERVE = 256 * MIB                     # what the driver likes to have left for itself
SMALLEST_SHARE = 64                     # but on small cards 1/64 for the reserve,
CONTEXT_SHARE = 16                      # and 1/16 for a context
SAMPLES_TO_BELIEVE = 2
YOUNG_MOST = 4                          # contexts of one account, for which a reserve is kept


@dataclass(frozen=True, slots=True)
class Allowances:
    """What the administrator wants; bytes. None means: derive it from the card's size."""

    configured: int | None = None       # capacity at most; None: the whole card
    reserve: int | None = None
    context_reserve: int | None = None


@dataclass(slots=True)
class Capacity:
    """What one card offers, learned sample by sample."""

    total: int                          # bytes on the card, as NVML says
    allowances: Allowances = Allowances()
    outside: int = 0                    # bytes, as believed now
    _last: tuple[int, int] | None = field(default=None, init=False)     # used and held
    _accounts: dict[int, str] = field(default_factory=dict, init=False)
    _seen: dict[int, int] = field(default_factory=dict, init=False)     # of those seen too rarely

    @property
    def reserve(self) -> int:
        """Bytes never handed out."""
        if self.allowances.reserve is not None:
            return self.allowances.reserve
        return min(RESERVE, self.total // SMALLEST_SHARE)

    @property
    def context_reserve(self) -> int:
        """Bytes kept for the context of a client that the samples have not seen yet."""
        if self.allowances.context_reserve is not None:
            return self.allowances.context_reserve
        return min(CONTEXT, self.total // CONTEXT_SHARE)

    @property
    def offered(self) -> int:
        """Bytes of the card that clients are told it has in all."""
        configured = self.allowances.configured
        return self.total if configured is None else min(self.total, configured)

    @property
    def bytes(self) -> int:
        """Bytes that can be handed out now."""
        # And one more may start at any moment, before it can say so.
        free = self.total - self.outside - self.reserve - (self._young + 1) * self.context_reserve
        return max(0, min(self.offered, free))

    @property
    def _young(self) -> int:
        """How many contexts are still to show, or may be."""
        of_all = Counter(self._accounts.get(client, "") for client in self._seen)
        return sum(min(n, YOUNG_MOST) if account else n for account, n in of_all.items())

    def joined(self, client: int, account: str = "") -> None:
        """A client whose context no sample has seen yet; one of many, where it is an account's."""
        self._seen[client] = 0
        if account:
            self._accounts[client] = account

    def left(self, client: int) -> None:
        """A client is gone; its context too, as the next samples will show."""
        self._seen.pop(client, None)
        self._accounts.pop(client, None)

    def grown(self, client: int) -> None:
        """A client has its context by now, whether samples show it or not."""
        self._seen.pop(client, None)

    def sampled(self, used: int, held: int, *, alone: bool = False) -> None:
        """NVML says `used` bytes while clients say they hold `held` in all, at one moment.

        `alone`: there are no clients, so none can have mapped what it has not reported.
        """
        outside = max(0, used - held)
        if self._last is None:
            self.outside = max(0, outside - self._young * self.context_reserve)
        else:
            # A context that is still to show comes while its client grows.
            used_before, held_before = self._last
            reported = 0 if self._seen else max(0, held - held_before)
            seen_before = used_before - held_before - reported
            self.outside = outside if alone else min(outside, max(self.outside, seen_before))
        self._last = used, held
        self._seen = {
            client: seen + 1 for client, seen in self._seen.items() if seen + 1 < SAMPLES_TO_BELIEVE
        }
