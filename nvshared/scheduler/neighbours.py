# SPDX-License-Identifier: Apache-2.0
"""The memory that one card has lent, and the cards of which its clients may borrow; see loans.py.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class Loan(NamedTuple):
    """A loan to one client; bytes."""

    held: int = 0                       # as the client last reported
    charged: int = 0                    # held, or allowed by orders under way
    ordered: int = 0                    # allowed once all orders are carried out


@dataclass(eq=False, slots=True)
class Neighbour:
    """One card, as its neighbours see it; bytes. All schedulers of a daemon share these."""

    uuid: str = ""
    others: "tuple[Neighbour, ...]" = ()
    reachable: "tuple[Neighbour, ...]" = ()     # cards of which its clients may borrow
    lendable: int | None = 0            # as of the card's last event. None: not known yet
    loans: dict[int, Loan] = field(default_factory=dict)    # by client
    exclusive: bool = False             # the card lends only while all its processes are clients
    alone: bool | None = None           # whether all are clients, by NVML; None: not known yet

    def note(self, client: int, loan: Loan) -> None:
        """Replaces the loan to a client."""
        if loan == Loan():
            self.loans.pop(client, None)
        else:
            self.loans[client] = loan

    @property
    def held(self) -> int:
        """Bytes of the card that borrowers hold, as they last reported."""
        return sum(loan.held for loan in self.loans.values())

    @property
    def lent(self) -> int:
        """Bytes of the card's room that clients of other cards hold, or may by orders."""
        return sum(loan.charged for loan in self.loans.values())

    @property
    def returning(self) -> int:
        """Lent bytes that orders under way will return."""
        return sum(loan.charged - loan.ordered for loan in self.loans.values())

    @property
    def available(self) -> int:
        """Bytes that can be lent in addition."""
        return max(0, (self.lendable or 0) - self.lent)

    @property
    def excess(self) -> int:
        """Lent bytes beyond the lendable ones that no order under way returns."""
        return 0 if self.lendable is None else max(0, self.lent - self.returning - self.lendable)

    def lender(self) -> "Neighbour | None":
        """The reachable card with most available bytes. None: no card can lend any."""
        able = [one for one in self.reachable if one.available]
        return max(able, key=lambda one: one.available, default=None)
