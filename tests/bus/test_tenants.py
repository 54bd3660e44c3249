# SPDX-License-Identifier: Apache-2.0
"""Tenants and terms of tenants, over D-Bus and with nvsharectl."""

import asyncio
import json
import pwd
from collections.abc import Callable
from typing import Any

import pytest
from dbus_next.constants import MessageType
from dbus_next.signature import Variant

from nvshared.bus import Publication
from nvshared.errors import ExitCode
from nvshared.machine.tenant import Kind, Tenant
from nvshared.names import CLIENT_INTERFACE, client_path
from nvshared.scheduler.events import TenantTerms
from nvshared.settings.rules import Rule
from nvshared.sharing.gpu import PodNames
from nvshared.sharing.manager import Manager
from nvshared.sharing.tenancy import Tenancy
from nvshared.terms import TERMS
from nvshared.units import GIB
from tests.bus.service import Peeper, a_client
from tests.bus.test_announcements import announced
from tests.bus.test_commands import Run, ctl, sentence

__all__ = ["ctl"]                       # a fixture

GIVE = "give user:NAME, unit:NAME, container:NAME, job:ID or pod:NAMESPACE/NAME"
*MOST_LIMITS, LAST_LIMIT = (
    f"{term.option} {term.unit.metavar}" for term in TERMS.values() if term.option)
RULES = (
    Rule("user:*", "memory-limit", 60 * GIB, "/etc/a.conf:2"),
    Rule("user:*", "weight", 50, "/etc/a.conf:3"),
)


@pytest.fixture
def ruled(manager: Manager) -> Manager:
    manager.tenancy.use(RULES)
    return manager


async def test_tenant_terms_are_set_listed_and_removed(ruled: Manager, other: Peeper) -> None:
    a_client(ruled, ruled.gpus[0])
    ruled.gpus[1].lose("it fell off the bus")
    terms = {"memory-limit": Variant("t", 40 * GIB), "compute-limit": Variant("i", 50)}
    reply = await other.call("SetTenantTerms", "sa{sv}", ["user:0", terms])
    assert reply.message_type is MessageType.METHOD_RETURN, reply.body
    assert ruled.tenancy.terms("user:0") == TenantTerms(
        40 * GIB, 50, compute_limit=50, shown="user:root")
    rules = [[rule.term, rule.value, rule.pattern, rule.place] for rule in RULES]
    (shown,) = await other.result("ListTenants")
    name, programs, allocated, resident, pinned, _, within, found, more = shown
    assert (name, programs, within, more) == ("user:root", 1, [], {})
    assert (allocated, resident, pinned) == (30 * GIB, 20 * GIB, GIB)
    assert found == [
        ["memory-limit", 40 * GIB, "", ""], rules[0], ["compute-limit", 50, "", ""], rules[1]]
    assert (await other.result("GetTenant", "s", ["user:root"]))[7] == found
    taken = {"memory-limit": Variant("t", 0), "compute-limit": Variant("u", 0)}
    await other.call("SetTenantTerms", "sa{sv}", ["user:root", taken])
    assert (await other.result("ListTenants"))[0][7] == rules
    assert await other.result("GetTenant", "s", ["user:nobody"]) == [
        "user:nobody", 0, 0, 0, 0, 0, [], rules, {}]


async def test_gettenant_replies_only_after_reading_the_groups_of_the_user_if_rules_name_groups(
        manager: Manager, other: Peeper, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {("number", "alice"): 1000, ("group", "staff"): 50, ("name", 1000): "alice",
               ("groups", 1000): frozenset({50, 1000})}
    loop, asked = asyncio.get_running_loop(), []

    def reply_later(_key: object, ask: Any, answer: Callable[[Any], None]) -> None:
        (question,) = ask.args
        asked.append(question)
        # Runs after the call of GetTenant has come to its first `await`.
        loop.call_soon(answer, (answers[question],))

    monkeypatch.setattr(manager.tenancy.directory, "_run", reply_later)
    manager.tenancy.use((Rule("group:staff", "weight", 50, "/etc/a.conf:2"),))
    name, *_, terms, _ = await other.result("GetTenant", "s", ["user:alice"])
    assert {*asked} == {*answers}
    assert (name, terms) == ("user:alice", [["weight", 50, "group:staff", "/etc/a.conf:2"]])


async def test_limit_and_weight_commands_set_terms_of_a_tenant(ruled: Manager, ctl: Run) -> None:
    ended = await ctl(
        "limit", "user:alice", "--memory", "40GiB", "--compute", "50", "--host-memory", "9GiB",
        "--neighbour", "off", "--request", "30")
    assert ended.code == ExitCode.OK
    assert ended.out.splitlines() == [
        "The programs of user:alice together may allocate 40GiB on each GPU.",
        "The programs of user:alice together may need 9GiB of host memory for eviction.",
        "The programs of user:alice together may have 0 bytes of swapped memory on other GPUs.",
        "The programs of user:alice together may use each GPU at most 50 % of the time.",
        "The programs of user:alice together get 30 % of the time of each GPU, whenever they want "
        "it.",
        "user:alice has no program that uses a GPU now."]
    await ctl("weight", "user:alice", "200")
    assert ruled.tenancy.terms("user:alice") == TenantTerms(
        40 * GIB, 200, compute_limit=50, compute_request=30, host_memory_limit=9 * GIB,
        neighbour_limit=1)
    ruled.tenancy.name({"pod:7d1c": PodNames("lab", "train", {})})
    ended = await ctl("limit", "user:0", "--memory", "none", "--compute", "none")
    assert ended.out.splitlines()[:2] == [
        "The programs of user:root together may allocate 60GiB on each GPU, as [tenant user:*] in "
        "/etc/a.conf:2 says.",
        "The programs of user:root together may use each GPU all of the time that other "
        "programs leave."]


@pytest.mark.parametrize(("command", "words", "found"), [
    ("priority user:alice background", "The priority of user:alice is background.",
     {"tenant": "user:alice", "priority": "background"}),
    ("priority user:alice none", "The priority of user:alice is normal.",
     {"tenant": "user:alice", "priority": "normal"}),
    ("suspend user:alice", "The programs of user:alice are suspended.",
     {"tenant": "user:alice", "suspended": True}),
    ("resume user:alice", "The programs of user:alice are no longer suspended.",
     {"tenant": "user:alice", "suspended": False}),
    ("limit user:alice --deadline 50ms",
     "The turns of the programs of user:alice are to begin within 50ms.",
     {"tenant": "user:alice", "deadline": 50_000}),
    ("weight pod:lab/train 7", "The weight of pod:lab/train is 7.",
     {"tenant": "pod:lab/train", "weight": 7}),
    ("weight user:alice none", "The weight of user:alice is 50, as",
     {"tenant": "user:alice", "weight": 50}),
])
async def test_tenant_command_prints_the_new_term_as_sentence_or_json(
        ruled: Manager, ctl: Run, command: str, words: str, found: dict[str, object]) -> None:
    ruled.tenancy.name({"pod:7d1c": PodNames("lab", "train", {})})
    assert (await ctl(*command.split())).out.startswith(words)
    assert json.loads((await ctl(*command.split(), "--json")).out) == found


async def test_limit_command_warns_of_an_unknown_user_container_or_pod(
        ruled: Manager, ctl: Run) -> None:
    ended = await ctl("limit", "user:nosuchuser", "--memory", "4GB")
    assert ended.code == ExitCode.OK
    assert "may allocate 4GB on each GPU" in ended.out
    assert ended.err == (
        "nvsharectl: warning: this machine has no user 'nosuchuser' now; the setting takes effect "
        "when a program of such a user starts\n")
    for known in ("user:root", "user:4711", "job:7"):
        assert (await ctl("weight", known, "7")).err == ""
    ended = await ctl("limit", "container:nosuchbox", "--memory", "4GB")
    assert ended.code == ExitCode.OK
    assert "no container 'nosuchbox' is known to nvshared" in ended.err
    assert (await ctl("limit", f"container:{64 * 'a'}", "--memory", "4GB")).err == ""
    ended = await ctl("limit", "pod:train-1", "--memory", "4GB")
    assert ended.code == ExitCode.OK
    assert "no pod with the UID 'train-1' uses a GPU" in ended.err
    for unknown in ("user:nosuchuser", "container:nosuchbox", "pod:train-1"):
        assert (await ctl("limit", unknown, "--memory", "none")).err == ""
    ended = await ctl("limit", "user:root", "--memory", "40")
    assert (ended.code, sentence(ended)) == (
        ExitCode.INVALID_ARGS,
        "the memory limit cannot be '40'; give a unit, such as 40GiB or 40MiB, or none")


async def test_limit_command_warns_of_a_disk_limit_where_no_disk_is_configured(
        ruled: Manager, ctl: Run) -> None:
    ended = await ctl("limit", "user:root", "--disk", "4GB")
    assert (ended.code, "has no setting disk" in ended.err) == (ExitCode.OK, True)
    assert (await ctl("limit", "user:root", "--disk", "none")).err == ""


async def test_tenant_command_refuses_a_number_that_another_user_is_called(
        ruled: Manager, ctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = pwd.getpwnam

    def getpwnam(name: str) -> pwd.struct_passwd:
        found = pwd.struct_passwd((name, "x", 3005, 3005, "", "/", "/bin/sh"))
        return found if name == "2001" else real(name)

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    for command in (["limit", "user:2001", "--memory", "1GiB"], ["weight", "unit:2001/x", "3"],
                    ["suspend", "user:2001"]):
        ended = await ctl(*command)
        assert (ended.code, sentence(ended)) == (
            ExitCode.INVALID_ARGS, "2001 is a user's number, and the user 3005 is called so, too; "
            "give user:3005 for that user, or user:02001 for the number")
    assert ruled.tenancy.names() == []
    for right, number in (
            ("user:02001", "user:2001"), ("user:3005", "user:3005"), ("job:2001", "job:2001")):
        await ctl("weight", right, "7")
        assert ruled.tenancy.terms(number).weight == 7


async def test_limit_command_names_the_tighter_limit_of_an_enclosing_tenant(
        manager: Manager, ctl: Run) -> None:
    unit, user = Tenant(Kind.UNIT, "train.service"), Tenant(Kind.USER, "0")
    a_client(manager, manager.gpus[0], pid=11, tenants=(user, unit))
    await ctl("limit", "user:root", "--memory", "100MiB", "--compute", "30")
    ended = await ctl("limit", "11", "--memory", "none", "--compute", "50")
    tighter = [
        "A tighter limit applies: The programs of user:root together may allocate 100MiB on each "
        "GPU.",
        "A tighter limit applies: The programs of user:root together may use each GPU at most 30 % "
        "of the time."]
    assert ended.out.splitlines()[1::2] == tighter
    assert (await ctl("limit", "11", "--memory", "50MiB")).out.count("\n") == 1
    ended = await ctl("limit", "unit:train.service", "--memory", "1GiB")
    assert tighter[0] in ended.out.splitlines()


@pytest.mark.parametrize(("arguments", "words"), [
    (["limit", "alice", "--memory", "3"], "'alice' is neither a process id nor a tenant; "
     f"{GIVE.replace('give', 'give a number, or')}"),
    (["weight", "usr:alice", "3"], f"'usr:alice' is no tenant; {GIVE}"),
    (["weight", "user:a", "3", "--gpu", "0"],
     "the terms of a tenant apply to each GPU; leave out --gpu"),
    (["limit", "7", "--request", "30"], f"a process has no compute request; {GIVE}"),
    (["limit", "user:a"],
     f"no limit is given; give {', '.join(MOST_LIMITS)} or {LAST_LIMIT}"),
    (["weight", "user:a", "1001"],
     "the weight cannot be '1001'; give a whole number from 1 to 1000, or none"),
])
async def test_tenant_command_with_invalid_arguments_prints_one_error_sentence(
        ctl: Run, arguments: list[str], words: str) -> None:
    ended = await ctl(*arguments)
    assert (ended.code, sentence(ended)) == (ExitCode.INVALID_ARGS, words)


async def test_tenants_command_shows_the_source_of_each_term(ruled: Manager, ctl: Run) -> None:
    assert (await ctl("tenants")).out == (
        "No program uses a GPU through nvshared, and no tenant has terms set by hand. Rules show "
        "with: nvsharectl tenants --explain TENANT\n")
    a_client(ruled, ruled.gpus[0])
    ruled.tenancy.set_terms("user:root", {"memory-limit": 40 * GIB})
    ruled.tenancy.set_terms(
        "job:7", {"weight": 3, "host-memory-limit": GIB, "compute-request": 20, "priority": 1})
    ruled.tenancy.set_terms("pod:7d1c", {"weight": 3, "source": "claim"})
    ruled.tenancy.set_terms("pod:7d1c", {"memory-limit": GIB, "source": "annotation"})
    assert [line.split() for line in (await ctl("tenants")).out.splitlines()] == [
        ["TENANT", "PROGRAMS", "MEM", "RESIDENT", "HELD", "LIMITS", "FROM"],
        ["job:7", "0", "0", "0", "0s", "h1.0G,r20%,w3,background", "hand"],
        ["pod:7d1c", "0", "0", "0", "0s", "1.0G,w3", "annotation,claim"],
        ["user:root", "1", "31.0G", "21.0G", "0s", "40.0G,w50", "hand,rule"]]
    assert (await ctl("tenants", "--explain", "user:0")).out == """\
user:root: 1 program, 31.0G of memory, 21.0G of it on GPUs, held for 0s.

TERM          VALUE  FROM
memory-limit  40GiB  set by hand
weight           50  [tenant user:*] in /etc/a.conf:3

Overridden by the terms above:

TERM          VALUE  FROM
memory-limit  60GiB  [tenant user:*] in /etc/a.conf:2
"""
    assert (await ctl("tenants", "--explain", "job:8")).out == (
        "job:8: no program uses a GPU now.\nNo term is set for job:8.\n")
    job, _, root = json.loads((await ctl("tenants", "--json")).out)["tenants"]
    assert job == {
        "name": "job:7", "programs": 0, "allocated": 0, "resident": 0, "pinned": 0,
        "held_usec": 0, "within": [],
        "terms": [
            {"name": "host-memory-limit", "value": GIB, "rule": "", "place": "", "holds": True},
            {"name": "compute-request", "value": 20, "rule": "", "place": "", "holds": True},
            {"name": "weight", "value": 3, "rule": "", "place": "", "holds": True},
            {"name": "priority", "value": 1, "rule": "", "place": "", "holds": True}]}
    assert [term["holds"] for term in root["terms"]] == [True, False, True]
    assert json.loads((await ctl("tenants", "--explain", "job:7", "--json")).out) == job


async def test_list_of_many_tenants_is_made_while_the_event_loop_goes_on(
        manager: Manager, publication: Publication, other: Peeper,
        monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        a_client(manager, manager.gpus[0], tenants=(Tenant(Kind.JOB, str(number)),))
    rounds, seen = 0, set()
    rules_of = Tenancy._rules_of

    def looks(self: Tenancy, name: str) -> list[Rule]:
        seen.add(rounds)
        return rules_of(self, name)

    async def count() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    monkeypatch.setattr(Tenancy, "_rules_of", looks)
    counting = asyncio.create_task(count())
    found = await other.result("ListTenants")
    counting.cancel()
    assert [row[0] for row in found] == sorted(f"job:{number}" for number in range(300))
    assert len(seen) == 300             # a round for each tenant


async def test_pods_are_shown_by_name_after_a_setpods_call(
        manager: Manager, publication: Publication, other: Peeper, ctl: Run) -> None:
    pod = Tenant(Kind.POD, "7d1c", container="9f1c")
    client = a_client(manager, manager.gpus[0], tenants=(Tenant(Kind.USER, "0"), pod))
    await announced(publication, other)
    await other.watch()
    pods = [["7d1c", "lab", "train", {"9f1c": "ma\x1bin"}]]
    # The longest names of as many pods as a node has, and of ten containers each.
    pods += [[f"{pod:036}", "x" * 63, "y" * 253, {
        f"{pod:032}{container:032}": "z" * 63 for container in range(10)}] for pod in range(250)]
    await other.call("SetPods", "a(sssa{ss})", [pods])
    assert (client.tenant, client.container) == ("pod:lab/train", "ma?in")
    assert await announced(publication, other) == [(client_path(client.id), CLIENT_INTERFACE, {
        "Name": "lab/train", "Tenant": "pod:lab/train"})]
    for verb in ("tenants", "clients", "status"):
        assert "pod:lab/train" in (await ctl(verb)).out
    assert "pod:7d1c" not in (await ctl("tenants")).out
    assert (await ctl("tenants", "--explain", "pod:lab/train")).out.startswith("pod:lab/train: 1")
    await other.call("SetPods", "a(sssa{ss})", [[]])
    assert client.tenant == "pod:7d1c"
