# SPDX-License-Identifier: Apache-2.0
"""Who finds a place where others take all they can get."""

import random

import pytest

from nvshared.hook.places import ROOT, Places


def fill(places: Places, account: str) -> int:
    taken = 0
    while places.take(account):
        taken += 1
    return taken


@pytest.mark.parametrize("greedy", [1, 4, 40])
def test_places_remain_for_root_and_new_users_beside_greedy_users(greedy: int) -> None:
    places = Places(4096, 1024)
    for uid in range(1000, 1000 + greedy):
        assert fill(places, f"user:{uid}") <= 1024
    assert fill(places, "user:2000") >= 8
    assert all(places.take(f"user:{uid}") for uid in range(3000, 3020))
    assert fill(places, ROOT) >= 4096 // 16


def test_places_of_a_user_are_bounded_except_of_root() -> None:
    assert fill(Places(4096, 1024), "user:1000") == 1024
    assert fill(Places(4096, 1024), ROOT) == 4096
    assert fill(Places(1, 1024), "user:1000") == 1


def test_places_returned_in_random_order_can_all_be_taken_again() -> None:
    places, dice = Places(100, 50), random.Random(5)
    users = [f"user:{uid}" for uid in (1000, 1001, 1002)]
    has: list[str] = []
    for _ in range(5000):
        if has and dice.random() < 0.5:
            places.give(has.pop(dice.randrange(len(has))))
        elif places.take(uid := dice.choice([ROOT, *users])):
            has.append(uid)
        assert len(has) <= 100
        assert all(has.count(uid) <= 50 for uid in users)
    for uid in has:
        places.give(uid)
    assert fill(places, ROOT) == 100
