# SPDX-License-Identifier: Apache-2.0
"""Limits, weights, suspension and preemption over the bus: permissions and effects."""

from pathlib import Path
from typing import Any

import pytest
from dbus_next.constants import MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

from nvshared.machine.saving import Saved
from nvshared.names import CLIENT_INTERFACE, GPU_INTERFACE, client_path, gpu_path
from nvshared.scheduler.events import Preempted, Terms, TermsChanged
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.terms import CLIENT_TERMS, TERMS
from nvshared.units import GIB
from tests.bus.service import OTHER_UID, Peeper, PrivateBus, a_client
from tests.bus.test_authority import polkit_on
from tests.bus.test_calls import STANDARD, refusal
from tests.unit.scripted import Scripted

MANAGE = "com.nvshare.manage-clients"

# Terms as they are set over the bus, and the terms then in force.
SETTINGS = [
    ({"memory-limit": 4 * GIB}, Terms(memory_limit=4 * GIB)),
    ({"compute-limit": 40}, Terms(compute_limit=40)),
    ({"weight": 50}, Terms(weight=50)), ({"suspended": 1}, Terms(suspended=True)),
]


def scheduler(client: Client) -> Scripted:
    found = client.gpu.scheduler
    assert isinstance(found, Scripted)
    return found


async def put(peer: Peeper, client: Client, given: dict[str, int], by_id: bool = True) -> Message:
    """Sets terms with the manager's method, or with the client's."""
    terms = {name: Variant("t", value) for name, value in given.items()}
    if by_id:
        return await peer.call("SetClientTerms", "ua{sv}", [client.id, terms])
    return await peer.call("SetTerms", "a{sv}", [terms], path=client_path(client.id),
                           interface=CLIENT_INTERFACE)


async def on(peer: Peeper, client: Client, given: dict[str, int], by_id: bool = True) -> None:
    reply = await put(peer, client, given, by_id)
    assert reply.message_type is MessageType.METHOD_RETURN, reply.body


@pytest.mark.parametrize(("given", "terms"), SETTINGS)
@pytest.mark.parametrize("by_id", [False, True])
async def test_client_terms_set_over_the_bus_reach_scheduler_and_properties(
        manager: Manager, other: Peeper, by_id: bool, given: dict[str, int], terms: Terms) -> None:
    client = a_client(manager, manager.gpus[1])
    await on(other, client, given, by_id)
    assert scheduler(client).events[-1] == TermsChanged(client.id, terms)
    shown = await other.properties(client_path(client.id))
    assert {name: one.value for name, one in shown["Terms"].items()} == {
        term.name: getattr(terms, term.field) for term in CLIENT_TERMS if term.of_client}
    if terms.suspended:
        await on(other, client, {"suspended": 0}, by_id)
        assert scheduler(client).events[-1] == TermsChanged(client.id, Terms())


async def test_preempt_call_for_a_gpu_reaches_the_scheduler_unless_the_gpu_is_lost(
        manager: Manager, other: Peeper) -> None:
    client = a_client(manager, manager.gpus[1])
    await other.call("Preempt", path=gpu_path(1), interface=GPU_INTERFACE)
    assert scheduler(client).events[-1] == Preempted()
    scheduler(client).events.clear()
    await other.call("PreemptGPU", "s", [manager.gpus[1].facts.uuid])
    assert scheduler(client).events == [Preempted()]
    manager.gpus[0].lose("it fell off the bus")
    assert refusal(await other.call("PreemptGPU", "s", ["0"])) == (
        "com.nvshare.Error.GPULost", "gpu0 (Card) is lost: it fell off the bus")


def owned_by(client: Client, uid: int) -> Client:
    object.__setattr__(client.peer, "uid", uid)
    return client


@pytest.mark.parametrize(("given", "terms"), SETTINGS)
async def test_term_setter_called_by_another_user_succeeds_only_with_polkits_permission(
        manager: Manager, caller: Peeper, private: PrivateBus, given: dict[str, int],
        terms: Terms) -> None:
    client = owned_by(a_client(manager, manager.gpus[0]), OTHER_UID + 1)
    async with polkit_on(private.address) as polkit:
        name, sentence = refusal(await put(caller, client, given))
        assert name == STANDARD + "AccessDenied"
        assert MANAGE in sentence
        assert client.terms.in_force == Terms()
        polkit.granted = True
        await on(caller, client, given, by_id=False)
        assert [action for _, action, _ in polkit.asked] == [MANAGE] * 2
    assert client.terms.administrator == terms


@pytest.mark.parametrize(("given", "terms"), SETTINGS)
async def test_owner_of_a_client_may_tighten_terms_of_the_client_without_authentication(
        manager: Manager, caller: Peeper, private: PrivateBus, given: dict[str, int],
        terms: Terms) -> None:
    client = owned_by(a_client(manager, manager.gpus[0]), OTHER_UID)
    async with polkit_on(private.address) as polkit:
        await on(caller, client, given, by_id=False)
        assert client.terms.in_force == terms
        assert client.terms.administrator == Terms()
        assert polkit.asked == []


async def test_set_client_terms_sets_all_terms_or_none(
        manager: Manager, caller: Peeper, private: PrivateBus) -> None:
    client = owned_by(a_client(manager, manager.gpus[0]), OTHER_UID)
    manager.set_term(client.id, TERMS["weight"], 50)
    before = client.terms
    for given, error, words in (
        ({"memory-limit": GIB, "weight": 60}, "AccessDenied", "of your program is 50 at most"),
        ({"memory-limit": GIB, "deadline": 50_000}, "AccessDenied", "it has none now"),
        ({"memory-limit": GIB, "weight": 1001}, "InvalidArgs", "the weight cannot be 1001"),
        ({"memory-limit": GIB, "priority": 1}, "InvalidArgs", "a client has no term 'priority'"),
    ):
        name, sentence = refusal(await put(caller, client, given))
        assert name == STANDARD + error
        assert words in sentence
        assert client.terms == before
    terms = {"memory-limit": Variant("t", GIB), "suspended": Variant("b", True)}
    reply = await caller.call("SetClientTerms", "ua{sv}", [client.id, terms])
    assert reply.message_type is MessageType.METHOD_RETURN, reply.body
    assert client.terms.in_force == Terms(GIB, 50, True)
    shown = await caller.properties(client_path(client.id))
    assert {name: one.value for name, one in shown["Terms"].items()} == {
        **{term.name: term.default for term in CLIENT_TERMS if term.of_client},
        "memory-limit": GIB, "weight": 50, "suspended": 1}


async def test_methods_of_single_terms_set_what_setterms_sets(
        manager: Manager, caller: Peeper, private: PrivateBus) -> None:
    client = owned_by(a_client(manager, manager.gpus[0]), OTHER_UID)
    path = client_path(client.id)
    for member, signature, value, of_client in (
        ("SetMemoryLimit", "t", GIB, "SetMemoryLimit"),
        ("SetComputeLimit", "u", 50, "SetComputeLimit"),
        ("SetWeight", "u", 70, "SetWeight"), ("SuspendClient", "", None, "Suspend"),
    ):
        given = [] if value is None else [value]
        for reply in (
            await caller.call(member, f"u{signature}", [client.id, *given]),
            await caller.call(of_client, signature, given, path=path, interface=CLIENT_INTERFACE),
        ):
            assert reply.message_type is MessageType.METHOD_RETURN, (member, reply.body)
    assert client.terms.in_force == Terms(GIB, 70, True, 50)
    shown = await caller.properties(path)
    names = ("MemoryLimit", "ComputeLimit", "Weight", "Suspended")
    assert [shown[name] for name in names] == [GIB, 50, 70, True]
    await caller.call("ResumeClient", "u", [client.id])
    assert not client.terms.in_force.suspended


async def test_owner_of_a_client_may_not_exceed_terms_set_by_the_administrator(
        manager: Manager, caller: Peeper, private: PrivateBus) -> None:
    client = owned_by(a_client(manager, manager.gpus[0]), OTHER_UID)
    manager.set_term(client.id, TERMS["memory-limit"], 4 * GIB)
    manager.set_term(client.id, TERMS["compute-limit"], 50)
    manager.set_term(client.id, TERMS["suspended"], True)
    before = client.terms
    async with polkit_on(private.address) as polkit:
        said = f"{MANAGE} is not permitted to uid {OTHER_UID}"
        for term, value, bound in (
            ("memory-limit", 5 * GIB, "limited the program to 4GiB"),
            ("memory-limit", 0, "limited the program to 4GiB"),
            ("compute-limit", 51, "has limited the program to 50 % of the"),
            ("weight", 101, "the weight of your program is 100 at most"),
            ("suspended", 0, "the administrator has suspended the program"),
        ):
            name, sentence = refusal(await put(caller, client, {term: value}))
            assert name == STANDARD + "AccessDenied", term
            assert sentence.startswith(f"{said}; ")
            assert bound in sentence
        assert refusal(await caller.call("PreemptGPU", "s", ["0"]))[1] == said
        assert len(polkit.asked) == 6
        # For another user's program the refusal does not name the administrator's terms.
        owned_by(client, OTHER_UID + 1)
        assert refusal(await put(caller, client, {"suspended": 0}))[1] == said
        owned_by(client, OTHER_UID)
    assert client.terms == before
    await on(caller, client, {"memory-limit": GIB})
    assert client.terms.in_force.memory_limit == GIB


async def test_only_the_user_of_a_program_may_save_restore_and_remove_it_without_polkit(
        manager: Manager, caller: Peeper, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nvshared.machine.saving.BASE", Path("/saved"))
    client = owned_by(a_client(manager, manager.gpus[0]), OTHER_UID)
    done: list[tuple[object, ...]] = []
    row = Saved("/saved/one", "saved", 1, "its words", 0, 7, OTHER_UID, "one", 1, 0, {})
    rows = [row, row._replace(folder="/saved/two", uid=0)]

    async def save(client: Client, to: str) -> Saved:
        done.append((client, to))
        return row

    async def restore(saved: Saved) -> int:
        done.append((saved,))
        return saved.pid

    async def listed(to: str) -> list[Saved]:
        assert to == "", "another folder was looked at, and its content told"
        return rows

    saving: Any = manager.saving
    saving.save, saving.restore, saving.remove, saving._list = save, restore, restore, listed
    assert (await caller.call("SaveClient", "us", [client.id, ""])).body == ["/saved/one"]
    assert (await caller.call("Restore", "s", ["/saved/one"])).body == [7]
    await caller.call("RemoveSaved", "s", ["/saved/one"])
    assert done == [(client, ""), (row,), (row,)]
    (found,) = (await caller.call("ListSaved", "s", [""])).body
    assert [one[7] for one in found] == ["its words", ""]
    async with polkit_on(private.address) as polkit:
        owned_by(client, OTHER_UID + 1)
        for member, signature, body in (
            ("SaveClient", "us", [client.id, ""]), ("Restore", "s", ["/saved/two"]),
            ("RemoveSaved", "s", ["/saved/two"]), ("ListSaved", "s", ["/mnt"]),
            ("Restore", "s", ["/home/one"]), ("RemoveSaved", "s", ["/saved/../home/one"]),
        ):
            name, _ = refusal(await caller.call(member, signature, body))
            assert name == STANDARD + "AccessDenied", member
        owned_by(client, OTHER_UID)
        name, _ = refusal(await caller.call("SaveClient", "us", [client.id, "/mnt"]))
        assert name == STANDARD + "AccessDenied"
        assert len(polkit.asked) == 7
    assert len(done) == 3
