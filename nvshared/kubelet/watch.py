# SPDX-License-Identifier: Apache-2.0
"""Looks which cards there are and whether they can be shared: asks nvshared, reads what kubelet
has given to others. A thread looks again whenever nvshared comes or goes, and every two seconds.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from nvshared.control import Daemon
from nvshared.errors import BusUnavailable, NvshareError
from nvshared.kubelet.card import Card, conflict, elsewhere

PERIOD = 2.0                            # seconds between two looks
PATIENCE = 5.0                          # seconds for nvshared's answer

Seen = tuple[Card, ...] | NvshareError


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look."""

    bus: str
    socket: Path                        # of nvshared, for programs
    kubelet: Path                       # kubelet's folder
    resource: str                       # ours


def look(place: Place) -> Seen:
    """The cards now, or why nobody says which there are."""
    try:
        with Daemon(place.bus, PATIENCE) as daemon:
            return _look(daemon, place)
    except NvshareError as error:
        return error


def _look(daemon: Daemon, place: Place) -> tuple[Card, ...]:
    gpus = daemon.gpus()
    if not place.socket.is_socket():
        raise NvshareError(
            f"nvshared runs, and does not listen at {place.socket}", "--socket says where it does"
        )
    given = elsewhere(place.kubelet, place.resource)
    cards = []
    for gpu in gpus:
        uuid = gpu["UUID"]
        card = Card(
            uuid, gpu["Index"], gpu["PCIBusID"], "", gpu["Name"], gpu["MemoryTotal"])
        if gpu["State"] == "lost":
            trouble = f"{uuid} fell off the bus, or its driver is gone"
        elif gpu["MIG"]:
            trouble = f"{uuid} is divided (MIG), and nvshared shares whole cards"
        else:
            trouble = conflict(card, given)
        cards.append(replace(card, trouble=trouble))
    return tuple(cards)


class Watch:
    """The thread. `tell` is called in it after each look."""

    def __init__(self, place: Place, tell: Callable[[Seen], None]) -> None:
        self._place = place
        self._tell = tell
        self._ended = threading.Event()
        # It may be within a question for some seconds when we end, and keeps nobody.
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def close(self) -> None:
        """Looks no more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with Daemon(self._place.bus, PATIENCE) as daemon:
                    self._follow(daemon)
            except NvshareError as error:       # there is no bus
                self._tell(error)
                self._ended.wait(PERIOD)

    def _follow(self, daemon: Daemon) -> None:
        daemon.follow()
        while not self._ended.is_set():
            try:
                seen: Seen = _look(daemon, self._place)
            except BusUnavailable:
                raise
            except NvshareError as error:
                seen = error
            self._tell(seen)
            daemon.wait(PERIOD)
