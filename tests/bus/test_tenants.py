# SPDX-License-Identifier: Apache-2.0
"""Tenants and their terms: on the bus, and on the command line."""

from dataclasses import replace

import pytest
from dbus_next.constants import MessageType
from dbus_next.signature import Variant

from nvshared.bus.authority import Caller
from nvshared.scheduler.settings import Terms
from nvshared.settings.rules import Rule
from nvshared.sharing.manager import Manager
from nvshared.units import GIB
from tests.bus.service import Peeper, a_client
from tests.bus.test_calls import STANDARD, refusal
from tests.unit.scripted import DEFAULTS

RULES = (
    Rule("user:*", "memory", 60 * GIB, "/etc/a.conf:2"),
    Rule("user:*", "weight", 50, "/etc/a.conf:3"),
)


@pytest.fixture
def ruled(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> Manager:
    """Whose configuration has these rules."""
    monkeypatch.setattr(manager, "_read", lambda: replace(DEFAULTS, rules=RULES))
    manager.reload()
    return manager


async def test_terms_are_set_listed_and_taken_back(ruled: Manager, other: Peeper) -> None:
    a_client(ruled, ruled.gpus[0])
    ruled.gpus[1].lose("it fell off the bus")
    terms = {"memory": Variant("t", 40 * GIB), "compute-limit": Variant("i", 50)}
    reply = await other.call("SetTenantTerms", "sa{sv}", ["user:0", terms])
    assert reply.message_type is MessageType.METHOD_RETURN, reply.body
    assert ruled.tenancy.terms("user:root") == Terms(40 * GIB, 50, compute_limit=50)
    rules = [[rule.term, rule.value, rule.pattern, rule.place] for rule in RULES]
    (shown,) = await other.result("ListTenants")
    name, programs, allocated, resident, pinned, _, within, found, more = shown
    assert (name, programs, within, more) == ("user:root", 1, [], {})
    assert (allocated, resident, pinned) == (30 * GIB, 20 * GIB, GIB)
    assert found == [
        ["memory", 40 * GIB, "", ""], ["compute-limit", 50, "", ""], rules[1], rules[0]]
    assert (await other.result("GetTenant", "s", ["user:root"]))[7] == found
    taken = {"memory": Variant("t", 0), "compute-limit": Variant("u", 0)}
    await other.call("SetTenantTerms", "sa{sv}", ["user:root", taken])
    assert (await other.result("ListTenants"))[0][7] == rules[::-1]
    assert await other.result("GetTenant", "s", ["user:nobody"]) == [
        "user:nobody", 0, 0, 0, 0, 0, [], rules[::-1], {}]


@pytest.mark.parametrize(("tenant", "terms", "sentence"), [
    ("alice", {"weight": Variant("u", 3)}, "'alice' is no tenant; give user:NAME, unit:NAME, "
     "container:ID, job:ID or pod:UID"),
    ("user:a", {}, "no term of user:a is given; there are memory, compute-limit, weight"),
    ("user:a", {"Weight": Variant("u", 3)},
     "a tenant has no term 'Weight'; there are memory, compute-limit, weight"),
    ("user:a", {"weight": Variant("s", "3")}, "the weight of user:a cannot be '3'; give 1 to 1000, "
     "or 0 to take back what was set"),
    ("user:a", {"weight": Variant("b", True)}, "the weight of user:a cannot be True; give 1 to "
     "1000, or 0 to take back what was set"),
    ("user:a", {"memory": Variant("x", -1)}, "the memory of user:a cannot be -1; give a number of "
     "bytes, or 0 to take back what was set"),
])
async def test_what_cannot_be_set_is_refused(
    manager: Manager, other: Peeper, tenant: str, terms: dict[str, Variant], sentence: str
) -> None:
    refused = refusal(await other.call("SetTenantTerms", "sa{sv}", [tenant, terms]))
    assert refused == (STANDARD + "InvalidArgs", sentence)
    assert manager.tenancy.tenants() == []


async def test_who_is_no_administrator_may_only_look(
    manager: Manager, other: Peeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def uid(_caller: Caller) -> int:
        return 1000

    monkeypatch.setattr(Caller, "uid", uid)
    terms = {"weight": Variant("u", 3)}
    name, sentence = refusal(await other.call("SetTenantTerms", "sa{sv}", ["user:a", terms]))
    assert name == STANDARD + "AccessDenied"
    assert "com.nvshare.manage-clients" in sentence
    assert await other.result("ListTenants") == []
