# SPDX-License-Identifier: Apache-2.0
"""The configuration's rules, which set terms of tenants, in sections [tenant PATTERN].

In a pattern, * stands for any characters except a slash, and ? for one: owners of units choose the
text after a slash. For each term a rule that names the tenant is in force, else one for a group of
its user, else the rule with most characters besides wildcards; of equals, the last in the files.

A new term is one line of TERMS, its usual value in nvshared/names.py, the field of TenantTerms in
nvshared/scheduler/events.py, its words in nvshared/tui/tables.py and an option in cli/settings.py.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

from nvshared import quantity
from nvshared.errors import ConfigError
from nvshared.machine import host
from nvshared.machine.tenant import Kind
from nvshared.names import PRIORITIES, TENANT_KINDS, user
from nvshared.quantity import HEAVIEST, LARGEST, limit, or_word
from nvshared.scheduler.events import UNLIMITED

SECTION = "tenant"
GROUP = "group"
KINDS = frozenset(map(str, Kind))
WILDCARDS = re.compile(r"[*?]")
LONGEST = 256                           # characters of a tenant's name


class Term(NamedTuple):
    """A limit, weight, … of a tenant: an integer from 1 to `most`, named as in TenantTerms."""

    most: int
    right: str                          # the allowed values, in words
    parse: Callable[[str], int]         # parses the value in a file; raises ValueError


def _host_memory(text: str) -> int:
    if not text.endswith("%"):
        return limit(text)
    if found := quantity.amount(text).of(host.total()):
        return found
    raise ValueError("give more than 0%")


_no_limit = partial(or_word, "none", 0, hint=", or none")
_percent = f"1 to {UNLIMITED} percent"
TERMS: Mapping[str, Term] = {
    "memory-limit": Term(LARGEST, "a number of bytes", _no_limit(limit)),
    "host-memory-limit": Term(LARGEST, "a number of bytes", _no_limit(_host_memory)),
    "neighbour-limit": Term(LARGEST, "a number of bytes", _no_limit(quantity.limit_or_off)),
    "compute-limit": Term(
        UNLIMITED, _percent, or_word("none", UNLIMITED, quantity.share, ", or none")),
    "compute-request": Term(UNLIMITED, _percent, _no_limit(quantity.share)),
    "priority": Term(
        max(PRIORITIES.values()),
        ", ".join(f"{value} ({name})" for name, value in PRIORITIES.items()), quantity.priority),
    "weight": Term(HEAVIEST, f"1 to {HEAVIEST}", quantity.weight),
    "suspended": Term(1, "1", lambda text: int(quantity.switch(text))),
    "disk-limit": Term(LARGEST, "a number of bytes", _no_limit(limit)),
}


# Terms of earlier versions, and why a file that still has one says nothing to nvshared.
REMOVED: Mapping[str, str] = {
    "unshared": "programs without libnvshare.so are never suspended",
}


class Rule(NamedTuple):
    pattern: str
    term: str                           # a key of TERMS
    value: int                          # for memory limits, 0 is no limit
    place: str                          # FILE:LINE; of a tenant's own term: of TERM_SOURCES, or ""

    @property
    def source(self) -> str:
        return f"from {self.place}" if self.pattern else f"set by {self.place or 'hand'}"


def tenant(text: str) -> str:
    """The normalised name of a tenant: a user id becomes the user's name. Raises ValueError."""
    kind, _, name = text.partition(":")
    if kind == GROUP:
        raise ValueError(f"a group has rules: [{SECTION} {GROUP}:NAME] in nvshared.conf")
    if WILDCARDS.search(text):
        raise ValueError(f"a pattern is for rules: [{SECTION} PATTERN] in nvshared.conf")
    return _of_a_kind(kind, name)


def _of_a_kind(kind: str, name: str) -> str:
    if kind not in KINDS or not name or not name.isprintable() or len(name) > LONGEST:
        raise ValueError(f"give {TENANT_KINDS}")
    return f"{kind}:{user(int(name)) if kind == Kind.USER and name.isdecimal() else name}"


def pattern(section: str, place: str) -> str:
    """The pattern of a section [tenant PATTERN]; "" for other sections. Raises ConfigError."""
    word, _, text = section.partition(" ")
    if word != SECTION:
        return ""
    kind, _, name = (text := text.strip()).partition(":")
    try:
        if kind != GROUP:
            return _of_a_kind(kind, name)
        if name and not WILDCARDS.search(name):
            return text
        raise ValueError(f"name one group, as in {GROUP}:staff")
    except ValueError as wrong:
        hint = str(wrong).replace("give ", f"give {GROUP}:NAME or a pattern of ")
        raise ConfigError(f"{place}: [{section}] cannot be for {text!r}", hint) from None


def contradictions(rules: Collection[Rule]) -> Iterator[ConfigError]:
    """Errors for terms that a section sets twice to different values, and for compute requests
    above the limit, or above 100% together."""
    by_term = sorted(
        ((rule.place.rpartition(":")[0], rule.pattern, rule.term), number, rule)
        for number, rule in enumerate(rules))
    for (key, _, first), (next_key, _, second) in pairwise(by_term):
        if key == next_key and first.value != second.value:
            yield ConfigError(f"{second.place}: {second.term} of [{SECTION} {second.pattern}] "
                              f"contradicts {first.place}", "leave one of them")
    yield from _requests(rules)


def _requests(rules: Collection[Rule]) -> Iterator[ConfigError]:
    named: dict[str, Rule] = {}
    for pattern in dict.fromkeys(rule.pattern for rule in rules):
        terms: dict[str, Rule] = {}
        for rule in holding(rules, (pattern,), ()):
            terms.setdefault(rule.term, rule)
        request, most = terms.get("compute-request"), terms.get("compute-limit")
        if request is not None and most is not None and request.value > most.value:
            yield ConfigError(
                f"{request.place}: {request.term} of [{SECTION} {pattern}] contradicts "
                f"{most.place}", f"{request.value} % are more than the limit of {most.value} %")
        if request is not None and request.pattern == pattern and is_tenant(pattern):
            named[pattern] = request
    whole = sum(rule.value for rule in named.values())
    if whole > UNLIMITED:
        *others, last = named.values()
        places = ", ".join(f"{rule.place} ({rule.value} %)" for rule in others)
        yield ConfigError(
            f"{last.place}: {last.term} of [{SECTION} {last.pattern}] cannot be {last.value} % "
            f"beside {places}", f"together that is {whole} % of the time")


def is_tenant(pattern: str) -> bool:
    return not WILDCARDS.search(pattern) and not pattern.startswith(f"{GROUP}:")


def holding(rules: Iterable[Rule], names: Collection[str], groups: Collection[str]) -> list[Rule]:
    """The rules that match a tenant with these names and its user's groups, most specific first."""
    found = []
    for number, rule in enumerate(rules):
        kind, _, name = rule.pattern.partition(":")
        if rule.pattern in names:
            found.append((2, 0, number, rule))
        elif kind == GROUP and name in groups:
            found.append((1, 0, number, rule))
        elif any(map(_expression(rule.pattern).fullmatch, names)):
            found.append((0, len(WILDCARDS.sub("", rule.pattern)), number, rule))
    return [rule for *_, rule in sorted(found, key=lambda one: one[:3], reverse=True)]


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", "[^/]*").replace(r"\?", "[^/]"))
