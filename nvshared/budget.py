# SPDX-License-Identifier: Apache-2.0
"""The host memory for what is swapped, split between cards as they need it.

All cards together may take so much, and each scheduler keeps to a part of it that
is its own, so that none has to ask another before it decides. A card keeps what
its clients have taken or have been promised. What nobody needs is split evenly:
whoever comes next finds room on whichever card it starts, and as promises use up a
card's part, it gets its share of what is left of the others'.
"""

from collections.abc import Sequence

from nvshared.scheduler.commit import MARGIN_EACH, MARGIN_MOST, MARGIN_PART


def least(committed: int, capacity: int, held: int, clients: int) -> int:
    """What a card's scheduler must have: bytes.

    `committed`: promised to its clients; `capacity`: what of that the card holds; `held`: of
    host memory, taken already.
    """
    beyond = max(0, committed - capacity)
    # With this much, scheduler/commit.py promises `beyond` and still keeps its margin.
    with_part = -(-beyond * MARGIN_PART // (MARGIN_PART - 1))
    with_margin = max(with_part, beyond + MARGIN_EACH * clients)
    return max(held, min(with_margin, -(-beyond * MARGIN_MOST // (MARGIN_MOST - 1))))


def split(whole: int, needs: Sequence[int]) -> list[int]:
    """The part of each card. In sum no more than the whole, even if that is less than is needed."""
    needed = sum(needs)
    if needed > whole:
        return [whole * need // needed for need in needs]
    return [need + (whole - needed) // len(needs) for need in needs]
