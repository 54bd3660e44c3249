# SPDX-License-Identifier: Apache-2.0
"""choose() picks the waiting client that the daemon moves to another card, and the card."""

from math import inf
from random import Random
from typing import Any

import pytest

from nvshared.sharing.balancing import CardState, Choice, Contender, choose
from nvshared.units import GIB, SECOND

PRICE = 2.0 * SECOND
EMPTY = CardState(0, 80 * GIB)


def contender(client: int, **changed: Any) -> Contender:
    return Contender(client, "a", 100, 50 * GIB, 0.0, PRICE, ("b",))._replace(**changed)


@pytest.mark.parametrize(("here", "there", "wait", "lost"), [
    (CardState(200, 80 * GIB), EMPTY, 3.0 * SECOND, 3.0 * SECOND),
    (CardState(200, 80 * GIB), EMPTY, 1.0 * SECOND, None),  # a move takes longer than the wait
    # the client has 50 GiB, the other card 40 GiB
    (CardState(200, 80 * GIB), CardState(0, 40 * GIB), inf, None),
    (CardState(100, 40 * GIB), CardState(300, 80 * GIB), inf, inf),     # exceeds its own card
])
def test_choose_moves_a_client_that_fits_another_card_and_waits_longer_than_a_move_takes(
        here: CardState, there: CardState, wait: float, lost: float | None) -> None:
    _, choice = choose({"a": here, "b": there}, [contender(1, wait=wait)], {}, 0)
    assert choice == (None if lost is None else Choice(1, "b", lost, PRICE))


def test_choose_moves_a_client_once_short_waits_add_up_to_the_cost_of_a_move() -> None:
    states = {"a": CardState(200, 80 * GIB), "b": EMPTY}
    lost: dict[int, float] = {}
    looks = 0
    choice = None
    while choice is None:
        looks += 1
        lost, choice = choose(states, [contender(1, wait=0.1 * SECOND)], lost, SECOND // 10)
        if choice is None:          # no move: the client gets a turn
            lost, _ = choose(states, [contender(1, wait=None)], lost, SECOND // 10)
    assert looks == pytest.approx(PRICE / (0.1 * SECOND), abs=1)


def test_choose_resets_the_summed_waits_of_a_client_that_would_gain_on_no_other_card() -> None:
    states = {"a": CardState(200, 80 * GIB), "b": EMPTY}
    lost, _ = choose(states, [contender(1)], {}, SECOND)
    assert lost == {1: SECOND}
    lost, _ = choose(states | {"b": CardState(100, 80 * GIB)}, [contender(1)], lost, SECOND)
    assert lost == {}


def test_choose_moves_the_client_that_gains_most_to_the_card_with_the_least_load() -> None:
    states = {"a": CardState(400, 80 * GIB), "b": CardState(100, 80 * GIB), "c": EMPTY}
    _, choice = choose(states, [
        contender(1, wait=9.0 * SECOND, cards=("b", "c")),
        contender(2, wait=9.0 * SECOND, cards=("b", "c"), price=PRICE / 2)], {}, 0)
    assert choice is not None
    assert (choice.client, choice.card) == (2, "c")


@pytest.mark.parametrize("seed", range(6))
def test_choose_moves_no_more_clients_after_few_moves_with_random_loads_and_weights(
        seed: int) -> None:
    """Each move must lower the load on the moved client, so moves of the same clients end."""
    random = Random(seed)
    cards = ["a", "b", "c"]
    weights = {client: random.choice([50, 100, 200]) for client in range(12)}
    at = {client: random.choice(cards) for client in weights}
    moves = 0
    lost: dict[int, float] = {}
    for _ in range(1000):
        load = {card: sum(w for c, w in weights.items() if at[c] == card) for card in cards}
        lost, choice = choose(
            {card: CardState(load[card], 80 * GIB) for card in cards},
            [Contender(client, at[client], weight, GIB,
                       random.choice([None, random.random() * 10 * SECOND]), PRICE,
                       tuple(card for card in cards if card != at[client]))
             for client, weight in weights.items()],
            lost, SECOND)
        if choice is not None:
            weight = weights[choice.client]
            assert load[choice.card] + weight < load[at[choice.client]]
            at[choice.client] = choice.card
            lost.pop(choice.client)
            moves += 1
    assert choice is None
    assert moves <= 2 * len(weights)
