# SPDX-License-Identifier: Apache-2.0
"""The shares of GPUs that kubelet may hand out, and which of them it should prefer.

A share is called UUID::NUMBER. If a GPU cannot be shared now, the offer has a reason, which holds
for all its shares: no container gets one, and kubelet counts the shares as unhealthy.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kubelet.card import Card, identifies

SEPARATOR = "::"


# How many pods may share a GPU of this index, UUID or PCI address, "": any. The last match holds.
Replicas = Sequence[tuple[str, int]]


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
        # Why no GPU can be shared; "" if that depends on the GPU.
        self.common_problem = "nvshared has not answered yet"
        self._other_drivers: dict[str, str] = {}        # driver by attribute of its devices
        self._changed = asyncio.Event()

    def update(self, reading: tuple[Card, ...] | NvshareError) -> bool:
        """Takes the current GPUs, or the error of asking nvshared. Returns whether that changed."""
        before = (self._cards, self.common_problem)
        if isinstance(reading, NvshareError):
            self.common_problem = str(reading)
        else:
            self._cards, self.common_problem = reading, ""
        has_changed = before != (self._cards, self.common_problem)
        if has_changed:
            self._notify()
        return has_changed

    def update_other_drivers(self, devices: Mapping[str, str]) -> None:
        """Takes the attributes of devices that other DRA drivers offer, with the driver's name."""
        if devices != self._other_drivers:
            self._other_drivers = dict(devices)
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def changes(self, refresh: float | None = None) -> AsyncIterator[None]:
        """Yields at once, at each change of the offer, and `refresh` seconds after the last."""
        while True:
            changed = self._changed     # from before the yield: a change meanwhile counts
            yield
            with suppress(TimeoutError):
                async with asyncio.timeout(refresh):
                    await changed.wait()

    @property
    def has_problem(self) -> bool:
        """Whether an offered GPU cannot be shared now."""
        return bool(self.common_problem) or any(map(self.problem, self.offered()))

    def problem(self, card: Card) -> str:
        """Why this GPU cannot be shared now; "" if it can."""
        if self.common_problem or card.problem:
            return self.common_problem or card.problem
        drivers = (name for text, name in self._other_drivers.items() if identifies(text, card))
        driver = next(drivers, "")
        return f"{card.uuid} is offered by {driver} already" if driver else ""

    def offered(self) -> dict[Card, int]:
        """The number of shares by GPU, whether or not the GPU can be shared now."""
        numbers = {card: next(number for name, number in reversed(self._replicas)
                              if name in ("", *card.names)) for card in self._cards}
        return {card: number for card, number in numbers.items() if number}

    def smallest(self) -> int:
        """Bytes of the smallest offered GPU; 0 while none is known."""
        return min((card.memory for card in self.offered()), default=0)

    def shares(self) -> dict[str, bool]:
        """All shares, and whether each may be handed out."""
        return {
            f"{card.uuid}{SEPARATOR}{number}": not self.problem(card)
            for card, replicas in self.offered().items() for number in range(replicas)
        }

    def words(self) -> str:
        """The whole offer in one line, for the log and the status."""
        if self.common_problem:
            return f"no shares: {self.common_problem}"
        offered, known = self.offered(), {""}.union(*(card.names for card in self._cards))
        parts = [
            f"GPU {card.index}: {self.problem(card) or f'{offered.get(card, 0)} shares'}"
            for card in self._cards
        ]
        parts += [f"no GPU goes by {name!r}, which --replicas names"
                  for name, _ in self._replicas if name not in known]
        return "; ".join(parts) or "nvshared knows no GPU"

    def check(self, shares: Sequence[str]) -> list[str]:
        """The GPUs of the shares that a container is to get, sorted by index.

        Raises NvshareError if a share is unavailable; SameCardTwice for two shares of one GPU.
        """
        if self.common_problem:
            raise NvshareError(self.common_problem)
        cards = {card.uuid: card for card in self._cards}
        known = self.shares()
        for share in shares:
            if share not in known:
                raise InvalidArgs(f"there is no share {share!r}")
            if problem := self.problem(cards[card_of(share)]):
                raise NvshareError(problem)
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
    free = sorted(set(available).difference(must), key=lambda share: (len(share), share))
    while len(chosen) < size and free:
        here, left = Counter(map(card_of, chosen)), Counter(map(card_of, free))
        share = min(free, key=lambda one: (here[card_of(one)], -left[card_of(one)], card_of(one)))
        free.remove(share)              # the GPU's with the lowest number: min() takes the first
        chosen.append(share)
    return chosen
