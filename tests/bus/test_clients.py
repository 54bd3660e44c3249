# SPDX-License-Identifier: Apache-2.0
"""Limits, weights, suspension and preemption over the bus: permissions and effects."""

import pytest
from dbus_next.constants import MessageType

from nvshared.names import CLIENT_INTERFACE, GPU_INTERFACE, client_path, gpu_path
from nvshared.scheduler.events import Preempted, Terms, TermsChanged
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB
from tests.bus.service import OTHER_UID, Peeper, PrivateBus, a_client
from tests.bus.test_authority import polkit_on
from tests.bus.test_calls import STANDARD, refusal
from tests.unit.scripted import Scripted

MANAGE = "com.nvshare.manage-clients"

# Method of the client object, its signature and arguments, and the terms then in force.
SETTINGS = [
    ("SetMemoryLimit", "t", [4 * GIB], Terms(memory_limit=4 * GIB)),
    ("SetComputeLimit", "u", [40], Terms(compute_limit=40)),
    ("SetWeight", "u", [50], Terms(weight=50)),
    ("Suspend", "", [], Terms(suspended=True)),
]
TWINS = {"Suspend": "SuspendClient"}    # methods of the manager named unlike the client's method


def scheduler(client: Client) -> Scripted:
    found = client.gpu.scheduler
    assert isinstance(found, Scripted)
    return found


async def on(peer: Peeper, client: Client, member: str, signature: str, body: list[object]) -> None:
    reply = await peer.call(member, signature, body, path=client_path(client.id),
                            interface=CLIENT_INTERFACE)
    assert reply.message_type is MessageType.METHOD_RETURN, reply.body


@pytest.mark.parametrize(("member", "signature", "body", "terms"), SETTINGS)
@pytest.mark.parametrize("twin", [False, True])
async def test_client_terms_set_over_the_bus_reach_scheduler_and_properties(
        manager: Manager, other: Peeper, twin: bool, member: str, signature: str,
        body: list[object], terms: Terms) -> None:
    client = a_client(manager, manager.gpus[1])
    if twin:
        reply = await other.call(TWINS.get(member, member), "u" + signature, [client.id, *body])
        assert reply.message_type is MessageType.METHOD_RETURN, reply.body
    else:
        await on(other, client, member, signature, body)
    assert scheduler(client).events[-1] == TermsChanged(client.id, terms)
    shown = await other.properties(client_path(client.id))
    assert shown["MemoryLimit"] == terms.memory_limit
    assert shown["ComputeLimit"] == terms.compute_limit
    assert shown["Weight"] == terms.weight
    assert shown["Suspended"] is terms.suspended
    if terms.suspended:
        await other.call("ResumeClient", "u", [client.id])
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


@pytest.mark.parametrize(("member", "signature", "body", "terms"), SETTINGS)
async def test_term_setter_called_by_another_user_succeeds_only_with_polkits_permission(
        manager: Manager, caller: Peeper, private: PrivateBus, member: str, signature: str,
        body: list[object], terms: Terms) -> None:
    client = owned_by(a_client(manager, manager.gpus[0]), OTHER_UID + 1)
    async with polkit_on(private.address) as polkit:
        reply = await caller.call(TWINS.get(member, member), "u" + signature, [client.id, *body])
        name, sentence = refusal(reply)
        assert name == STANDARD + "AccessDenied"
        assert MANAGE in sentence
        assert client.terms.in_force == Terms()
        polkit.granted = True
        await on(caller, client, member, signature, body)
        assert [action for _, action, _ in polkit.asked] == [MANAGE] * 2
    assert client.terms.administrator == terms


@pytest.mark.parametrize(("member", "signature", "body", "terms"), SETTINGS)
async def test_owner_of_a_client_may_tighten_terms_of_the_client_without_authentication(
        manager: Manager, caller: Peeper, private: PrivateBus, member: str, signature: str,
        body: list[object], terms: Terms) -> None:
    client = owned_by(a_client(manager, manager.gpus[0]), OTHER_UID)
    async with polkit_on(private.address) as polkit:
        await on(caller, client, member, signature, body)
        assert client.terms.in_force == terms
        assert client.terms.administrator == Terms()
        assert polkit.asked == []


async def test_owner_of_a_client_may_not_exceed_terms_set_by_the_administrator(
        manager: Manager, caller: Peeper, private: PrivateBus) -> None:
    client = owned_by(a_client(manager, manager.gpus[0]), OTHER_UID)
    manager.set_terms(client.id, "memory_limit", 4 * GIB)
    manager.set_terms(client.id, "compute_limit", 50)
    manager.set_terms(client.id, "suspended", True)
    before = client.terms
    async with polkit_on(private.address) as polkit:
        said = f"{MANAGE} is not permitted to uid {OTHER_UID}"
        for member, signature, body, bound in (
            ("SetMemoryLimit", "ut", [client.id, 5 * GIB], "limited the program to 4GiB"),
            ("SetMemoryLimit", "ut", [client.id, 0], "limited the program to 4GiB"),
            ("SetComputeLimit", "uu", [client.id, 51], "has limited the program to 50 % of the"),
            ("SetWeight", "uu", [client.id, 101], "the weight of your program is 100 at most"),
            ("ResumeClient", "u", [client.id], "the administrator has suspended the program"),
            ("PreemptGPU", "s", ["0"], ""),
        ):
            name, sentence = refusal(await caller.call(member, signature, body))
            assert name == STANDARD + "AccessDenied", member
            assert sentence.startswith(said)
            assert bound in sentence
            assert (";" in sentence) is bool(bound)
        assert len(polkit.asked) == 6
        # For another user's program the refusal does not name the administrator's terms.
        owned_by(client, OTHER_UID + 1)
        assert refusal(await caller.call("ResumeClient", "u", [client.id]))[1] == said
        owned_by(client, OTHER_UID)
    assert client.terms == before
    reply = await caller.call("SetMemoryLimit", "ut", [client.id, GIB])
    assert reply.message_type is MessageType.METHOD_RETURN
    assert client.terms.in_force.memory_limit == GIB
