# SPDX-License-Identifier: Apache-2.0
"""What is set for tenants: all programs of one together keep to it."""

from nvshared.scheduler.actions import Limits
from nvshared.scheduler.domains import Domains
from nvshared.scheduler.events import TenantChanged
from nvshared.scheduler.settings import TenantTerms
from nvshared.units import GIB
from tests.unit.scheduler_talk import Talk, limits

ALICE = ("user:alice",)
POD = ("user:alice", "pod:lab/train")


def put(talk: Talk, tenant: str, memory: float = 0, host: float = 0) -> None:
    terms = TenantTerms(memory_limit=int(memory * GIB), host_limit=int(host * GIB))
    talk.obey(talk.tell(TenantChanged(tenant, terms)))


def answer(talk: Talk, client: int, size: float, number: int = 1) -> Limits:
    """To a COMMIT that is answered at once, or as soon as others have done what they are told."""
    actions = talk.obey(talk.ask(client, number, size))
    found, = (one for one in limits(actions, client) if one.number == number)
    return found


def told(talk: Talk, client: int) -> Limits:
    """What it has heard last."""
    return limits(talk.said, client)[-1]


def test_all_programs_of_a_tenant_together_keep_to_its_memory_limit() -> None:
    talk = Talk(100)
    put(talk, "user:alice", 10)
    for client in (1, 2):
        talk.join(client, tenants=ALICE)
    assert answer(talk, 1, 6).commit >= 6 * GIB
    talk.changed(1, allocated=6)
    refused = answer(talk, 2, 5)
    assert refused.commit < 5 * GIB
    assert refused.why == "all programs of user:alice together are limited to 10GiB"
    # Who reads this knows the tenant by another name, which may be learnt late.
    talk.tell(TenantChanged("user:alice", TenantTerms(10 * GIB, shown="user:ada")))
    assert answer(talk, 2, 5, 2).why == (
        "all programs of user:ada together are limited to 10GiB")
    assert answer(talk, 2, 4, 3).commit == 4 * GIB
    talk.join(3, tenants=("user:bob",))
    assert answer(talk, 3, 80).commit >= 80 * GIB


def test_ten_that_allocate_at_the_same_moment_stay_within_it() -> None:
    talk = Talk(100)
    put(talk, "user:alice", 10)
    for client in range(1, 11):
        talk.join(client, tenants=ALICE)
    everyone = range(1, 11)
    for actions in [talk.ask(client, 1, 3) for client in everyone]:
        talk.obey(actions)
    for client in everyone:
        if talk.view(client).commit >= 3 * GIB:
            talk.obey(talk.changed(client, allocated=3))
    answers = [one for client in everyone for one in limits(talk.said, client) if one.number]
    assert len(answers) == 10
    assert sum(one.commit >= 3 * GIB for one in answers) == 3
    assert all("user:alice" in one.why for one in answers if one.commit < 3 * GIB)
    assert sum(talk.view(client).commit for client in everyone) <= 10 * GIB


def test_a_tenants_limit_is_the_size_of_the_card_and_what_others_use_of_it_is_not_free() -> None:
    talk = Talk(100)
    put(talk, "user:alice", 10)
    for client in (1, 2):
        talk.join(client, tenants=ALICE)
    assert (told(talk, 1).total, told(talk, 1).most) == (10 * GIB, 10 * GIB)
    assert told(talk, 1).beyond == 0
    answer(talk, 1, 6)
    talk.changed(1, allocated=6)
    talk.wait(1)
    assert (told(talk, 2).total, told(talk, 2).most) == (10 * GIB, 4 * GIB)
    put(talk, "user:alice", 20)
    talk.wait(1)
    assert (told(talk, 2).total, told(talk, 2).most) == (20 * GIB, 14 * GIB)
    put(talk, "user:alice")
    talk.wait(1)
    assert (told(talk, 2).total, told(talk, 2).most) == (100 * GIB, 100 * GIB)


def test_a_limit_below_what_is_held_lets_it_keep_that_and_refuses_more() -> None:
    talk = Talk(100)
    talk.join(1, tenants=ALICE)
    talk.join(2, tenants=ALICE)
    for client in (1, 2):
        answer(talk, client, 20)
        talk.changed(client, allocated=20)
    put(talk, "user:alice", 30)
    assert [talk.view(client).commit for client in (1, 2)] == [20 * GIB, 20 * GIB]
    refused = answer(talk, 1, 20.5, 2)
    assert refused.commit == 20 * GIB
    assert "user:alice" in refused.why
    assert "30GiB" in refused.why
    talk.obey(talk.changed(2, allocated=5))
    talk.obey(talk.wait(2))
    assert answer(talk, 1, 25, 3).commit == 25 * GIB
    assert answer(talk, 1, 31, 4).why == refused.why    # nor alone


def test_the_tightest_of_several_levels_counts() -> None:
    talk = Talk(100)
    put(talk, "user:alice", 30)
    put(talk, "pod:lab/train", 10)
    talk.join(1, tenants=POD)
    talk.join(2, tenants=ALICE)
    assert "pod:lab/train" in answer(talk, 1, 11).why
    assert answer(talk, 1, 10, 2).commit == 10 * GIB
    talk.changed(1, allocated=10)
    assert "user:alice" in answer(talk, 2, 21).why
    assert answer(talk, 2, 20, 2).commit == 20 * GIB


def test_the_limit_of_a_process_holds_within_that_of_its_tenant() -> None:
    talk = Talk(100)
    put(talk, "user:alice", 30)
    talk.join(1, tenants=ALICE)
    talk.limit(1, 10)
    assert answer(talk, 1, 11).commit < 11 * GIB
    assert told(talk, 1).total == 10 * GIB
    put(talk, "user:alice", 5)
    assert told(talk, 1).total == 5 * GIB


def test_a_limit_that_came_first_binds_the_first_program_and_goes_with_its_terms() -> None:
    talk = Talk(100)
    put(talk, "user:alice", 10)
    talk.join(1, tenants=ALICE)
    assert told(talk, 1).total == 10 * GIB
    talk.leave(1)
    put(talk, "user:alice")
    assert list(talk.scheduler._card.tenancies) == []


def test_what_a_program_comes_with_counts_and_is_kept() -> None:
    """After a restart of the daemon."""
    talk = Talk(100)
    put(talk, "user:alice", 10)
    talk.join(1, 15, 15, commit=15, tenants=ALICE)
    talk.join(2, tenants=ALICE)
    assert talk.view(1).commit == 15 * GIB
    assert "user:alice" in answer(talk, 2, 1).why


def test_what_a_tenant_was_lent_comes_back_when_another_program_of_it_asks() -> None:
    talk = Talk(100)
    put(talk, "user:alice", 64)
    for client in (1, 2):
        talk.join(client, tenants=ALICE)
    assert talk.view(1).commit > 0      # that it has not asked for
    assert answer(talk, 2, 64).commit == 64 * GIB
    talk.changed(2, allocated=64)
    assert answer(talk, 1, 1).why


def test_all_programs_of_a_tenant_together_keep_to_its_host_memory() -> None:
    """What they were promised and could leave the card; what is pinned does not."""
    talk = Talk(100)
    put(talk, "user:alice", host=10)
    for client in (1, 2):
        talk.join(client, tenants=ALICE)
    assert answer(talk, 1, 6).commit >= 6 * GIB
    talk.changed(1, allocated=6)
    refused = answer(talk, 2, 5)
    assert refused.commit < 5 * GIB
    assert refused.why == "all programs of user:alice together are limited to 10GiB of host memory"
    assert answer(talk, 2, 4, 2).commit == 4 * GIB
    talk.changed(2, allocated=4)
    assert answer(talk, 2, 54, 3).why == refused.why
    talk.obey(talk.ask(2, 4, 54, pins=50))
    assert limits(talk.said, 2)[-1].commit >= 54 * GIB
    talk.join(3, tenants=("user:bob",))
    assert answer(talk, 3, 40).commit >= 40 * GIB
    assert told(talk, 1).total == 100 * GIB     # the card is as large as it is


def test_host_memory_counts_over_all_cards_and_in_control_groups() -> None:
    shared = Domains()
    shared.resize("box", 200 * GIB, "the limit of box")
    one, two = Talk(100, domains=shared), Talk(100, domains=shared)
    for talk in (one, two):
        put(talk, "user:alice", host=10)
    one.join(1, tenants=ALICE, domains=("box",))
    two.join(2, tenants=ALICE)
    assert answer(one, 1, 8).commit >= 8 * GIB
    one.changed(1, allocated=8)
    assert "10GiB of host memory" in answer(two, 2, 3).why
    one.scheduler.belongs(1, [])
    assert "10GiB of host memory" in answer(one, 1, 11, 2).why
    one.scheduler.belongs(1, ["box"])
    for talk in (one, two):
        put(talk, "user:alice")
    assert answer(one, 1, 90, 3).commit >= 90 * GIB
    assert [domain.name for domain in shared] == ["box"]


def test_a_host_limit_below_what_is_held_takes_nothing_and_that_may_still_leave() -> None:
    talk = Talk(30)
    talk.join(1, tenants=ALICE)
    answer(talk, 1, 20)
    talk.changed(1, allocated=20)
    talk.obey(talk.want(1))
    put(talk, "user:alice", host=5)
    assert talk.view(1).commit == 20 * GIB
    assert "user:alice" in answer(talk, 1, 20.5, 2).why
    talk.obey(talk.idle(1))
    talk.join(2, tenants=("user:bob",))
    answer(talk, 2, 30)
    talk.changed(2, allocated=30)
    talk.obey(talk.want(2))
    talk.obey(talk.stopped(1, wants=False))
    talk.obey(talk.wait(3))
    assert talk.swapped[1] == 20 * GIB  # who else comes has the whole card
    assert 2 in talk.granted


def test_a_host_limit_holds_for_the_first_program_and_the_next() -> None:
    talk = Talk(100)
    put(talk, "user:alice", host=10)
    for client in (1, 2):
        talk.join(client, tenants=ALICE)
        assert "10GiB of host memory" in answer(talk, client, 11).why
        talk.leave(client)
    talk.scheduler._card.domains.forget(())
    talk.join(3, tenants=ALICE)
    assert "10GiB of host memory" in answer(talk, 3, 11).why
