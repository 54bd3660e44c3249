# SPDX-License-Identifier: Apache-2.0
"""How much of the card's time a limited client may use: accounts in windows.

A limit of P percent gives P percent of each window, to be used at any moment of it. Billed is
the time from when its gate opens until its work is done. Its hook says how long that was, to the
microsecond. Until then we bill by our own clock.

**Windows** last a tenth of a second where nothing has to move, so that a program does not
stutter, and two seconds where programs take turns, as each turn may cost a hand-over. Or they
last as long as the administrator says.

**Overuse.** Work in flight cannot be interrupted, so a client may use more than was left. It
owes that. A part of its debt is taken off the next window, the same part of the rest off the
one after, and so on. With all of it, the rule, a client gets exactly its share over time,
however long its kernels are. With a part of 0 nothing is ever taken off.

**Claims.** What is not used of a window is gone at its end, as the limit holds for every
window. But a client that wanted it and stood in the queue keeps it. Otherwise one that waits
thirty seconds for its turn would have a turn of one window's time. So does a client for whom too
little was left to open its gate. A client that may run earns no claims, and one that wants
nothing any more loses those it has.
"""

from dataclasses import dataclass, replace

from nvshared.units import MILLISECOND, SECOND

UNLIMITED = 100                         # percent
TURN = 2 * SECOND                       # a window where programs take turns,
SMOOTH = 100 * MILLISECOND              # and where they need not
LEAST_PART = 10                         # of a window, and no turn is shorter for its grain


@dataclass(frozen=True, slots=True)
class Accounting:
    """What is the same for all limits. Times in microseconds, parts in percent."""

    window: int | None = None           # None: SMOOTH or TURN
    grain: int = 50_000                 # with less than that to use, a gate stays shut
    carryover: int = 100                # of what is owed, taken off the next window
    tail: int = 100                     # of the time from STOP to drained, billed

    def length(self, *, turns: bool) -> int:
        """Of a window that begins now."""
        if self.window is not None:
            return self.window
        return TURN if turns else SMOOTH


@dataclass(frozen=True, slots=True)
class Quota:
    """One client's account in the present window. Microseconds."""

    percent: int                        # 1 to 99
    window: int                         # its length
    start: int                          # when it began
    billed: int                         # in all, until then
    allowance: int                      # to be used in it
    claim: int = 0                      # the part of it that is from earlier windows
    owed: int = 0                       # to be taken off later windows

    def left(self, billed: int) -> int:
        """What may still be used, if so much has been billed in all; negative: overused."""
        return self.allowance - (billed - self.billed)

    @property
    def share(self) -> int:
        """What the limit gives of the window."""
        return self.window * self.percent // 100

    @property
    def ends(self) -> int:
        """When the window does."""
        return self.start + self.window

    def least(self, accounting: Accounting) -> int:
        """With less than this to use, the gate stays shut until the next window."""
        return min(accounting.grain, self.share, self.window // LEAST_PART)

    def renewed(self, accounting: Accounting, billed: int) -> int:
        """When so much can be used again, if it is not now; where windows stay as long."""
        if accounting.carryover < 100 or not self.share:
            return self.ends
        missing = self.owed + self.least(accounting) - self.left(billed)
        return self.ends + self.window * max(0, -(-missing // self.share) - 1)


def begin(percent: int, window: int, now: int, billed: int) -> Quota:
    """A limit of so many percent from now on; nothing is owed from before."""
    return Quota(percent, window, now, billed, window * percent // 100)


def change(quota: Quota, percent: int) -> Quota:
    """Another limit within the same window: its share in place of the one before."""
    changed = replace(quota, percent=percent)
    return replace(changed, allowance=quota.allowance + changed.share - quota.share)


def roll(
    quota: Quota, accounting: Accounting, now: int, billed: int, *, waits: bool, holds: bool,
    short: bool = False, turns: bool = False,
) -> Quota:
    """The account as of `now`, in the window that it falls into.

    `waits`: since it was rolled last the client has stood in the queue; `holds`: it has had a
    turn; `short`: too little was left for one. `billed`: in all until now. `turns`: programs take
    turns.
    """
    while now >= quota.ends:
        used = min(billed - quota.billed, quota.window)
        following = replace(
            quota, window=accounting.length(turns=turns), start=quota.ends,
            billed=quota.billed + used, claim=0)
        if not (waits or holds or short or used or quota.owed):
            behind = (now - following.start) // following.window
            return replace(
                following, start=following.start + behind * following.window,
                allowance=following.share)
        quota = _next(quota, following, accounting, waits=waits, holds=holds, short=short)
    return quota


def _next(
    quota: Quota, following: Quota, accounting: Accounting, *, waits: bool, holds: bool,
    short: bool,
) -> Quota:
    """The window after this one, with what comes from it."""
    left = quota.left(following.billed)
    claim = 0
    if waits:
        claim = max(0, left)
    elif holds:
        claim = min(max(0, left), quota.claim)
    elif short:
        claim = min(max(0, left), quota.least(accounting))
    owed = quota.owed + max(0, -left) if accounting.carryover else 0
    paid = min(following.share, -(-owed * accounting.carryover // 100))
    return replace(
        following,
        allowance=following.share - paid + claim,
        claim=claim,
        owed=owed - paid,
    )
