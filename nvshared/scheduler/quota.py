# SPDX-License-Identifier: Apache-2.0
"""How much of the card's time a limited client may use: accounts in windows.

A limit of P percent gives P percent of each window, to be used at any moment of it. Billed is
the time its gate is open, and a part of the drain after that, as the card may have been through
with its work before the drain was reported.

**Overuse.** Work in flight cannot be interrupted, so a client may use more than was left. It
owes that. A part of its debt is taken off the next window, the same part of the rest off the
one after, and so on. So a program of long kernels gets its share over several windows, neither
more nor nothing for a while. With a part of 0 nothing is ever taken off.

**Claims.** What is not used of a window is gone at its end, as the limit holds for every
window. But a client that wanted it and stood in the queue keeps it. Otherwise one that waits
thirty seconds for its turn would have a turn of one window's time. A client that may run earns
no claims, and one that wants nothing any more loses those it has.
"""

from dataclasses import dataclass, replace

UNLIMITED = 100                         # percent


@dataclass(frozen=True, slots=True)
class Accounting:
    """What is the same for all limits. Times in microseconds, parts in percent."""

    window: int = 2_000_000
    grain: int = 50_000                 # with less than that to use, a gate stays shut
    carryover: int = 25                 # of what is owed, taken off the next window
    tail: int = 70                      # of the time from STOP to drained, billed


@dataclass(frozen=True, slots=True)
class Quota:
    """One client's account in the present window. Microseconds."""

    percent: int                        # 1 to 99
    start: int                          # when the window began
    billed: int                         # in all, until then
    allowance: int                      # to be used in it
    claim: int = 0                      # the part of it that is from earlier windows
    owed: int = 0                       # to be taken off later windows

    def left(self, billed: int) -> int:
        """What may still be used, if so much has been billed in all; negative: overused."""
        return self.allowance - (billed - self.billed)

    def ends(self, accounting: Accounting) -> int:
        """When the window does."""
        return self.start + accounting.window

    def least(self, accounting: Accounting) -> int:
        """With less than this to use, the gate stays shut until the next window."""
        return min(accounting.grain, _share(self.percent, accounting))


def begin(percent: int, accounting: Accounting, now: int, billed: int) -> Quota:
    """A limit of so many percent from now on; nothing is owed from before."""
    return Quota(percent, now, billed, _share(percent, accounting))


def change(quota: Quota, percent: int, accounting: Accounting) -> Quota:
    """Another limit within the same window: its share in place of the one before."""
    difference = _share(percent, accounting) - _share(quota.percent, accounting)
    return replace(quota, percent=percent, allowance=quota.allowance + difference)


def roll(
    quota: Quota, accounting: Accounting, now: int, billed: int, *, waits: bool, holds: bool
) -> Quota:
    """The account as of `now`, in the window that it falls into.

    `waits`: since it was rolled last the client has stood in the queue; `holds`:
    it has had a turn. `billed`: in all until now.
    """
    while now >= quota.ends(accounting):
        used = min(billed - quota.billed, accounting.window)
        if not (waits or holds or used or quota.owed):
            behind = (now - quota.start) // accounting.window
            share = _share(quota.percent, accounting)
            start = quota.start + behind * accounting.window
            return replace(quota, start=start, billed=billed, allowance=share, claim=0)
        quota = _next(quota, accounting, used, waits=waits, holds=holds)
    return quota


def _next(quota: Quota, accounting: Accounting, used: int, *, waits: bool, holds: bool) -> Quota:
    """The window after this one, of which so much was used."""
    left = quota.allowance - used
    claim = 0
    if waits:
        claim = max(0, left)
    elif holds:
        claim = min(max(0, left), quota.claim)
    owed = quota.owed + max(0, -left) if accounting.carryover else 0
    share = _share(quota.percent, accounting)
    paid = min(share, -(-owed * accounting.carryover // 100))
    return Quota(
        percent=quota.percent,
        start=quota.ends(accounting),
        billed=quota.billed + used,
        allowance=share - paid + claim,
        claim=claim,
        owed=owed - paid,
    )


def _share(percent: int, accounting: Accounting) -> int:
    return accounting.window * percent // 100
