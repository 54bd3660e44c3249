# SPDX-License-Identifier: Apache-2.0
"""The terms: limits, weights, priorities and modes that are set for a client or a tenant.

A term is one row of TERMS. Rules, D-Bus, the files of state, nvsharectl with its completion and man
page, the dashboard and pods' annotations follow from the row. The scheduler reads the value from
a field of Terms (terms of clients and tenants) or TenantTerms in nvshared/scheduler/events.py.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from nvshared import quantity
from nvshared.errors import InvalidArgs
from nvshared.names import PRIORITIES
from nvshared.quantity import HEAVIEST, LARGEST, OFF
from nvshared.units import SECOND

UNLIMITED = 100                         # percent, of compute time
DEFAULT_WEIGHT = 100


class Unit(NamedTuple):
    """The unit of a term's integer."""

    metavar: str                        # in --help and man pages
    most: int                           # the largest value; the smallest that can be set is 1
    allowed: str                        # the allowed values, in words
    parse: Callable[[str], int]         # raises ValueError with a message that names valid values
    show: Callable[[int], str] = str
    short: Callable[[int], str] = str   # for the column LIMITS
    plain: Callable[[int], object] = int        # for --json


_NAMES = {value: name for name, value in PRIORITIES.items()}
SIZE = Unit("SIZE", LARGEST, "a number of bytes", quantity.limit, quantity.sized, quantity.brief)
SIZE_OR_OFF = SIZE._replace(
    parse=quantity.limit_or_off, show=lambda size: "off" if size == OFF else quantity.sized(size),
    short=lambda size: " off" if size == OFF else quantity.brief(size))
PERCENT = Unit("PERCENT", UNLIMITED, f"1 to {UNLIMITED} percent", quantity.share, "{} %".format,
               "{}%".format)
WEIGHT = Unit("N", HEAVIEST, f"1 to {HEAVIEST}", quantity.weight)
PRIORITY = Unit(
    "|".join(PRIORITIES), max(_NAMES), ", ".join(f"{n} ({name})" for n, name in _NAMES.items()),
    quantity.priority, *[lambda value: _NAMES.get(value, "?")] * 3)
TIME = Unit("TIME", 86_400 * SECOND, "1 to 86400000000 microseconds", quantity.quantum,
            lambda usec: quantity.timed(usec) if usec else "none", quantity.timed)
SWITCH = Unit("on|off", 1, "1", lambda text: int(quantity.switch(text)),
              lambda on: "yes" if on else "no", lambda _on: "", bool)


class Term(NamedTuple):
    """A term. Over D-Bus, 0 takes back what was set for a tenant."""

    name: str                           # with underscores, a field of the scheduler's Terms
    unit: Unit
    default: int
    help: str                           # for --help and nvshared.conf(5)
    of_tenant: str                      # format string of a sentence, without the full stop
    # None: a client has no such term; "": its environment alone sets the term.
    of_client: str | None = None
    none: str = ""                      # the default in a table; "": it is shown as other values
    prefix: str = ""                    # before the value in the column LIMITS
    words: Mapping[int, str] = {}       # special values, as {value} in the sentences
    phrase: str = "{}"                  # format of the other values in the sentences
    option: str = ""                    # of nvsharectl limit
    annotation: str = ""                # of pods, after nvshare.com/; "": no annotation sets it
    # Of clients: the stricter of two values, and a sentence on an administrator's value.
    stricter: Callable[[int, int], int] = min
    bound: str = ""

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def label(self) -> str:
        """The name in sentences."""
        return self.name.replace("-", " ")

    def admits(self, value: object) -> bool:
        """Whether a client's term can have this value."""
        return isinstance(value, int) and min(1, self.default) <= value <= self.unit.most

    def check(self, value: object) -> None:
        """Raises InvalidArgs unless a client's term can have this value."""
        if not self.admits(value):
            raise InvalidArgs(f"the {self.label} cannot be {value!r}", f"give {self.unit.allowed}")

    def value(self, value: int) -> str:
        """A value, for the table of terms."""
        return self.none if self.none and value == self.default else self.unit.show(value)

    def in_words(self, value: int) -> str:
        """A value, for a sentence."""
        return self.words.get(value) or self.phrase.format(self.unit.show(value))

    def parser(self, none: int, parse: Callable[[str], int] | None = None) -> Callable[[str], int]:
        """A parser of values and the word "none", which is parsed as `none`."""
        return quantity.or_word("none", none, parse or self.unit.parse, ", or none")


TERMS: Mapping[str, Term] = {one.name: one for one in (
    Term("memory-limit", SIZE, 0, "the most GPU memory, such as 20GiB",
         "The programs of {name} together may allocate {value} on each GPU",
         "{name} may allocate {value}{on}", "no limit", words={0: "any amount"},
         option="--memory", annotation="gpu-memory-limit",
         stricter=lambda one, other: min(filter(None, (one, other)), default=0),
         bound="the administrator has limited the program to {}"),
    Term("host-memory-limit", SIZE, 0, "the most host memory that evictable memory may need, "
         "summed over all GPUs",
         "The programs of {name} together may need {value} of host memory for eviction",
         none="no limit", prefix="h", words={0: "any amount"}, option="--host-memory",
         annotation="host-memory-limit"),
    Term("disk-limit", SIZE, 0, "the most swapped memory on the disk, summed over all GPUs",
         "The programs of {name} together may have {value} of swapped memory on the disk",
         none="no limit", prefix="d", words={0: "any amount"}, option="--disk"),
    Term("neighbour-limit", SIZE_OR_OFF, 0, "the most memory of other GPUs that may hold swapped "
         "memory of each GPU; off: no memory",
         "The programs of {name} together may have {value} of swapped memory on other GPUs",
         none="no limit", prefix="n", words={0: "any amount", OFF: "0 bytes"},
         option="--neighbour"),
    Term("compute-limit", PERCENT, UNLIMITED, "the largest share of the GPU's time, 1 to 100",
         "The programs of {name} together may use each GPU {value}", "{name} may use {gpu} {value}",
         "no limit", words={UNLIMITED: "all of the time that other programs leave"},
         phrase="at most {} of the time", option="--compute", annotation="gpu-core-limit",
         bound="the administrator has limited the program to {} of the time"),
    Term("compute-request", PERCENT, 0, "the share of the GPU's time, 1 to 100, that the tenant "
         "gets whenever its programs have work, regardless of weights",
         "The programs of {name} together get {value}", none="none", prefix="r",
         words={0: "the share of the time that their weight gives them"},
         phrase="{} of the time of each GPU, whenever they want it", option="--request",
         annotation="gpu-core-request"),
    Term("weight", WEIGHT, DEFAULT_WEIGHT, "the share of the time while others want the GPU, in "
         "relation to others' weights, 1 to 1000; usual is 100",
         "The weight of {name} is {value}", "The weight of {name}{on} is {value}", prefix="w",
         annotation="weight",
         bound="without that, the weight of your program is {} at most"),
    Term("priority", PRIORITY, PRIORITIES["normal"], "which tenants go first where programs take "
         "turns; usual is normal", "The priority of {name} is {value}", "", annotation="priority"),
    Term("deadline", TIME, 0, "how soon after a program begins to wait its turn is to begin, such "
         "as 50ms, where the policy is deadline",
         "The turns of the programs of {name} are to begin {value}",
         "The turns of {name}{on} are to begin {value}", "none", "in",
         words={0: "without a deadline"}, phrase="within {}", option="--deadline",
         stricter=lambda one, other: max(one, other) if one and other else 0,
         bound="only an administrator gives a program a deadline or a shorter one; it has {} now"),
    Term("suspended", SWITCH, 0, "whether the programs leave the GPUs, with their memory, and wait "
         "until that ends", "The programs of {name} are {value}", "{name} is {value}{on}",
         prefix="suspended", words={0: "no longer suspended", 1: "suspended"}, stricter=max,
         bound="the administrator has suspended the program"),
    Term("save-at-shutdown", SWITCH, 0, "whether the programs are saved on the disk when the "
         "machine shuts down, and restored when it starts", "The programs of {name} are {value}",
         prefix="saved",
         words={0: "not saved at a shutdown", 1: "saved when the machine shuts down"}),
)}
CLIENT_TERMS = tuple(term for term in TERMS.values() if term.of_client is not None)
