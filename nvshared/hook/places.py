# SPDX-License-Identifier: Apache-2.0
"""Who finds a place for one more connection.

There are so many places in all, and each user but root may have so many of them. The last of
them are kept: a sixteenth for root alone, and a quarter for users who have few. The more a user
has, the more must be left for others. So a few users who take all they can get leave places for
a user who has none yet, and root always finds one.
"""

from collections import Counter

ROOT = 0
FOR_ROOT = 16                           # the part of all places that only root gets
FOR_OTHERS = 4                          # the part that is left by who has many,
MANY = 256                              # which is this part of them, or more


class Places:
    """Counts them, by user id."""

    def __init__(self, most: int, most_of_a_user: int) -> None:
        self._left = self._most = most
        self._most_of_a_user = most_of_a_user
        self._by_uid: Counter[int] = Counter()

    def take(self, uid: int) -> bool:
        """One more of this user; False: there is none for it."""
        if self._left <= self._kept_from(uid):
            return False
        self._left -= 1
        self._by_uid[uid] += 1
        return True

    def give(self, uid: int) -> None:
        """One that was taken is free again."""
        self._left += 1
        self._by_uid[uid] -= 1
        if not self._by_uid[uid]:
            del self._by_uid[uid]

    def _kept_from(self, uid: int) -> int:
        """How many places are for others than this user."""
        if uid == ROOT:
            return 0
        has = self._by_uid[uid]
        if has >= self._most_of_a_user:
            return self._most
        many = max(1, self._most // MANY)
        for_others = self._most // FOR_OTHERS * min(has, many) // many
        return self._most // FOR_ROOT + for_others
