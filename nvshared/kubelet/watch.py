# SPDX-License-Identifier: Apache-2.0
"""Looks which cards there are and whether they can be shared: asks nvshared, reads what kubelet
has given to others.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from nvshared.control import Daemon
from nvshared.errors import NvshareError
from nvshared.kubelet.card import Card, conflict, elsewhere

PATIENCE = 5.0                          # seconds for nvshared's answer

Seen = tuple[Card, ...] | NvshareError


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look."""

    bus: str
    socket: Path                        # of nvshared, for programs
    kubelet: Path                       # kubelet's folder
    resource: str                       # ours


def look(place: Place, *, fresh: bool = False) -> tuple[Seen, str]:
    """The cards now, or why nobody says which there are; and nvshared's own name on the bus.

    The name is another one after each start; "" if nvshared does not answer. `fresh`: nvshared asks
    the driver about each card first, whose answer may take a second.
    """
    try:
        with Daemon(place.bus, PATIENCE) as daemon:
            return _look(daemon, place, fresh=fresh), daemon.peer
    except NvshareError as error:
        return error, ""


def _look(daemon: Daemon, place: Place, *, fresh: bool = False) -> tuple[Card, ...]:
    gpus = daemon.gpus(fresh=fresh)
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
        elif gpu.get("Fault"):          # an older nvshared has none
            trouble = f"{uuid} cannot be relied on: {gpu['Fault']}"
        elif gpu["MIG"]:
            trouble = f"{uuid} is divided (MIG), and nvshared shares whole cards"
        else:
            trouble = conflict(card, given)
        cards.append(replace(card, trouble=trouble))
    return tuple(cards)
