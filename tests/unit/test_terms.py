# SPDX-License-Identifier: Apache-2.0
"""Terms that the administrator and the owner set for a client, and the terms in force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.errors import InvalidArgs
from nvshared.quantity import HEAVIEST
from nvshared.scheduler.events import Terms
from nvshared.sharing.gpu import ClientTerms
from nvshared.units import GIB


def test_terms_set_by_the_administrator_override_terms_set_by_the_clients_owner() -> None:
    made = ClientTerms()
    made = made.having("memory_limit", GIB, by_owner=True).having("weight", 7, by_owner=True)
    made = made.having("suspended", True, by_owner=True)
    assert made.allows("memory_limit", 0)       # the owner may remove own terms
    assert made.allows("suspended", False)
    made = made.having("memory_limit", 4 * GIB, by_owner=False)
    made = made.having("weight", 300, by_owner=False)
    assert made.having("suspended", False, by_owner=False).in_force == Terms(4 * GIB, 300, False)


@pytest.mark.parametrize(("term", "value", "sentence"), [
    ("weight", 0, "the weight cannot be 0"), ("weight", HEAVIEST + 1, "the weight cannot be 1001"),
    ("compute_limit", 0, "the compute limit cannot be 0 %"),
    ("compute_limit", 101, "the compute limit cannot be 101 %"),
])
@pytest.mark.parametrize("by_owner", [False, True])
def test_client_term_out_of_range_is_refused(term: str, value: int, sentence: str,
                                             by_owner: bool) -> None:
    with pytest.raises(InvalidArgs, match=sentence):
        ClientTerms().having(term, value, by_owner=by_owner)


VALUES = {
    "memory_limit": st.integers(0, 9), "weight": st.integers(1, HEAVIEST),
    "compute_limit": st.integers(1, 100), "suspended": st.booleans(),
}


@given(st.data())
def test_owner_of_a_client_never_exceeds_terms_of_the_administrator_by_random_changes(
        data: st.DataObject) -> None:
    made = ClientTerms()
    for term, values in VALUES.items():
        made = made.having(term, data.draw(values), by_owner=False)
    most = made.in_force
    for _ in range(data.draw(st.integers(1, 5))):
        for term, values in VALUES.items():
            value = data.draw(values)
            if made.allows(term, value):
                made = made.having(term, value, by_owner=True)
                assert getattr(made.in_force, term) == value    # an allowed value takes effect
        terms = made.in_force
        assert terms.memory_limit <= most.memory_limit or not most.memory_limit
        assert terms.memory_limit or not most.memory_limit
        assert terms.weight <= most.weight
        assert terms.compute_limit <= most.compute_limit
        assert terms.suspended or not most.suspended
