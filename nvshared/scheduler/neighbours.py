# SPDX-License-Identifier: Apache-2.0
"""What one card has lent, and of which cards its clients may borrow; see loans.py."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Loan(NamedTuple):
    """To one client; bytes."""

    held: int = 0                       # it says that it holds
    charged: int = 0                    # or may hold, by orders under way
    ordered: int = 0                    # will be left when they are carried out


@dataclass(eq=False, slots=True)
class Neighbour:
    """One card, as its neighbours see it; bytes. All schedulers of a daemon share these."""

    uuid: str = ""
    others: "tuple[Neighbour, ...]" = ()
    reachable: "tuple[Neighbour, ...]" = ()     # of which its clients may borrow
    lendable: int | None = 0            # as of its last event. None: it is not known yet
    loans: dict[int, Loan] = field(default_factory=dict)    # by client
    exclusive: bool = False             # it lends only while all processes there are clients
    alone: bool | None = None           # whether they are, by NVML; None: not known yet

    def note(self, client: int, loan: Loan) -> None:
        """A client has this from now on."""
        if loan == Loan():
            self.loans.pop(client, None)
        else:
            self.loans[client] = loan

    @property
    def held(self) -> int:
        """On the card, by the borrowers' words."""
        return sum(loan.held for loan in self.loans.values())

    @property
    def lent(self) -> int:
        """Of the card's room, to clients of others."""
        return sum(loan.charged for loan in self.loans.values())

    @property
    def returning(self) -> int:
        """What of it is on its way back."""
        return sum(loan.charged - loan.ordered for loan in self.loans.values())

    @property
    def available(self) -> int:
        """What can be lent in addition."""
        return max(0, (self.lendable or 0) - self.lent)

    @property
    def excess(self) -> int:
        """What has been lent, cannot be, and is not on its way back."""
        return 0 if self.lendable is None else max(0, self.lent - self.returning - self.lendable)

    def lender(self) -> "Neighbour | None":
        """The card that can lend its clients most. None: no other card can lend any."""
        able = [one for one in self.reachable if one.available]
        return max(able, key=lambda one: one.available, default=None)
