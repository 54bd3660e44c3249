# SPDX-License-Identifier: Apache-2.0
"""Bounds the number of connections, in total and per user.

The total is fixed, and each user except root has a maximum. Part of the total is reserved: 1/16 for
root, and up to 1/4 for users with few connections. The more connections a user has, the more it
must leave free for others. So a few users that open as many connections as they can still leave
some for a user without any, and for root.

A pod or container counts as a separate user, independent of the uids of its processes. Root in a
container is not the host's root.
"""

from collections import Counter
from collections.abc import Hashable

ROOT = ""
FOR_ROOT = 16                           # 1/16 of all connections is reserved for root
FOR_OTHERS = 4                          # users with many connections leave 1/4 free for others;
MANY = 256                              # many: 1/256 of all connections, or more


class ConnectionQuota:
    """Counts connections by account (machine/peer.py)."""

    def __init__(self, most: int, most_of_a_user: int) -> None:
        self._left = self._most = most
        self._most_of_a_user = most_of_a_user
        self._by_account: Counter[Hashable] = Counter()

    def take(self, account: Hashable) -> bool:
        """Counts a new connection of a user. False: the user must not have another one."""
        if self._left <= self._kept_from(account):
            return False
        self._left -= 1
        self._by_account[account] += 1
        return True

    def give(self, account: Hashable) -> None:
        """Removes a user's connection from the count."""
        self._left += 1
        self._by_account[account] -= 1
        if not self._by_account[account]:
            del self._by_account[account]

    def _kept_from(self, account: Hashable) -> int:
        """Returns the number of connections that this user must leave free for others."""
        if account == ROOT:
            return 0
        has = self._by_account[account]
        if has >= self._most_of_a_user:
            return self._most
        many = max(1, self._most // MANY)
        for_others = self._most // FOR_OTHERS * min(has, many) // many
        return self._most // FOR_ROOT + for_others
