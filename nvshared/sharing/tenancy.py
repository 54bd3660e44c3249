# SPDX-License-Identifier: Apache-2.0
"""The terms of tenants: set over D-Bus ("by hand") or, with less precedence, by a rule in a file.

A pod's terms are stored under its UID, as a later pod may have its name, a user's under the user's
number, and a container's under its name, which outlives its id. A term for a name that no user
has, or that an unreachable directory does not know, waits for the number and holds from then on,
also for programs that run already. Schedulers keep ENDED_KEPT tenants without programs, lest a
program's restart clear the GPU time that its tenant owes."""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

from nvshared.errors import InvalidArgs
from nvshared.machine import subordinate
from nvshared.machine.tenant import Kind
from nvshared.names import TERM_SOURCES
from nvshared.scheduler.events import TenantChanged, TenantTerms
from nvshared.settings.rules import (
    DIGITS,
    GROUP,
    WILDCARDS,
    Rule,
    RuleIndex,
    doubt,
    is_tenant,
    named_in,
    tenant,
    user_of,
    with_user,
)
from nvshared.settings.state import KeptTerms, TenantsFile, saved
from nvshared.sharing.directory import Directory, Question
from nvshared.sharing.gpu import GPU, Client, PodNames
from nvshared.signal import Signal
from nvshared.terms import TERMS, UNLIMITED

logger = logging.getLogger(__name__)

ORDER = {term: number for number, term in enumerate(TERMS)}
ENDED_KEPT = 1000                       # tenants without programs that schedulers keep


class TenantView(NamedTuple):
    """A tenant as a row of ListTenants; figures are of living programs, in bytes and us."""

    name: str
    programs: int
    allocated: int
    resident: int
    pinned: int
    held_time: int
    within: tuple[str, ...]             # other tenants to which its programs belong
    terms: tuple[Rule, ...]             # the rule in force is first; pattern "": set by hand


class Tenancy:
    def __init__(
        self, store: TenantsFile | None = None, directory: Directory | None = None
    ) -> None:
        """`store` keeps the terms set by hand."""
        self.directory = directory or Directory()
        self.directory.use(self._questions)
        self.directory.changed.connect(self._learn)
        self.renamed: Signal[Client] = Signal("renamed")    # its displayed name has changed
        self._pods: dict[str, PodNames] = {}         # by tenant, pod:UID
        self._store = store
        self._by_hand: KeptTerms = {} if store is None else store.load()
        self._unsettled: dict[str, set[str]] = {}   # names in _by_hand by users without a number
        for name in self._by_hand:
            self._note_unsettled(name)
        self._keep_is_due = False             # in a second, if need be
        self._numbers: dict[str, int] = {}          # by user, as _learn() got it last
        for name, uid in ({} if store is None else store.users).items():
            self.directory.expect(name, uid)
            self._numbers[name] = uid
        self._rules: tuple[Rule, ...] = ()
        self._index = RuleIndex()       # of these
        self._kinds: tuple[str, ...] = ()   # of the questions that they need about each user
        # By the name of a user or group that rules name: the place of such a rule, for messages.
        self._named_in_rules: dict[Question, str] = {}
        self._group_numbers: dict[str, int] = {}        # known ones, of groups as rules name them
        self._group_names: dict[int | None, set[str]] = {}  # the reverse
        self._clients: dict[str, dict[int, Client]] = {}    # by tenant, then by id
        self._sent: dict[GPU, dict[str, TenantTerms]] = {}
        self._ended: dict[str, None] = {}   # tenants without programs, oldest first
        self._owners: dict[str, int] = {}   # by tenant: the user of the last terms sent

    def follow(self, gpu: GPU) -> None:
        self._sent[gpu] = {}
        gpu.use_tenancy(self.shown, self._join)
        gpu.client_removed.connect(self._leaves)

    def unfollow(self, gpu: GPU) -> None:
        """Sends a lost card no terms any more."""
        self._sent.pop(gpu, None)

    def use(self, rules: tuple[Rule, ...]) -> None:
        self._rules, self._index = rules, RuleIndex(rules)
        self._named_in_rules = {}
        for rule in rules:
            if (question := _question_of(rule.pattern)) is not None:
                self._named_in_rules.setdefault(question, rule.place)
        self._group_numbers, self._group_names = {}, {}
        for question in self._named_in_rules:
            if question.kind == "group":
                self._note_group(question)
        parts = {user_of(one.pattern) for one in rules} - {None, "*"}
        self._kinds = (
            *(["groups"] if any(one.kind == "group" for one in self._named_in_rules) else []),
            *(["name"] if any(WILDCARDS.search(part or "") for part in parts) else []))
        known = [*filter(self.directory.has_replied, self._named_in_rules)]
        self.directory.refresh()
        for question in known:
            self._report(question)
        for name in set[str]().union(*self._unsettled.values()) & self._by_hand.keys():
            self._settle(name)
        self._send_all((*self._clients, *self._ended))

    def prepare(self, uid: int, then: Callable[[], None]) -> None:
        """Asks for the facts about a user that rules need; calls `then` with them, or soon."""
        names = [one for one in self._named_in_rules if not DIGITS.fullmatch(one.key)]
        self.directory.wait([*names, *_of_range(uid), *self._of_rules(uid)], then)

    def find(self, name: str, caller: Hashable, then: Callable[[], None]) -> None:
        """Asks for the number of the user in a tenant's name, and for the facts that rules need;
        calls `then` once they are known, or soon. `caller`: the user of the bus that asks."""
        try:
            user = user_of(tenant(name))
        except ValueError:              # the caller will get the error
            user = None
        if user is None:
            then()
        elif DIGITS.fullmatch(user):
            given = Question("number", user_of(name))
            self.directory.wait([given, *self._of_rules(int(user))], then, caller)
            self.directory.ask(Question("name", int(user)), caller)
        else:
            def found() -> None:
                uid = self.directory.number(user)
                more = [] if uid is None else [Question("name", uid), *self._of_rules(uid)]
                self.directory.wait(more, then, caller)

            self.directory.wait([Question("number", user)], found, caller)

    def _questions(self) -> set[Question]:
        """The questions about users and groups for the present programs, rules and terms."""
        found = {*self._named_in_rules}
        users = {user for name in (*self._clients, *self._by_hand) if (user := user_of(name))}
        for user in users:
            found.update(self._of_user(user))
        return found

    def _of_user(self, user: str | None) -> list[Question]:
        """The questions about the user of a tenant that has programs or terms."""
        if user is None:
            return []
        if _is_name(user):
            return [Question("number", user)]
        owner = self._owner(uid := int(user))
        return [Question("name", owner), *_of_range(uid),
                *(Question(kind, owner) for kind in self._kinds)]

    def _of_rules(self, uid: int) -> list[Question]:
        """The questions of rules about a user: the groups, and the name for patterns."""
        return [Question(kind, self._owner(uid)) for kind in self._kinds]

    def _owner(self, uid: int) -> int:
        """The user that a number counts for: programs may run since before that was known."""
        return subordinate.owner(uid, self.directory.number)

    def _learn(self, question: Question) -> None:
        """Applies a new answer of the database of users, also to programs that run."""
        names = [*self._clients, *self._ended]
        if question.kind in ("number", "group") and question in self._named_in_rules:
            self._report(question)
        if question.kind == "group":
            changed = self._note_group(question)
            names = [one for one in names if changed and one.startswith(f"{Kind.USER}:")
                     for uid in _user_ids(one) if not changed.isdisjoint(
                         self.directory.last(Question("groups", self._owner(uid))) or ())]
        else:
            concerned = {question.key}
            if question.kind == "number":
                before, now = self._numbers.get(question.key), self.directory.number(question.key)
                concerned = {before, now}
                if now is not None:
                    self._numbers[question.key] = now
                    for name in self._unsettled.pop(question.key, set()) & self._by_hand.keys():
                        self._settle(name)
            names = [one for one in names for uid in _user_ids(one)
                     if (owner := self._owner(uid)) in concerned or owner != self._owners.get(one)]
        if question.kind == "name":
            found = {client for name in names for client in self._clients.get(name, {}).values()}
            for client in sorted(found, key=lambda one: one.id):
                self.renamed.emit(client)
        self._send_all(names)
        self._keep_soon()

    def _settle(self, name: str) -> None:
        """Moves terms set for a user's name to the user's number, once that is known."""
        known = self._with_number(name)
        if known != name:
            self._by_hand[known] = self._by_hand.pop(name) | self._by_hand.get(known, {})
            self._keep()

    def _note_unsettled(self, name: str) -> None:
        if _is_name(user := user_of(name)):
            self._unsettled.setdefault(user or "", set()).add(name)

    def _keep_soon(self) -> None:
        """Writes what the database of users has told, once for many answers. A failure is logged,
        and matters at the next start alone."""
        def keep() -> None:
            self._keep_is_due = False
            if self._store is not None and self._users() != self._store.users:
                self._keep()

        if not self._keep_is_due:
            self._keep_is_due = True
            self.directory.later(keep)

    def _keep(self) -> Future[None]:
        """Writes the terms set by hand, and the numbers of the users in terms and rules."""
        if self._store is None:
            return saved()
        self._store.users = self._users()
        return self._store.save(self._by_hand)

    def _users(self) -> dict[str, int]:
        """The known numbers, by name."""
        uids = {uid for name in self._by_hand for uid in _user_ids(name)}
        names = {self.directory.name(uid) for uid in uids} | {
            one.key for one in self._named_in_rules if one.kind == "number" and _is_name(one.key)}
        return {name: uid for name in sorted(filter(None, names))
                if (uid := self.directory.number(name)) is not None}

    def _report(self, question: Question) -> None:
        """Logs a warning about the name of a user or group in a rule."""
        word = "group" if question.kind == "group" else "user"
        if words := doubt(word, question.key, self.directory.last(question)):
            logger.warning("%s: %s", self._named_in_rules[question], words)

    def name(self, pods: Mapping[str, PodNames]) -> None:
        """Replaces the known pods of this machine; `pods` is keyed by the name of the tenant."""
        changed = sorted(name for name in self._pods.keys() | pods.keys()
                         if self._pods.get(name) != pods.get(name))
        self._pods = dict(pods)
        for name in changed:
            for client in self._clients.get(name, {}).values():
                client.rename(self._pods.get(name))
                self.renamed.emit(client)
        self._send_all(changed)

    def set_terms(self, name: str, terms: Mapping[str, object]) -> Future[None]:
        """Sets a tenant's terms, by name; 0 removes a term. "source": a name of TERM_SOURCES.

        Raises InvalidArgs. The future is done when the terms are on the disk; it raises NotKept."""
        asked = dict(terms)
        source = str(asked.pop("source", ""))
        if source not in ("", *TERM_SOURCES):
            raise InvalidArgs(
                f"the source of the terms of {name} cannot be {source!r}",
                f"there are {', '.join(TERM_SOURCES)}")
        new = _checked(name, asked)
        self._refuse_name_of_digits(name)
        name = self._named(name)
        if name.startswith(f"{Kind.POD}:") and "/" in name:
            raise InvalidArgs(
                f"no {name} is known here",
                "nvshare-kubelet tells the names of this node's pods; or give pod:UID")
        self._check_requests(name, new)
        given = {term: (value, source) for term, value in new.items()}
        changed = self._by_hand.get(name, {}) | given
        self._by_hand[name] = {term: one for term, one in changed.items() if one[0]}
        self._note_unsettled(name)
        if not self._by_hand[name]:
            del self._by_hand[name]
        lent = [one for one in (*self._clients, *self._ended) for uid in _user_ids(one)
                if one != name == with_user(one, str(self._owner(uid)))]
        self._send_all([name, *lent])
        for question in self._of_user(user_of(name)):
            self.directory.ask(question)
        return self._keep()

    def _refuse_name_of_digits(self, name: str) -> None:
        """Raises InvalidArgs if a tenant's user is given by a number that another is called."""
        user = user_of(name) or ""
        found = self.directory.number(user)
        if DIGITS.fullmatch(user) and found not in (None, int(user)):
            raise InvalidArgs(
                f"{user} is a user's number, and the user {found} is called so, too",
                f"give user:{found} for that user, or user:0{user} for the number")

    def _check_requests(self, name: str, new: Mapping[str, int]) -> None:
        """Raises InvalidArgs if a compute request would exceed a limit, or all of them 100 %."""
        if not {"compute-request", "compute-limit"} & new.keys():
            return
        inner_tenants = [other for other in self._clients if name in self._enclosing(other)]
        for one in (name, *inner_tenants):
            for outer in (one, *self._enclosing(one)):
                request = self._after(one, "compute-request", name, new)
                limit = self._after(outer, "compute-limit", name, new)
                if request is None or limit is None or request.value <= limit.value:
                    continue
                if (one == name and not request.pattern) or (outer == name and not limit.pattern):
                    raise InvalidArgs(
                        f"the compute-request of {self.shown(one)}, {request.value} % "
                        f"{request.source}, contradicts the compute-limit of "
                        f"{self.shown(outer)}, {limit.value} % {limit.source}",
                        "lower the one or raise the other")
        if not (percent := new.get("compute-request")):
            return
        ruled = [one.pattern for one in self._rules if is_tenant(one.pattern)]
        names = {*self._clients, *self._by_hand, *map(self._named, ruled)}
        others = {other: self.terms(other).compute_request for other in sorted(names - {name})}
        if sum(others.values()) + percent > UNLIMITED:
            have = ", ".join(
                f"{self.shown(other)} {has} %" for other, has in others.items() if has)
            raise InvalidArgs(
                f"the compute-request of {self.shown(name)} cannot be {percent} %",
                f"others have, of {UNLIMITED} % in all: {have}")

    def _after(self, name: str, term: str, changed: str, new: Mapping[str, int]) -> Rule | None:
        """The rule for `term` of tenant `name` once `new` is set for tenant `changed`."""
        if name == changed and new.get(term):
            return Rule("", term, new[term], "")
        found = (one for one in self._rules_of(name) if one.term == term)
        taken = name == changed and term in new
        return next((one for one in found if one.pattern or not taken), None)

    def _enclosing(self, name: str) -> list[str]:
        """The other tenants to which all clients of this tenant belong as well."""
        clients = self._clients.get(name, {})
        others = next((one.peer.tenants for one in clients.values()), ())
        return [
            other for other in map(str, others)
            if other != name and clients.keys() <= self._clients[other].keys()]

    def terms(self, name: str) -> TenantTerms:
        """Returns the terms in force for all programs of a tenant together."""
        settings: dict[str, Any] = {}
        for one in self._rules_of(name):
            field = TERMS[one.term].field
            settings.setdefault(field, type(getattr(TenantTerms(), field))(one.value))
        found = TenantTerms(**settings)
        shown = self.shown(name)
        return found if shown == name or found == TenantTerms() else replace(found, shown=shown)

    def names(self) -> list[str]:
        """Returns the internal names of the tenants that have programs or terms set by hand, in the
        order of the displayed ones."""
        return sorted(self._clients | self._by_hand, key=self.shown)

    def tenant(self, name: str) -> TenantView:
        """Returns a tenant, with or without programs. Raises InvalidArgs for an invalid name."""
        return self.view(self._named(name))

    def _rules_of(self, name: str) -> list[Rule]:
        """Returns all settings of a tenant's terms; of each term the setting in force is first."""
        by_hand = [Rule("", term, *given) for term, given in self._by_hand.get(name, {}).items()]
        names, numbers, groups = {name, self.shown(name)}, {name}, frozenset[str]()
        for uid in _user_ids(name):
            owner = self._owner(uid)
            users = {self.directory.name(owner) or str(owner), *(
                one for one in self.directory.names(owner)
                if _is_name(one) and Question("number", one) in self._named_in_rules)}
            names = {with_user(name, user) for user in users}
            if name.startswith(f"{Kind.USER}:"):
                groups = self._groups(owner)
            if owner != uid:            # a subordinate user id, whose owner became known later
                numbers.add(theirs := with_user(name, str(owner)))
                terms = self._by_hand.get(theirs, {})
                by_hand += [Rule("", term, *given) for term, given in terms.items()]
        rules = self._index.holding(names, groups, numbers)
        return sorted([*by_hand, *rules], key=lambda one: ORDER[one.term])

    def _groups(self, uid: int) -> frozenset[str]:
        """The groups of a user, as rules name them."""
        return frozenset(name for number in self.directory.last(Question("groups", uid)) or ()
                         for name in self._group_names.get(number, ()))

    def _note_group(self, question: Question) -> set[int | None]:
        """Notes the number of a group in a rule. Returns numbers that got or lost the name."""
        name, before = question.key, self._group_numbers.get(question.key)
        now = int(name) if DIGITS.fullmatch(name) else self.directory.last(question)
        if now == before or question not in self._named_in_rules:
            return set()
        self._group_numbers[name] = now
        self._group_names.get(before, set()).discard(name)
        self._group_names.setdefault(now, set()).add(name)
        return {now, before}

    def _join(self, client: Client) -> dict[str, TenantTerms]:
        """Adds a client. Returns the terms of its tenants that its scheduler does not have."""
        for question in self._of_user(user_of(str(client.peer.tenants[0]))):
            self.directory.ask(question)
        for one in client.peer.tenants:
            name, by_id = str(one), f"{Kind.CONTAINER}:{one.container}"
            if one.kind is Kind.CONTAINER and by_id in self._by_hand:   # given before it had a name
                self._by_hand[name] = self._by_hand.pop(by_id) | self._by_hand.get(name, {})
                self._keep()
            self._clients.setdefault(name, {})[client.id] = client
            client.rename(self._pods.get(name) or client.pod)
            self._ended.pop(name, None)
            if name not in self._owners:
                self._note_owner(name)
        names = map(str, client.peer.tenants)
        return {name: self.terms(name) for name in names if self._note_sent(client.gpu, name)}

    def _leaves(self, client: Client) -> None:
        for name in map(str, client.peer.tenants):
            of_it = self._clients.get(name, {})
            of_it.pop(client.id, None)
            if of_it or name not in self._clients:
                continue
            del self._clients[name]
            if any(name in sent for sent in self._sent.values()):
                self._ended[name] = None
            else:
                self._owners.pop(name, None)
        while len(self._ended) > ENDED_KEPT:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self._owners.pop(oldest, None)
            for gpu, sent in self._sent.items():
                if sent.pop(oldest, None) is not None:
                    gpu.tell(TenantChanged(oldest, TenantTerms()))

    def _send_all(self, names: Iterable[str]) -> None:
        for name in names:
            self._note_owner(name)
            gpus = {client.gpu for client in self._clients.get(name, {}).values()}
            for gpu, sent in self._sent.items():
                if (gpu in gpus or name in sent) and self._note_sent(gpu, name):
                    gpu.tell(TenantChanged(name, self.terms(name)))

    def _note_owner(self, name: str) -> None:
        for uid in _user_ids(name):
            self._owners[name] = self._owner(uid)

    def _note_sent(self, gpu: GPU, name: str) -> bool:
        """Records that a GPU's scheduler gets a tenant's terms. False: sent already."""
        sent, terms = self._sent[gpu], self.terms(name)
        if sent.get(name, TenantTerms()) == terms:
            return False
        sent[name] = terms
        if terms == TenantTerms():
            del sent[name]
        return True

    def view(self, name: str) -> TenantView:
        clients = tuple(self._clients.get(name, {}).values())
        figures = [client.memory for client in clients]
        others = {str(one): None for client in clients for one in client.peer.tenants}
        return TenantView(
            self.shown(name),
            len({client.peer.pid or -client.id for client in clients}),
            sum(memory.allocated for memory in figures),
            sum(memory.resident for memory in figures),
            sum(memory.pinned for memory in figures),
            sum(client.held for client in clients),
            tuple(self.shown(one) for one in others if one != name),
            tuple(self._rules_of(name)))

    def _named(self, name: str) -> str:
        """Returns the internal name of a tenant. Raises InvalidArgs."""
        try:
            known = tenant(name)
        except ValueError as wrong:
            raise InvalidArgs(f"{name!r} is no tenant", str(wrong)) from None
        pods = {self.shown(one): one for one in self._pods}
        return pods.get(known) or self._with_number(known)

    def _with_number(self, name: str) -> str:
        """The name of a tenant or pattern with its user's number, if that is known."""
        user = user_of(name)
        found = self.directory.number(user) if user is not None and _is_name(user) else None
        return name if found is None else with_user(name, str(found))

    def shown(self, name: str) -> str:
        """Returns the displayed name: pod:NAMESPACE/NAME, and users by name, as far as known."""
        if name in self._pods:
            return f"{Kind.POD}:{self._pods[name]}"
        for uid in _user_ids(name):
            if (known := self.directory.name(uid)) is not None:
                return with_user(name, known)
        return name


def _user_ids(name: str) -> tuple[int, ...]:
    """The number of the user in a tenant's name, if there is one."""
    user = user_of(name)
    return (int(user),) if user is not None and DIGITS.fullmatch(user) else ()


def _is_name(user: str | None) -> bool:
    return user is not None and not DIGITS.fullmatch(user)


def _of_range(uid: int) -> list[Question]:
    """The question about a subordinate user id: the number of the user that has the range."""
    lender = subordinate.lender(uid)
    return [Question("number", lender)] if isinstance(lender, str) and _is_name(lender) else []


def _question_of(pattern: str) -> Question | None:
    """The question about a rule's user or group; None: its pattern names neither."""
    word, name = named_in(pattern)
    return Question("group" if word == GROUP else "number", name) if word else None


def _checked(name: str, terms: Mapping[str, object]) -> dict[str, int]:
    """Returns the terms if all are known and in range. Raises InvalidArgs."""
    known = ", ".join(TERMS)
    if not terms:
        raise InvalidArgs(f"no term of {name} is given", f"there are {known}")
    found: dict[str, int] = {}
    for term, value in terms.items():
        if term not in TERMS:
            raise InvalidArgs(f"a tenant has no term {term!r}", f"there are {known}")
        if type(value) is not int or not 0 <= value <= TERMS[term].unit.most:
            raise InvalidArgs(
                f"the {term} of {name} cannot be {value!r}",
                f"give {TERMS[term].unit.allowed}, or 0 to take back what was set")
        found[term] = value
    return found
