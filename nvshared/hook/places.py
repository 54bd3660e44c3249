# SPDX-License-Identifier: Apache-2.0
"""Bounds the number of connections, in all and of each user.

There are so many places in all, and each user but root may have so many of them. The last of
them are kept: a sixteenth for root alone, and a quarter for users who have few. The more a user
has, the more must be left for others. So a few users who take all they can get leave places for
a user who has none yet, and root always finds one.

A pod or container counts as a user of its own, whatever user ids are in use in there; root in
there is not this root.
"""

from collections import Counter
from collections.abc import Hashable

ROOT = ""
FOR_ROOT = 16                           # the part of all places that only root gets
FOR_OTHERS = 4                          # the part that users with many leave to others,
MANY = 256                              # which is this part of them, or more


class Places:
    """Counts them, by account (machine/peer.py)."""

    def __init__(self, most: int, most_of_a_user: int) -> None:
        self._left = self._most = most
        self._most_of_a_user = most_of_a_user
        self._by_account: Counter[Hashable] = Counter()

    def take(self, account: Hashable) -> bool:
        """Takes a place for a user. False: there is none for it."""
        if self._left <= self._kept_from(account):
            return False
        self._left -= 1
        self._by_account[account] += 1
        return True

    def give(self, account: Hashable) -> None:
        """Gives a place back."""
        self._left += 1
        self._by_account[account] -= 1
        if not self._by_account[account]:
            del self._by_account[account]

    def _kept_from(self, account: Hashable) -> int:
        """The number of places that this user must leave to others."""
        if account == ROOT:
            return 0
        has = self._by_account[account]
        if has >= self._most_of_a_user:
            return self._most
        many = max(1, self._most // MANY)
        for_others = self._most // FOR_OTHERS * min(has, many) // many
        return self._most // FOR_ROOT + for_others
