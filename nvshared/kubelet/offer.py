# SPDX-License-Identifier: Apache-2.0
"""The shares of GPUs that kubelet may hand out, and which of them it should prefer.

A share is called UUID::NUMBER. If a GPU cannot be shared now, the offer has a reason, which holds
for all its shares: no container gets one, and kubelet counts the shares as unhealthy.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kubelet.card import Card, identifies

SEPARATOR = "::"


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many pods may share a card."""

    usual: int = 10
    own: tuple[tuple[str, int], ...] = ()   # of single GPUs, by index, UUID or PCI address

    def of(self, card: Card) -> int:
        """The number for one GPU; the last --replicas that names it counts."""
        own = (number for name, number in reversed(self.own) if name in card.names)
        return next(own, self.usual)

    def unknown(self, cards: Iterable[Card]) -> list[str]:
        """Names in --replicas that belong to no GPU."""
        known = set[str]().union(*(card.names for card in cards))
        return [name for name, _ in self.own if name not in known]


def card_of(share: str) -> str:
    """The UUID in the name of a share."""
    return share.partition(SEPARATOR)[0]


class SameCardTwice(InvalidArgs):
    """A container was to get several shares of one GPU: the node has too few GPUs for it."""


class Offer:
    """The GPUs and their shares, as they were last reported."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._cards: tuple[Card, ...] = ()
        self._trouble = "nvshared has not answered yet"     # reason that holds for all GPUs
        self._elsewhere: dict[str, str] = {}        # driver by attribute of its devices
        self._changed = asyncio.Event()

    def learn(self, seen: tuple[Card, ...] | NvshareError) -> bool:
        """Takes the current GPUs, or the error of asking nvshared. Returns whether that changed."""
        before = (self._cards, self._trouble)
        if isinstance(seen, NvshareError):
            self._trouble = str(seen)
        else:
            self._cards, self._trouble = seen, ""
        if before == (self._cards, self._trouble):
            return False
        self._tell()
        return True

    def learn_elsewhere(self, devices: Mapping[str, str]) -> None:
        """Takes the attributes of devices that other DRA drivers offer, with the driver's name."""
        if devices != self._elsewhere:
            self._elsewhere = dict(devices)
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def news(self) -> Coroutine[Any, Any, bool]:
        """Waits for the next change of the offer."""
        return self._changed.wait()

    @property
    def trouble_of_all(self) -> str:
        """Why no GPU can be shared; "" if that depends on the GPU."""
        return self._trouble

    @property
    def has_trouble(self) -> bool:
        """Whether an offered GPU cannot be shared now."""
        return bool(self._trouble) or any(map(self.trouble, self.offered()))

    def trouble(self, card: Card) -> str:
        """Why this GPU cannot be shared now; "" if it can."""
        if self._trouble or card.trouble:
            return self._trouble or card.trouble
        drivers = (name for text, name in self._elsewhere.items() if identifies(text, card))
        driver = next(drivers, "")
        return f"{card.uuid} is offered by {driver} already" if driver else ""

    def offered(self) -> dict[Card, int]:
        """The number of shares by GPU, whether or not the GPU can be shared now."""
        return {card: number for card in self._cards if (number := self._replicas.of(card))}

    def smallest(self) -> int:
        """Bytes of the smallest offered GPU; 0 while none is known."""
        return min((card.memory for card in self.offered()), default=0)

    def shares(self) -> dict[str, bool]:
        """All shares, and whether each may be handed out."""
        return {
            f"{card.uuid}{SEPARATOR}{number}": not self.trouble(card)
            for card, replicas in self.offered().items() for number in range(replicas)
        }

    def words(self) -> str:
        """The whole offer in one line, for the log and the status."""
        if self._trouble:
            return f"no shares: {self._trouble}"
        parts = [
            f"GPU {card.index}: {self.trouble(card) or f'{self._replicas.of(card)} shares'}"
            for card in self._cards
        ]
        missing = self._replicas.unknown(self._cards)
        parts += [f"no GPU goes by {name!r}, which --replicas names" for name in missing]
        return "; ".join(parts) or "nvshared knows no GPU"

    def check(self, shares: Sequence[str]) -> list[str]:
        """The GPUs of the shares that one container is to get, sorted by index.

        Raises NvshareError if a share is unavailable; SameCardTwice for two shares of one GPU.
        """
        if self._trouble:
            raise NvshareError(self._trouble)
        cards = {card.uuid: card for card in self._cards}
        known = self.shares()
        for share in shares:
            if share not in known:
                raise InvalidArgs(f"there is no share {share!r}")
            if trouble := self.trouble(cards[card_of(share)]):
                raise NvshareError(trouble)
        counted = Counter(map(card_of, shares))
        if twice := [uuid for uuid, number in counted.items() if number > 1]:
            raise SameCardTwice(
                f"one container was to get {counted[twice[0]]} shares of {twice[0]}, "
                "which are no more than one",
                "each share of a container is another GPU: ask for as many as the node has free",
            )
        return sorted(counted, key=lambda uuid: cards[uuid].index)


def preferred(available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """`size` available shares that include `must`, on different GPUs with the most free shares."""
    chosen = list(must[:size])
    free: dict[str, list[str]] = {}
    for share in available:
        if share not in must:
            free.setdefault(card_of(share), []).append(share)
    for shares in free.values():        # descending: pop() takes the lowest number
        shares.sort(key=lambda share: (len(share), share), reverse=True)
    here = Counter(map(card_of, chosen))
    while len(chosen) < size and free:
        card = min(free, key=lambda one: (here[one], -len(free[one]), one))
        chosen.append(free[card].pop())
        here[card] += 1
        if not free[card]:
            del free[card]
    return chosen
