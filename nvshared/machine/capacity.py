# SPDX-License-Identifier: Apache-2.0
"""How many bytes of a card can be handed out: its memory less outside memory and reserves.

Outside memory is memory that no client reports, sampled while no memory moves
(sharing/sampler.py). As a client may have mapped memory that it has not reported yet, an increase
counts once two samples show it. Until two samples follow a client's HELLO, a reserve is kept for
the client's context; for at most YOUNG_MOST clients of an account, as every user can connect. The
room of a context that is being restored is held until the restore has ended."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from nvshared.units import MIB

CONTEXT = 600 * MIB                     # bytes of a CUDA context and its modules on a large card
RESERVE = 256 * MIB                     # bytes left free for the driver's own use
RESERVE_PART = 64                       # on a small card the reserve is 1/64 of the card's memory,
CONTEXT_PART = 16                       # and the reserve for a context is 1/16 of that memory
SAMPLES_NEEDED = 2                      # samples after HELLO until a client's context is included
YOUNG_MOST = 4                          # most contexts of one account for which a reserve is kept


class Allowances(NamedTuple):
    """The configured sizes in bytes. None: derived from the card's size."""

    configured: int | None = None       # largest capacity; None: the whole card
    reserve: int | None = None
    context_reserve: int | None = None


@dataclass(slots=True)
class Capacity:
    total: int                          # bytes of the card's memory, as NVML reports
    allowances: Allowances = Allowances()
    outside: int = 0                    # bytes of memory outside nvshared, by the valid samples
    _last: tuple[int, int] | None = field(default=None, init=False)  # last sample: bytes used, held
    # By client with a context that samples may lack: account, bytes, number of samples after that.
    _young: dict[int, tuple[str, int, int]] = field(default_factory=dict, init=False)
    # Bytes of the card by client whose context is being restored, the oldest restore first.
    _held: dict[int, int] = field(default_factory=dict, init=False)

    @property
    def reserve(self) -> int:
        set_to = self.allowances.reserve
        return min(RESERVE, self.total // RESERVE_PART) if set_to is None else set_to

    @property
    def context_reserve(self) -> int:
        """Bytes kept for each client while the samples may lack the client's context."""
        set_to = self.allowances.context_reserve
        return min(CONTEXT, self.total // CONTEXT_PART) if set_to is None else set_to

    @property
    def offered(self) -> int:
        configured = self.allowances.configured
        return self.total if configured is None else min(self.total, configured)

    @property
    def bytes(self) -> int:
        # A program creates its context before its HELLO, so one unannounced context may exist.
        contexts = self._unseen + sum(self._held.values()) + self.context_reserve
        return max(0, min(self.offered, self.total - self.outside - self.reserve - contexts))

    @property
    def _unseen(self) -> int:
        """Bytes of contexts that the samples may lack: the first YOUNG_MOST of each account."""
        counted: Counter[str] = Counter()
        unseen = 0
        for client, (account, size, _) in self._young.items():
            counted[account] += 1
            if client not in self._held and (not account or counted[account] <= YOUNG_MOST):
                unseen += size
        return unseen

    @property
    def restore_margin(self) -> int:
        """Bytes that must be free beside a context that is restored: the driver may need more than
        the context had, and a program that starts creates one of its own."""
        return min(RESERVE, self.total // RESERVE_PART) + self.context_reserve

    def joined(self, client: int, account: str = "", size: int | None = None) -> None:
        """Keeps a reserve for a client's context of `size` bytes; None: of unknown size."""
        self._young[client] = account, self.context_reserve if size is None else size, 0

    def hold(self, client: int, size: int) -> None:
        """Keeps room for a context of `size` bytes and the margin, until release()."""
        beyond = max(0, self.restore_margin - self.reserve - self.context_reserve)
        self._held[client] = size + beyond

    def release(self, client: int) -> None:
        self._held.pop(client, None)

    def held_before(self, client: int) -> int:
        """Bytes held for the contexts whose restores began before that of the client."""
        earlier = 0
        for other, size in self._held.items():
            if other == client:
                break
            earlier += size
        return earlier

    def forget(self, client: int) -> None:
        self._young.pop(client, None)

    def sampled(self, used: int, held: int, *, alone: bool = False) -> None:
        """Applies a sample in bytes: NVML's `used`, and `held`, what clients report in all.

        `alone`: there are no clients, so no mapping can be unreported."""
        outside = max(0, used - held)
        if self._last is None:
            self.outside = max(0, outside - self._unseen)
        else:
            # While samples may lack a client's context, growth of `used` may be that context alone.
            used_before, held_before = self._last
            reported = 0 if self._young or self._held else max(0, held - held_before)
            seen_before = used_before - held_before - reported
            self.outside = outside if alone else min(outside, max(self.outside, seen_before))
        self._last = used, held
        self._young = {
            client: (account, size, seen + 1) for client, (account, size, seen)
            in self._young.items() if seen + 1 < SAMPLES_NEEDED}
