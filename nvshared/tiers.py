# SPDX-License-Identifier: Apache-2.0
"""The tiers: where swapped memory lies while it is not on its GPU.

A tier is one row of TIERS. The setting `tiers`, the property Tiers of clients on D-Bus, the columns
and sentences of nvsharectl and the dashboard, and the metrics follow from the row.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

# A metric: its name after nvshare_, its help text, and a function that returns its value, in bytes.
Gauge = tuple[str, str, Callable[[Any], int]]


class TierBudget(NamedTuple):
    """The memory that clients of a GPU may have in a tier; bytes."""

    size: int = 0                       # in all
    used: int = 0                       # taken, or promised by orders; above `size` after it shrank

    @property
    def free(self) -> int:
        return self.size - self.used


class Tier(NamedTuple):
    name: str                           # in the setting `tiers`
    of_client: Gauge                    # its bytes; the function takes scheduler.events.Memory
    # Metrics of GPUs: name and help text as above, and the field of TierBudget.
    of_budget: tuple[tuple[str, str, str], ...] = ()
    required: bool = False              # the setting `tiers` must have it
    column: str = ""                    # of programs in tables; "": no column
    place: str = ""                     # after "swapped, 3.0G of it"; "": the usual place
    slow: str = ""                      # after "loading from"; "": its loads are fast

    def of_card(self) -> list[Gauge]:
        """The metrics of GPUs; the functions take sharing.gpu.GPU."""
        def value(field: str, gpu: Any) -> int:
            found: int = getattr(gpu.snapshot().budgets.get(self.name, TierBudget()), field)
            return found

        return [(name, words, partial(value, field)) for name, words, field in self.of_budget]

    def held(self, memory: object) -> int:
        """The bytes of a client in this tier: swapped blocks, and copies of resident blocks."""
        return self.of_client[2](memory)


# In the order in which the library evicts blocks to them: libhook/src/tier/tiers.def.
TIERS = (
    Tier("neighbour",
         ("client_borrowed_bytes", "Memory of another GPU held for swapped memory",
          lambda memory: memory.borrowed),
         (("gpu_lent_bytes", "Memory lent to programs of other GPUs for swapped memory, taken or "
           "not", "used"),),
         column="BORROWED", place="to another GPU"),
    Tier("host",
         ("client_host_bytes", "Host memory held for swapped memory",
          lambda memory: memory.host - memory.borrowed),
         (("swap_budget_bytes", "Host memory that programs on the GPU may take for swapped memory",
           "size"),
          ("swap_used_bytes", "Part of the swap budget that is taken or promised", "used")),
         required=True),
    Tier("disk",
         ("client_disk_bytes", "Bytes on the disk: swapped memory, and copies of memory loaded "
          "again", lambda memory: memory.disk),
         (("disk_budget_bytes", "Bytes of the disk that programs on the GPU may take for swapped "
           "memory", "size"),
          ("disk_used_bytes", "Part of the disk budget that is taken, or will be by orders under "
           "way", "used")),
         column="ON DISK", place="to disk", slow="disk"),
)


def by_name(memory: object) -> dict[str, int]:
    """The bytes that a client has in each tier where it has any."""
    return {tier.name: held for tier in TIERS if (held := tier.held(memory)) > 0}
