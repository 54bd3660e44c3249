# SPDX-License-Identifier: Apache-2.0
"""Terms of tenants: the daemon passes terms to schedulers and keeps terms over restarts."""

import grp
import pwd
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nvshared.errors import InvalidArgs
from nvshared.lanes import here
from nvshared.machine import subordinate
from nvshared.machine.nvml import Sample
from nvshared.machine.tenant import Kind, Tenant
from nvshared.scheduler.events import Event, Joined, Memory, TenantChanged, TenantTerms
from nvshared.settings.defaults import Defaults
from nvshared.settings.rules import Rule
from nvshared.settings.state import TENANTS_FILE, TenantsFile
from nvshared.sharing import tenancy
from nvshared.sharing.directory import (
    AGAIN_MOST,
    FRESH,
    MOST,
    OF_A_CALLER,
    PATIENCE,
    Directory,
    Question,
)
from nvshared.sharing.gpu import Client, PodNames
from nvshared.sharing.manager import Manager
from nvshared.sharing.tenancy import Tenancy, TenantView
from nvshared.terms import TERMS
from nvshared.units import GIB
from tests.unit.scripted import DEFAULTS, FACTS, OTHER, Scripted, Time, joined, peer, script

ALICE, POD = Tenant(Kind.USER, "1000"), Tenant(Kind.POD, "7d1c")
BOB = Tenant(Kind.USER, "1001")
TRAIN = PodNames("lab", "train", {"9f1c": "main"})
SHOWN = "pod:lab/train"
KNOWN = ", ".join(TERMS)
RULES = (
    Rule("user:*", "memory-limit", 60 * GIB, "a.conf:2"), Rule("user:*", "weight", 50, "a.conf:3"),
    Rule("pod:lab/*", "compute-limit", 30, "a.conf:5"),
)


class Daemon:
    """A daemon with two cards; `rules` are the tenant rules of its configuration."""

    def __init__(self, folder: Path, rules: tuple[Rule, ...] = ()) -> None:
        self.rules = rules
        time = self.time = Time()
        tenancy = Tenancy(TenantsFile(folder), Directory(here, time.clock, time.timer))

        def read() -> Defaults:
            tenancy.use(self.rules)
            return DEFAULTS

        self.manager = Manager(read, time.clock, time.timer, tenancy=tenancy)
        self.heard: list[list[Event]] = []
        self.manager.tenancy.name({str(POD): TRAIN})
        for facts in (FACTS, OTHER):
            self.manager.add(facts, Sample(), gather=False)
            self.heard.append(Scripted.latest.events)

    def joins(self, *tenants: Tenant, gpu: int = 0, pid: int = 11) -> Client:
        """Join a client with 3 GiB: 2 GiB on the card, 1 GiB pinned."""
        memory = Memory(allocated=3 * GIB, resident=2 * GIB, pinned=GIB)
        return joined(
            self.manager.gpus[gpu], self.manager.next_id(), memory=memory,
            process=replace(peer(pid), tenants=tenants))

    def set(self, name: str, **terms: object) -> None:
        named = {term.replace("_", "-"): value for term, value in terms.items()}
        self.manager.tenancy.find(name, None, lambda: None)
        self.manager.tenancy.set_terms(name, named).result()

    def sent_terms(self, gpu: int = 0) -> list[TenantChanged]:
        """Terms passed to the card's scheduler since the last call, also with the event Joined."""
        sent: list[TenantChanged] = []
        for event in self.heard[gpu]:
            if isinstance(event, Joined):
                sent += [TenantChanged(name, terms) for name, terms in event.terms.items()]
            elif isinstance(event, TenantChanged):
                sent.append(event)
        self.heard[gpu].clear()
        return sent


def listed(daemon: Daemon) -> list[TenantView]:
    """The tenants that ListTenants lists."""
    return [daemon.manager.tenancy.view(name) for name in daemon.manager.tenancy.names()]


class Users:
    """The database of users and groups. Without entries it looks like one that is out of reach."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.users: dict[str, int] = {}
        self.groups: dict[str, int] = {}
        self.members: dict[str, set[int]] = {}          # numbers of groups by the user's name
        self.asked = 0
        for module, name in (pwd, "getpwnam"), (pwd, "getpwuid"), (grp, "getgrnam"):
            monkeypatch.setattr(module, name, getattr(self, name))
        monkeypatch.setattr("os.getgrouplist", lambda name, _gid: [*self.members.get(name, ())])

    def getpwnam(self, name: str) -> pwd.struct_passwd:
        self.asked += 1
        uid = self.users[name]
        return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))

    def getpwuid(self, uid: int) -> pwd.struct_passwd:
        names = [name for name, number in self.users.items() if number == uid]
        return self.getpwnam(names[0] if names else "")

    def getgrnam(self, name: str) -> grp.struct_group:
        self.asked += 1
        return grp.struct_group((name, "x", self.groups[name], []))


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Users:
    """alice, 1000, and bob, 1001, whose group is staff."""
    found = Users(monkeypatch)
    found.users = {"alice": 1000, "bob": 1001}
    found.groups = {"staff": 50}
    found.members = {"bob": {50, 1001}}
    return found


@pytest.fixture
def daemon(users: Users, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Daemon:
    script(monkeypatch)
    return Daemon(tmp_path)


def test_tenant_terms_reach_the_scheduler_with_the_first_client(daemon: Daemon) -> None:
    daemon.set("user:alice", memory_limit=40 * GIB, compute_limit=50, weight=200)
    daemon.set("pod:lab/train", weight=7)
    assert not daemon.sent_terms()
    daemon.joins(ALICE, POD)
    alice = TenantTerms(40 * GIB, 200, compute_limit=50, shown="user:alice")
    assert isinstance(joined := daemon.heard[0][0], Joined)
    assert joined.terms == {"user:1000": alice, "pod:7d1c": TenantTerms(weight=7, shown=SHOWN)}
    assert joined.tenants == ("pod:7d1c", "user:1000")    # the outermost first
    assert not daemon.sent_terms(1)
    daemon.sent_terms()
    daemon.joins(ALICE)
    assert daemon.sent_terms() == []
    daemon.joins(ALICE, gpu=1)
    assert daemon.sent_terms(1) == [TenantChanged("user:1000", alice)]


def test_tenant_terms_override_rules_until_removed(daemon: Daemon) -> None:
    daemon.rules = RULES
    daemon.joins(ALICE, POD)
    daemon.manager.reload()
    assert daemon.sent_terms() == [
        TenantChanged("user:1000", TenantTerms(60 * GIB, 50, shown="user:alice")),
        TenantChanged("pod:7d1c", TenantTerms(compute_limit=30, shown=SHOWN))]
    daemon.set("user:alice", memory_limit=4 * GIB, compute_limit=100)
    assert daemon.sent_terms() == [TenantChanged(
        "user:1000", TenantTerms(4 * GIB, 50, shown="user:alice"))]
    (_, alice) = listed(daemon)
    assert alice.terms == (
        Rule("", "memory-limit", 4 * GIB, ""), RULES[0], Rule("", "compute-limit", 100, ""),
        RULES[1])
    daemon.set("user:alice", memory_limit=0)
    assert daemon.sent_terms() == [TenantChanged(
        "user:1000", TenantTerms(60 * GIB, 50, shown="user:alice"))]
    daemon.rules = ()
    daemon.manager.reload()
    assert {event.tenant: event.terms for event in daemon.sent_terms()} == {
        "user:1000": TenantTerms(), "pod:7d1c": TenantTerms()}


def test_rule_for_a_group_applies_to_users_in_that_group(users: Users, daemon: Daemon) -> None:
    daemon.joins(ALICE, POD)
    daemon.rules = (
        Rule("group:staff", "weight", 9, "a"), Rule("user:alice", "memory-limit", GIB, "b"),
        Rule("group:1000", "weight", 7, "c"))
    daemon.manager.reload()
    daemon.joins(BOB)
    daemon.joins(Tenant(Kind.UNIT, "staff.service"))
    assert daemon.sent_terms() == [
        TenantChanged("user:1000", TenantTerms(GIB, shown="user:alice")),
        TenantChanged("user:1001", TenantTerms(weight=9, shown="user:bob"))]
    users.members["alice"] = {50}       # she joins the group while her program runs
    daemon.time.pass_by(2 * FRESH)
    assert daemon.sent_terms() == [
        TenantChanged("user:1000", TenantTerms(GIB, 9, shown="user:alice"))]


@pytest.mark.parametrize(("pattern", "tenant"), [
    ("user:alice", ALICE), ("user:al*", ALICE), ("group:staff", BOB),
    ("unit:bob/*.service", Tenant(Kind.UNIT, "1001/train.service")),
    ("container:?o?/9f1c", Tenant(Kind.CONTAINER, "1001/9f1c")),
])
def test_rule_by_name_holds_for_running_programs_once_the_directory_knows_the_name(
        users: Users, daemon: Daemon, caplog: pytest.LogCaptureFixture, pattern: str, tenant: Tenant
) -> None:
    known, users.users, groups, users.groups = users.users, {}, users.groups, {}
    daemon.rules = (Rule(pattern, "weight", 9, "nvshared.conf:3"),)
    daemon.manager.reload()
    user = Tenant(Kind.USER, tenant.name.partition("/")[0])
    daemon.joins(*{user: None, tenant: None})
    assert daemon.sent_terms() == []
    daemon.time.pass_by(100 * AGAIN_MOST)
    assert daemon.sent_terms() == []
    assert len(caplog.messages) == (not set(pattern.partition("/")[0]) & set("*?"))
    assert all("nvshared.conf:3: there is no " in line for line in caplog.messages)
    users.users, users.groups = known, groups
    daemon.time.pass_by(3 * AGAIN_MOST)
    sent = daemon.sent_terms()
    assert {(one.tenant, one.terms.weight) for one in sent} == {(str(tenant), 9)}
    # The directory is away again: what it said last still holds, also for later programs.
    users.users, users.groups, users.members = {}, {}, {}
    daemon.time.pass_by(100 * FRESH)
    daemon.joins(*{user: None, tenant: None}, gpu=1)
    assert daemon.sent_terms() == []
    assert [one.tenant for one in daemon.sent_terms(1)] == [str(tenant)]


def steps(act: Callable[[], object]) -> int:
    """How many functions are called."""
    called = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return called


def test_steps_of_a_reload_and_a_list_grow_with_rules_programs_and_terms_and_not_their_product(
        users: Users, daemon: Daemon, tmp_path: Path) -> None:
    def measured(number: int, folder: Path) -> tuple[int, ...]:
        folder.mkdir()
        users.users = {f"u{user}": 2000 + user for user in range(number)}
        many = Daemon(folder)
        kept = {f"user:{5000 + user}": {"weight": (7, "")} for user in range(number)}
        many.manager.tenancy._by_hand.update(kept)
        for user in range(number):
            uid = f"{2000 + user}"
            many.joins(Tenant(Kind.UNIT, f"{uid}/a.scope"), Tenant(Kind.USER, uid))
        many.rules = tuple(
            Rule(f"{kind}:u{user}{rest}", "weight", 9, "a") for user in range(number)
            for kind, rest in (("user", ""), ("unit", "/a*"), ("group", "")))
        found = steps(many.manager.reload), steps(partial(listed, many))
        assert {one.terms.weight for one in many.sent_terms()} == {9}
        assert len(listed(many)) == 3 * number
        return found

    few, many = measured(10, tmp_path / "few"), measured(100, tmp_path / "many")
    for small, large in zip(few, many, strict=True):
        assert large < 40 * small       # of ten times as many


def test_rule_by_name_does_not_hold_for_another_user_who_got_the_number(
        users: Users, daemon: Daemon) -> None:
    daemon.rules = (Rule("user:alice", "weight", 9, "a"), Rule("user:carol", "weight", 8, "b"))
    daemon.manager.reload()
    daemon.joins(ALICE)
    assert daemon.sent_terms()[-1].terms.weight == 9
    users.users = {"carol": 1000, "bob": 1001}
    daemon.time.pass_by(2 * FRESH)
    assert daemon.sent_terms()[-1].terms == TenantTerms(weight=8, shown="user:carol")


def test_terms_set_for_an_unknown_user_wait_for_the_number_and_are_kept_under_it(
        users: Users, daemon: Daemon, tmp_path: Path) -> None:
    known, users.users = users.users, {}
    daemon.set("user:alice", weight=7)
    daemon.set("unit:alice/x.service", weight=6)
    daemon.joins(ALICE)
    assert daemon.sent_terms() == []
    assert Daemon(tmp_path).manager.tenancy.tenant("user:alice").terms == (
        Rule("", "weight", 7, ""),)
    users.users = known
    daemon.time.pass_by(3 * AGAIN_MOST)
    assert [(one.tenant, one.terms.weight) for one in daemon.sent_terms()][-1] == ("user:1000", 7)
    assert [one.name for one in listed(daemon)] == [
        "unit:alice/x.service", "user:alice"]
    daemon.set("job:7", weight=1)       # written after what was settled
    users.users = {}                    # away at the next start: numbers and names are kept
    later = Daemon(tmp_path)
    later.joins(ALICE)
    assert [(one.tenant, one.terms.weight) for one in later.sent_terms()] == [("user:1000", 7)]
    assert [one.name for one in listed(later)] == [
        "job:7", "unit:alice/x.service", "user:alice"]


def test_rule_by_name_holds_after_a_restart_while_the_directory_is_away(
        users: Users, daemon: Daemon, tmp_path: Path) -> None:
    rules = (Rule("user:alice", "weight", 9, "a"), Rule("unit:bob/*", "weight", 8, "b"))
    daemon.rules = rules
    daemon.manager.reload()
    daemon.set("job:7", weight=1)       # written after the numbers of the names
    users.users = {}
    later = Daemon(tmp_path, rules)
    later.joins(ALICE)
    later.joins(BOB, Tenant(Kind.UNIT, "1001/x.service"))
    assert [(one.tenant, one.terms.weight) for one in later.sent_terms()] == [
        ("user:1000", 9), ("unit:1001/x.service", 8)]


@pytest.mark.parametrize("names", [
    {"2001": 3005, "carol": 2001}, {"2001": 3005}, {"carol": 2001}, {},
])
def test_user_of_digits_is_the_number_and_one_called_so_is_shown_by_number(
        users: Users, daemon: Daemon, caplog: pytest.LogCaptureFixture, names: dict[str, int]
) -> None:
    users.users = names
    daemon.rules = (Rule("user:2001", "weight", 9, "a.conf:2"),)
    daemon.manager.reload()
    daemon.joins(Tenant(Kind.USER, "2001"))
    daemon.joins(Tenant(Kind.USER, "3005"))
    shown = "user:carol" if "carol" in names else "user:2001"
    assert [one.name for one in listed(daemon)] == sorted([shown, "user:3005"])
    assert [one.tenant for one in daemon.sent_terms()] == ["user:2001"]
    if "2001" in names:
        with pytest.raises(InvalidArgs, match="the user 3005 is called so, too; give user:3005"):
            daemon.set("user:2001", weight=3)
    daemon.set("user:02001", weight=3)
    assert [(one.tenant, one.terms.weight) for one in daemon.sent_terms()] == [("user:2001", 3)]
    assert ("a.conf:2: 2001 is the user with this number, not the user that is called so: that is "
            "user:3005" in caplog.text) is ("2001" in names)


def test_names_that_users_of_the_bus_make_up_are_asked_for_one_by_one_and_forgotten(
        users: Users, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[tuple[object, Callable[[], None]]] = []
    answered: list[int] = []
    directory = daemon.manager.tenancy.directory

    def run(lane: object, ask: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        waiting.append((lane, lambda: answer(ask())))

    with monkeypatch.context() as patch:
        patch.setattr(directory, "_run", run)
        for number in range(1000):
            daemon.manager.tenancy.find(f"user:x{number}", 4711, partial(answered.append, number))
        assert len(waiting) == OF_A_CALLER
        assert len({lane for lane, _ in waiting}) == 1
        daemon.time.pass_by(PATIENCE)   # the directory does not answer: nobody waits for longer
        assert sorted(answered) == [*range(1000)]
        for _, ask in waiting:
            ask()
    for number in range(3 * MOST):
        daemon.manager.tenancy.find(f"user:x{number}", 4711, lambda: None)
    assert len(directory._entries) <= MOST


def test_programs_of_a_subordinate_range_get_the_terms_of_its_user_once_the_user_is_known(
        users: Users, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subordinate, "FILE", tmp_path / "subuid")
    subordinate.FILE.write_text("alice:100000:65536\n")
    known, users.users = users.users, {}
    daemon.set("user:1000", memory_limit=GIB)
    daemon.rules = (Rule("user:alice", "weight", 9, "a"),)
    daemon.manager.reload()
    daemon.joins(Tenant(Kind.USER, "100000"))
    assert daemon.sent_terms() == []
    users.users = known
    daemon.time.pass_by(3 * AGAIN_MOST)
    assert daemon.sent_terms() == [TenantChanged("user:100000", TenantTerms(GIB, 9))]


def test_programs_of_a_subordinate_range_lose_the_terms_of_its_user_once_another_has_the_number(
        users: Users, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subordinate, "FILE", tmp_path / "subuid")
    subordinate.FILE.write_text("alice:100000:65536\n")
    daemon.joins(Tenant(Kind.USER, "100000"))
    daemon.time.pass_by(3 * AGAIN_MOST)
    daemon.set("user:1000", memory_limit=GIB)
    assert daemon.sent_terms() == [TenantChanged("user:100000", TenantTerms(GIB))]
    users.users = {"carol": 1000}
    daemon.time.pass_by(3 * AGAIN_MOST + FRESH)
    assert daemon.sent_terms() == [TenantChanged("user:100000", TenantTerms())]


def test_directory_reports_a_number_that_went_to_another_user_whichever_answer_comes_first(
        users: Users) -> None:
    alice, name = Question("number", "alice"), Question("name", 1000)
    for order in (alice, name), (name, alice):
        users.users = {"alice": 1000}
        time, heard = Time(), list[Question]()
        directory = Directory(here, time.clock, time.timer)
        for question in order:
            directory.ask(question)
        directory.changed.connect(heard.append)
        users.users = {"carol": 1000}
        time.pass_by(FRESH)
        for question in order:
            directory.ask(question)
        assert directory.number("alice") is None
        assert name in heard
        assert alice in heard or order[-1] == name      # which is heard once the number is gone


def test_tenant_term_keeps_the_named_source_over_a_restart(daemon: Daemon, tmp_path: Path) -> None:
    def sources(which: Daemon) -> dict[str, str]:
        return {term.term: term.source for term in which.manager.tenancy.tenant(SHOWN).terms}

    daemon.manager.tenancy.set_terms(
        SHOWN, {"weight": 7, "memory-limit": GIB, "source": "annotation"}).result()
    daemon.manager.tenancy.set_terms(SHOWN, {"memory-limit": 2 * GIB}).result()
    expected = {"weight": "set by annotation", "memory-limit": "set by hand"}
    assert sources(daemon) == sources(Daemon(tmp_path)) == expected
    daemon.manager.tenancy.set_terms(SHOWN, {"weight": 0, "source": "annotation"}).result()
    assert sources(Daemon(tmp_path)) == {"memory-limit": "set by hand"}


@pytest.mark.parametrize(("wrong", "words"), [
    ('"alice": {"weight": 3}', "the tenant 'alice': give user:NAME"),
    ('"user:*": {"weight": 3}', "the tenant 'user:*': a pattern is for rules"),
    ('"user:b": 3', "of user:b, the term cannot be 3"),
    *((f'"user:b": {{"{term}": {value}}}', f"of user:b, the term '{term}': it ")
      for term, value in (
        ("weight", "0"), ("weight", "1001"), ("weight", "true"), ("weight", '[3, "whim"]'),
        ("memory-limit", "18446744073709551616"), ("colour", "3"))),
    ('"user:b": {"weight": [1, 2, 3]}', "of user:b, the term 'weight': too many values"),
    ('"user:007": {"weight": 3}', "the tenant 'user:007': it is user:7"),
])
def test_tenants_file_with_a_wrong_entry_keeps_the_others_and_is_put_aside(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: str, words: str) -> None:
    path = tmp_path / TENANTS_FILE
    path.write_text(text := '{"version": 1, "tenants": {"user:a": {"weight": 3}, '
                    f'{wrong}, "job:7": {{"weight": [4, "job"]}}}}}}')
    right = {"user:a": {"weight": (3, "")}, "job:7": {"weight": (4, "job")}}
    file = TenantsFile(tmp_path)
    assert file.load() == right
    assert words in caplog.text
    assert f"{path} is put aside as {path.name}.aside-1" in caplog.text
    file.save(right | {"user:c": {"weight": (5, "")}}).result()
    assert (tmp_path / f"{path.name}.aside-1").read_text() == text
    caplog.clear()
    assert TenantsFile(tmp_path).load() == right | {"user:c": {"weight": (5, "")}}
    assert caplog.text == ""


@pytest.mark.parametrize(("name", "terms", "sentence"), [
    ("alice", {"weight": 3}, "'alice' is no tenant; give user:NAME, unit:NAME, container:NAME, "
     "job:ID or pod:NAMESPACE/NAME"),
    ("group:staff", {"weight": 3}, "'group:staff' is no tenant; a group has rules: "
     "[tenant group:NAME] in nvshared.conf"),
    ("user:a", {}, f"no term of user:a is given; there are {KNOWN}"),
    ("user:a", {"weight": 3, "source": "whim"},
     "the source of the terms of user:a cannot be 'whim'; there are annotation, claim, class, job"),
    ("user:a", {"weight": 3, "colour": 3}, f"a tenant has no term 'colour'; there are {KNOWN}"),
    ("user:a", {"weight": True}, "the weight of user:a cannot be True; give 1 to 1000, "
     "or 0 to take back what was set"),
    ("user:a", {"priority": 4}, "the priority of user:a cannot be 4; give 1 (background), "
     "2 (normal), 3 (high), or 0 to take back what was set"),
    ("user:a", {"memory-limit": -1}, "the memory-limit of user:a cannot be -1; give a number of "
     "bytes, or 0 to take back what was set"),
])
def test_invalid_tenant_term_is_refused_and_no_term_of_the_call_is_set(
        daemon: Daemon, tmp_path: Path, name: str, terms: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidArgs) as raised:
        daemon.manager.tenancy.set_terms(name, terms)
    assert str(raised.value) == sentence
    assert listed(daemon) == []
    assert not (tmp_path / TENANTS_FILE).exists()


def test_compute_requests_over_100_percent_are_refused_naming_all_requests(daemon: Daemon) -> None:
    daemon.rules = (
        Rule("user:*", "compute-request", 20, "a:1"), Rule("job:7", "compute-request", 20, "a:2"))
    daemon.manager.reload()
    daemon.set("pod:lab/train", compute_request=30)
    daemon.set("pod:lab/train", compute_request=40)     # replaces the request of 30 %
    client = daemon.joins(ALICE)
    daemon.joins(ALICE, gpu=1)                          # a client of the same tenant
    with pytest.raises(InvalidArgs) as raised:
        daemon.set("user:bob", compute_request=30)
    assert str(raised.value) == (
        "the compute-request of user:bob cannot be 30 %; others have, of 100 % in all: "
        "job:7 20 %, pod:lab/train 40 %, user:alice 20 %")
    assert daemon.manager.tenancy.terms("user:bob").compute_request == 20      # unchanged
    client.gpu.leave(client)
    daemon.set("user:alice", compute_request=10)
    daemon.set("user:bob", compute_request=30)
    daemon.set("user:bob", weight=3)


def test_compute_request_above_the_compute_limit_is_refused(daemon: Daemon) -> None:
    daemon.rules = (Rule("user:*", "compute-limit", 50, "a:1"),)
    daemon.manager.reload()
    for terms in ({"compute_request": 60}, {"compute_request": 40, "compute_limit": 30}):
        with pytest.raises(InvalidArgs, match="contradicts"):
            daemon.set("user:alice", **terms)
    with pytest.raises(InvalidArgs) as raised:
        daemon.set("user:alice", compute_request=60)
    assert str(raised.value) == (
        "the compute-request of user:alice, 60 % set by hand, contradicts the compute-limit of "
        "user:alice, 50 % from a:1; lower the one or raise the other")
    daemon.set("user:alice", compute_request=60, compute_limit=70)
    with pytest.raises(InvalidArgs, match=r"60 % set by hand, contradicts .* user:alice, 50 %"):
        daemon.set("user:alice", compute_limit=0)
    assert daemon.manager.tenancy.terms("user:1000") == TenantTerms(
        compute_request=60, compute_limit=70, shown="user:alice")
    daemon.set("user:alice", compute_limit=0, compute_request=0)
    assert daemon.manager.tenancy.terms("user:1000") == TenantTerms(
        compute_limit=50, shown="user:alice")


def test_tenant_terms_can_be_removed_while_rules_contradict_each_other(daemon: Daemon) -> None:
    daemon.rules = (
        Rule("job:*", "compute-request", 60, "a:1"), Rule("user:alice", "compute-limit", 50, "a:2"),
        Rule("user:bob", "compute-request", 60, "a:3"))
    daemon.manager.reload()
    daemon.joins(ALICE, Tenant(Kind.JOB, "7"))
    daemon.joins(BOB)
    daemon.set("job:7", compute_limit=90, weight=7)
    taken_back = dict.fromkeys(TERMS, 0)
    daemon.manager.tenancy.set_terms("job:7", taken_back)
    assert daemon.manager.tenancy.terms("job:7") == TenantTerms(compute_request=60)


def test_compute_request_above_the_compute_limit_of_the_enclosing_tenant_is_refused(
        daemon: Daemon) -> None:
    pod = daemon.joins(ALICE, POD)
    daemon.set("user:alice", compute_limit=50)
    daemon.set("pod:lab/train", compute_request=50)
    sentence = ("the compute-request of pod:lab/train, 60 % set by hand, contradicts the "
                "compute-limit of user:alice, 50 % set by hand; lower the one or raise the other")
    with pytest.raises(InvalidArgs) as raised:
        daemon.set("pod:lab/train", compute_request=60)
    assert str(raised.value) == sentence
    with pytest.raises(InvalidArgs, match=r"pod:lab/train, 50 %.* of user:alice, 40 % set by hand"):
        daemon.set("user:alice", compute_limit=40)
    daemon.joins(BOB, POD)     # the pod has programs of another user
    daemon.set("pod:lab/train", compute_request=60)
    daemon.set("user:alice", compute_limit=40)
    pod.gpu.leave(pod)
    daemon.set("user:bob", compute_limit=60)


def test_tenants_without_clients_are_forgotten_oldest_first_beyond_a_maximum(
        daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenancy, "ENDED_KEPT", 2)
    daemon.rules = (Rule("job:*", "weight", 3, "a"), Rule("user:*", "weight", 3, "a"))
    daemon.manager.reload()
    daemon.joins(ALICE)
    for number in (1, 2, 1, 3, 4):
        client = daemon.joins(ALICE, Tenant(Kind.JOB, str(number)))
        client.gpu.leave(client)
    forgotten = [event.tenant for event in daemon.sent_terms() if event.terms == TenantTerms()]
    assert forgotten == ["job:2", "job:1"]


def test_limit_set_for_a_containers_id_is_its_names_once_that_is_known(daemon: Daemon) -> None:
    daemon.set(f"container:{'a' * 64}", memory_limit=GIB, weight=7)
    daemon.set("container:trainer", weight=9)
    client = daemon.joins(ALICE, Tenant(Kind.CONTAINER, "trainer", "a" * 64))
    assert client.tenant == "container:trainer"
    found = listed(daemon)
    assert [one.name for one in found] == ["container:trainer", "user:alice"]
    assert {one.term: one.value for one in found[0].terms} == {"memory-limit": GIB, "weight": 9}


def test_pod_is_shown_by_uid_until_the_name_is_known(daemon: Daemon) -> None:
    daemon.rules = RULES
    daemon.manager.reload()
    daemon.manager.tenancy.name({})
    main = replace(POD, container="9f1c")
    client = daemon.joins(ALICE, main)
    assert (str(client), client.tenant, client.container) == ("python[11]", "pod:7d1c", "")
    daemon.set("pod:7d1c", weight=7)
    daemon.sent_terms()
    renamed: list[Client] = []
    daemon.manager.tenancy.renamed.connect(renamed.append)
    daemon.manager.tenancy.name({str(POD): TRAIN})
    assert renamed == [client]
    assert (str(client), client.tenant, client.container) == (
        "lab/train[11]", "pod:lab/train", "main")
    # Rules may be for the pod's name; terms set for its UID stay.
    assert daemon.sent_terms() == [
        TenantChanged("pod:7d1c", TenantTerms(compute_limit=30, weight=7, shown=SHOWN))]
    daemon.manager.tenancy.name({str(POD): TRAIN})
    assert renamed == [client]
    assert daemon.manager.tenancy.tenant("pod:lab/train") == daemon.manager.tenancy.tenant(
        "pod:7d1c")
    daemon.joins(ALICE)
    assert [one.name for one in listed(daemon)] == ["pod:lab/train", "user:alice"]


@pytest.mark.parametrize("name", [
    f"pod:{'n' * 63}/{'p' * 253}", f"unit:{'u' * 255}/{'s' * 255}", f"user:{'é' * 255}"])
def test_tenant_with_the_longest_name_of_its_kind_gets_terms_that_outlive_a_restart(
        daemon: Daemon, tmp_path: Path, name: str) -> None:
    kind, _, text = name.partition(":")
    daemon.manager.tenancy.name({str(POD): PodNames(*text.partition("/")[::2], {})})
    daemon.set(name, weight=7)
    kept = str(POD) if kind == Kind.POD else name
    assert Daemon(tmp_path).manager.tenancy.tenant(kept).terms[0].value == 7


def test_pod_of_the_same_name_as_an_earlier_pod_is_another_tenant(daemon: Daemon) -> None:
    daemon.set("pod:lab/train", weight=7)
    daemon.joins(ALICE, POD)
    daemon.manager.tenancy.name({"pod:0b5e": TRAIN})
    assert [one.name for one in listed(daemon)] == ["pod:7d1c", "user:alice"]
    assert not daemon.manager.tenancy.tenant("pod:lab/train").terms
    with pytest.raises(InvalidArgs, match="no pod:lab/other is known here"):
        daemon.set("pod:lab/other", weight=7)
