# SPDX-License-Identifier: Apache-2.0
"""The terms of tenants: set over D-Bus ("by hand") or, with less precedence, by a rule in a file.

A pod's terms are stored under its UID, as a later pod may have its name. Schedulers keep ENDED_KEPT
tenants without programs, lest a program's restart clear the GPU time that its tenant owes."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from nvshared.errors import InvalidArgs
from nvshared.lanes import Run, here
from nvshared.machine import tenant as kernel
from nvshared.machine.tenant import Kind
from nvshared.names import TERM_SOURCES
from nvshared.scheduler.events import UNLIMITED, Priority, TenantChanged, TenantTerms
from nvshared.settings.rules import GROUP, TERMS, Rule, holding, is_tenant, tenant
from nvshared.settings.state import KeptTerms, TenantsFile, saved
from nvshared.sharing.gpu import GPU, Client, Pod
from nvshared.signal import Signal
from nvshared.units import SECOND

ORDER = {term: number for number, term in enumerate(TERMS)}
# us for the lookup of a user's groups. After a longer one no rule for a group applies to the user.
PATIENCE = SECOND
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
    def __init__(self, store: TenantsFile | None = None, run: Run = here) -> None:
        """`store` keeps the terms set by hand. `run`: Lanes.run, for the group database."""
        self._run = run
        self.renamed: Signal[Client] = Signal("renamed")    # its displayed name has changed
        self._pods: dict[str, Pod] = {}         # by tenant, pod:UID
        self._tenants: dict[str, str] = {}      # pod:UID by displayed name, pod:NAMESPACE/NAME
        self._store = store
        self._by_hand: KeptTerms = {} if store is None else store.load()
        self._rules: tuple[Rule, ...] = ()
        self._clients: dict[str, dict[int, Client]] = {}    # by tenant, then by id
        self._sent: dict[GPU, dict[str, TenantTerms]] = {}
        self._ended: dict[str, None] = {}   # tenants without programs, oldest first
        # by user; read only if rules name groups
        self._groups: dict[str, frozenset[str]] = {}

    def follow(self, gpu: GPU) -> None:
        self._sent[gpu] = {}
        gpu.terms_of = self._join
        gpu.client_removed.connect(self._leaves)

    def use(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._groups.clear()
        names = (*self._clients, *self._ended)
        for name in (*names, *self._by_hand):
            self.read_groups(name, lambda: None)
        self._send_all(names)

    @property
    def has_group_rules(self) -> bool:
        """Whether any rule is for a group, so that terms depend on the groups of a user."""
        return any(one.pattern.startswith(f"{GROUP}:") for one in self._rules)

    def read_groups(self, name: str, then: Callable[[], None]) -> None:
        """Reads the groups of a user if the rules need them and they are unknown; calls `then`."""
        kind, _, user = name.partition(":")
        if kind != Kind.USER or not self.has_group_rules or (
                name in self._groups and name in self._clients):
            then()
            return

        def store(groups: frozenset[str] | None) -> None:
            if groups is not None:
                known = {*self._clients, *self._by_hand, *self._ended}
                self._groups = {one: its for one, its in self._groups.items() if one in known}
                self._groups[name] = groups
                self._send_all([name])
            then()

        self._run(GROUP, partial(kernel.groups, user), store, PATIENCE)

    def name(self, pods: Mapping[str, Pod]) -> None:
        """Replaces the known pods of this machine; `pods` is keyed by the name of the tenant."""
        changed = sorted(name for name in self._pods.keys() | pods.keys()
                         if self._pods.get(name) != pods.get(name))
        self._pods = dict(pods)
        self._tenants = {self._shown(name): name for name in pods}
        for name in changed:
            for client in self._clients.get(name, {}).values():
                client.pod = self._pods.get(name)
                self.renamed.emit(client)
        self._send_all(changed)

    def set(self, name: str, terms: Mapping[str, object]) -> Future[None]:
        """Sets a tenant's terms, by name; 0 removes a term. "source": a name of TERM_SOURCES.

        Raises InvalidArgs. The future is done when the terms are on the disk; it raises NotKept."""
        asked = dict(terms)
        source = str(asked.pop("source", ""))
        if source not in ("", *TERM_SOURCES):
            raise InvalidArgs(
                f"the source of the terms of {name} cannot be {source!r}",
                f"there are {', '.join(TERM_SOURCES)}")
        new = _checked(name, asked)
        name = self._named(name)
        if name.startswith(f"{Kind.POD}:") and "/" in name:
            raise InvalidArgs(
                f"no {name} is known here",
                "nvshare-kubelet tells the names of this node's pods; or give pod:UID")
        self._check_requests(name, new)
        given = {term: (value, source) for term, value in new.items()}
        changed = self._by_hand.get(name, {}) | given
        self._by_hand[name] = {term: one for term, one in changed.items() if one[0]}
        if not self._by_hand[name]:
            del self._by_hand[name]
        self._send_all([name])
        self.read_groups(name, lambda: None)
        return saved() if self._store is None else self._store.save(self._by_hand)

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
                        f"the compute-request of {self._shown(one)}, {request.value} % "
                        f"{request.source}, contradicts the compute-limit of "
                        f"{self._shown(outer)}, {limit.value} % {limit.source}",
                        "lower the one or raise the other")
        if not (percent := new.get("compute-request")):
            return
        ruled = [one.pattern for one in self._rules if is_tenant(one.pattern)]
        names = {*self._clients, *self._by_hand, *(self._tenants.get(one, one) for one in ruled)}
        others = {other: self.terms(other).compute_request for other in sorted(names - {name})}
        if sum(others.values()) + percent > UNLIMITED:
            have = ", ".join(
                f"{self._shown(other)} {has} %" for other, has in others.items() if has)
            raise InvalidArgs(
                f"the compute-request of {self._shown(name)} cannot be {percent} %",
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
            read = {"priority": Priority, "suspended": bool}.get(one.term, int)
            settings.setdefault(one.term.replace("-", "_"), read(one.value))
        if settings and self._pods.get(name) is not None:
            settings["shown"] = self._shown(name)
        return TenantTerms(**settings)

    def tenants(self) -> list[TenantView]:
        """Returns tenants that have programs or terms set by hand, by name."""
        return sorted(map(self._view, self._clients | self._by_hand), key=lambda one: one.name)

    def tenant(self, name: str) -> TenantView:
        """Returns a tenant, with or without programs. Raises InvalidArgs for an invalid name."""
        return self._view(self._named(name))

    def _rules_of(self, name: str) -> list[Rule]:
        """Returns all settings of a tenant's terms; of each term the setting in force is first."""
        by_hand = [Rule("", term, *given) for term, given in self._by_hand.get(name, {}).items()]
        names = {name, self._shown(name)}
        rules = holding(self._rules, names, self._groups.get(name, frozenset()))
        return sorted([*by_hand, *rules], key=lambda one: ORDER[one.term])

    def _join(self, client: Client) -> dict[str, TenantTerms]:
        """Adds a client. Returns the terms of its tenants that its scheduler does not have."""
        if client.peer.groups is not None:
            self._groups[str(client.peer.tenants[0])] = client.peer.groups
        for name in map(str, client.peer.tenants):
            self._clients.setdefault(name, {})[client.id] = client
            if name not in self._groups:
                self.read_groups(name, lambda: None)
            client.pod = self._pods.get(name) or client.pod
            self._ended.pop(name, None)
        names = map(str, client.peer.tenants)
        return {name: self.terms(name) for name in names if self._note_sent(client.gpu, name)}

    def _leaves(self, client: Client) -> None:
        for name in map(str, client.peer.tenants):
            of_it = self._clients.get(name, {})
            of_it.pop(client.id, None)
            if of_it or name not in self._clients:
                continue
            del self._clients[name]
            self._groups.pop(name, None)
            if any(name in sent for sent in self._sent.values()):
                self._ended[name] = None
        while len(self._ended) > ENDED_KEPT:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            for gpu, sent in self._sent.items():
                if sent.pop(oldest, None) is not None:
                    gpu.tell(TenantChanged(oldest, TenantTerms()))

    def _send_all(self, names: Iterable[str]) -> None:
        for name in names:
            gpus = {client.gpu for client in self._clients.get(name, {}).values()}
            for gpu, sent in self._sent.items():
                if (gpu in gpus or name in sent) and self._note_sent(gpu, name):
                    gpu.tell(TenantChanged(name, self.terms(name)))

    def _note_sent(self, gpu: GPU, name: str) -> bool:
        """Records that a GPU's scheduler gets a tenant's terms. False: sent already."""
        sent, terms = self._sent[gpu], self.terms(name)
        if sent.get(name, TenantTerms()) == terms:
            return False
        sent[name] = terms
        if terms == TenantTerms():
            del sent[name]
        return True

    def _view(self, name: str) -> TenantView:
        clients = tuple(self._clients.get(name, {}).values())
        figures = [client.memory for client in clients]
        others = {str(one): None for client in clients for one in client.peer.tenants}
        return TenantView(
            self._shown(name),
            len({client.peer.pid or -client.id for client in clients}),
            sum(memory.allocated for memory in figures),
            sum(memory.resident for memory in figures),
            sum(memory.pinned for memory in figures),
            sum(client.held for client in clients),
            tuple(self._shown(one) for one in others if one != name),
            tuple(self._rules_of(name)))

    def _named(self, name: str) -> str:
        """Returns the internal name of a tenant. Raises InvalidArgs."""
        try:
            known = tenant(name)
        except ValueError as wrong:
            raise InvalidArgs(f"{name!r} is no tenant", str(wrong)) from None
        return self._tenants.get(known, known)

    def _shown(self, name: str) -> str:
        """Returns the displayed name: pod:NAMESPACE/NAME for a known pod, else the tenant."""
        return f"{Kind.POD}:{self._pods[name]}" if name in self._pods else name


def _checked(name: str, terms: Mapping[str, object]) -> dict[str, int]:
    """Returns the terms if all are known and in range. Raises InvalidArgs."""
    known = ", ".join(TERMS)
    if not terms:
        raise InvalidArgs(f"no term of {name} is given", f"there are {known}")
    found: dict[str, int] = {}
    for term, value in terms.items():
        if term not in TERMS:
            raise InvalidArgs(f"a tenant has no term {term!r}", f"there are {known}")
        if type(value) is not int or not 0 <= value <= TERMS[term].most:
            raise InvalidArgs(
                f"the {term} of {name} cannot be {value!r}",
                f"give {TERMS[term].right}, or 0 to take back what was set")
        found[term] = value
    return found
