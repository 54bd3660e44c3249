# SPDX-License-Identifier: Apache-2.0
"""ConnectionQuota bounds the connections of each user and leaves some for other users."""

import random

import pytest

from nvshared.hook.connection import ROOT, ConnectionQuota


def fill(quota: ConnectionQuota, account: str) -> int:
    taken = 0
    while quota.acquire(account):
        taken += 1
    return taken


@pytest.mark.parametrize("greedy", [1, 4, 40])
def test_connection_quota_leaves_connections_for_root_and_new_users(greedy: int) -> None:
    quota = ConnectionQuota(4096, 1024)
    for uid in range(1000, 1000 + greedy):
        assert fill(quota, f"user:{uid}") <= 1024
    assert fill(quota, "user:2000") >= 8
    assert all(quota.acquire(f"user:{uid}") for uid in range(3000, 3020))
    assert fill(quota, ROOT) >= 4096 // 16


def test_connection_quota_bounds_each_user_except_root() -> None:
    assert fill(ConnectionQuota(4096, 1024), "user:1000") == 1024
    assert fill(ConnectionQuota(4096, 1024), ROOT) == 4096
    assert fill(ConnectionQuota(1, 1024), "user:1000") == 1


def test_connection_quota_is_wholly_free_after_connections_end_in_random_order() -> None:
    quota, dice = ConnectionQuota(100, 50), random.Random(5)
    users = [f"user:{uid}" for uid in (1000, 1001, 1002)]
    has: list[str] = []
    for _ in range(5000):
        if has and dice.random() < 0.5:
            quota.release(has.pop(dice.randrange(len(has))))
        elif quota.acquire(uid := dice.choice([ROOT, *users])):
            has.append(uid)
        assert len(has) <= 100
        assert all(has.count(uid) <= 50 for uid in users)
    for uid in has:
        quota.release(uid)
    assert fill(quota, ROOT) == 100
