# SPDX-License-Identifier: Apache-2.0
"""The configuration's rules, which set terms of tenants, in sections [tenant PATTERN].

In a pattern, * stands for any characters except a slash, and ? for one: owners of units choose the
text after a slash. A user or group of digits alone is a number, also if one is called so. For each
term a rule that names the tenant is in force, else one for a group of its user, else the rule with
most characters besides wildcards; of equals, the last in the files.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from nvshared import quantity
from nvshared.errors import ConfigError
from nvshared.machine import host, users
from nvshared.machine.tenant import Kind
from nvshared.names import TENANT_KINDS
from nvshared.quantity import limit
from nvshared.terms import TERMS, UNLIMITED

SECTION = "tenant"
GROUP = "group"
KINDS = frozenset(map(str, Kind))
WILDCARDS = re.compile(r"[*?]")
LONGEST = 512                           # characters after the kind: a user's name, a unit's of 255
DIGITS = re.compile(r"[0-9]+")          # of a number of a user or group, whatever users are called


def _host_memory(text: str) -> int:
    if not text.endswith("%"):
        return limit(text)
    if found := quantity.amount(text).of(host.total()):
        return found
    raise ValueError("give more than 0%")


# By term, the parser of the value in a file. Only terms with a word for none can be taken back.
PARSERS: Mapping[str, Callable[[str], int]] = {
    name: term.parser(term.default, _host_memory if name == "host-memory-limit" else None)
    if term.none else term.unit.parse for name, term in TERMS.items()}


class Rule(NamedTuple):
    pattern: str
    term: str                           # a key of TERMS
    value: int                          # for memory limits, 0 is no limit
    place: str                          # FILE:LINE; of a tenant's own term: of TERM_SOURCES, or ""

    @property
    def source(self) -> str:
        return f"from {self.place}" if self.pattern else f"set by {self.place or 'hand'}"


def tenant(text: str) -> str:
    """The normalised name of a tenant. All digits are a user's number. Raises ValueError."""
    kind, _, name = text.partition(":")
    if kind == GROUP:
        raise ValueError(f"a group has rules: [{SECTION} {GROUP}:NAME] in nvshared.conf")
    if WILDCARDS.search(text):
        raise ValueError(f"a pattern is for rules: [{SECTION} PATTERN] in nvshared.conf")
    return _of_a_kind(kind, name)


def _of_a_kind(kind: str, name: str) -> str:
    if kind not in KINDS or not name or not name.isprintable() or len(name) > LONGEST:
        raise ValueError(f"give {TENANT_KINDS}")
    user = user_of(text := f"{kind}:{name}")
    if user is None or not DIGITS.fullmatch(user):
        return text
    if int(user) > users.LAST:
        raise ValueError(f"give a user's number of at most {users.LAST}, or the user's name")
    return with_user(text, str(int(user)))      # without zeros in front


def user_of(name: str) -> str | None:
    """The user in a tenant's name or pattern: user:USER, unit:USER/NAME, container:USER/ID."""
    kind, _, rest = name.partition(":")
    user, slash, _ = rest.partition("/")
    if kind == Kind.USER:
        return rest
    return user if slash and kind in (Kind.UNIT, Kind.CONTAINER) else None


def with_user(name: str, user: str) -> str:
    """The name or pattern of a tenant, which must have a user, with another user."""
    start = name.index(":") + 1
    return name[:start] + user + name[start + len(user_of(name) or ""):]


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
        hint = str(wrong).replace(TENANT_KINDS, f"{GROUP}:NAME or a pattern of {TENANT_KINDS}")
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
    index = RuleIndex(rules)
    for pattern in dict.fromkeys(rule.pattern for rule in rules):
        terms: dict[str, Rule] = {}
        for rule in index.holding((pattern,)):
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


def named_in(pattern: str) -> tuple[str, str]:
    """The user or group in a pattern: ("user" or "group", its name or number); "", "": none."""
    kind, _, name = pattern.partition(":")
    user = name if kind == GROUP else user_of(pattern)
    if user is None or WILDCARDS.search(user):
        return "", ""
    return GROUP if kind == GROUP else str(Kind.USER), user


def doubts(rules: Iterable[Rule]) -> Iterator[str]:
    """Sentences about users and groups in rules that this machine does not have. May block."""
    first: dict[str, Rule] = {}
    for rule in rules:
        first.setdefault(rule.pattern, rule)
    for pattern, rule in first.items():
        word, name = named_in(pattern)
        if word:
            found = users.group(name) if word == GROUP else users.number(name)
            if words := doubt(word, name, found):
                yield f"{rule.place}: {words}"


def doubt(word: str, name: str, found: int | None) -> str:
    """A warning about the name of a user or group in a rule; "": none. `found`: the number of the
    user or group with that name."""
    if DIGITS.fullmatch(name):
        return "" if found in (None, int(name)) else (
            f"{name} is the {word} with this number, not the {word} that is called so: that is "
            f"{word}:{found}")
    if found is not None:
        return ""
    return f"there is no {word} {name!r} now; the rule holds once there is"


def is_tenant(pattern: str) -> bool:
    return not WILDCARDS.search(pattern) and not pattern.startswith(f"{GROUP}:")


class RuleIndex:
    """Rules by their patterns: a tenant's are found without a look at each of hundreds."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._by_pattern: dict[str, list[tuple[int, Rule]]] = {}    # rules with their numbers
        self._with_wildcards: dict[str, list[str]] = {}     # patterns by their _begin()
        for number, rule in enumerate(rules):
            if rule.pattern not in self._by_pattern and WILDCARDS.search(rule.pattern):
                self._with_wildcards.setdefault(_begin(rule.pattern), []).append(rule.pattern)
            self._by_pattern.setdefault(rule.pattern, []).append((number, rule))

    def holding(self, names: Collection[str], groups: Iterable[str] = (),
                numbers: Collection[str] = ()) -> list[Rule]:
        """The rules that match a tenant with these names and its user's groups, most specific
        first.

        `numbers`: its names with numbers of users, in which no wildcard stands for digits."""
        ranks = dict.fromkeys((*names, *numbers), (2, 0))       # by pattern
        for group in groups:
            ranks.setdefault(f"{GROUP}:{group}", (1, 0))
        for name in {*names, *numbers}:
            kind, begin = name.partition(":")[0], name.partition("/")[0]
            for pattern in {*self._with_wildcards.get(kind, ()),
                            *self._with_wildcards.get(begin, ())} - ranks.keys():
                may_match = name in names or DIGITS.fullmatch(user_of(pattern) or "")
                if may_match and _expression(pattern).fullmatch(name):
                    ranks[pattern] = (0, len(WILDCARDS.sub("", pattern)))
        found = [(rank, *one) for pattern, rank in ranks.items()
                 for one in self._by_pattern.get(pattern, ())]
        return [rule for *_, rule in sorted(found, key=lambda one: one[:2], reverse=True)]


def _begin(pattern: str) -> str:
    """What the names begin with that a pattern may match: all before the slash, or the kind."""
    begin, slash, _ = pattern.partition("/")
    return begin if slash and not WILDCARDS.search(begin) else pattern.partition(":")[0]


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", "[^/]*").replace(r"\?", "[^/]"))
