# SPDX-License-Identifier: Apache-2.0
"""What a session does for its client while that is parked: its hook hears no order, and its memory,
pinned or not, is off the card.

Orders are held back from PARK to UNPARK. A LOAD or RUN means that the client's turn has come, so
the client has to be woken first. An order that takes memory away is answered
here, because nothing of the client is on the card. The hook's figures go on to the scheduler
without what is pinned; once a thread wants the driver, as memory that the thread is about to pin.
So the client gets that room with its turn, as every client does.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace

from nvshared.errors import NvshareError, ProtocolError
from nvshared.hook import protocol
from nvshared.hook.protocol import Flag, OrderRecord, Park, ReportRecord, Type
from nvshared.scheduler import actions, events

PATIENCE = 15.0                         # seconds for the hook to answer PARK

WORDS = {
    Park.BUSY: "its threads do not rest",
    Park.CALLED: "it wants to use the GPU",
    Park.SEVERAL: "it uses several GPUs",
    Park.HOLDS: "memory of it cannot leave the GPU",
    Park.UNSEEN: "it may call the driver past libnvshare.so, or its threads cannot be looked at",
}


class ParkedHook:
    """The hook of one client, as far as it is parked or about to be."""

    def __init__(self, send: Callable[[bytes, int | None], None]) -> None:
        """`send`: Wire.send."""
        self.away = False               # the process is checkpointed
        self.wanted = False             # a thread of it wants the driver
        self.memory = events.Memory()   # as the hook said last
        self._send = send
        self._held: list[tuple[actions.Order | None, bytes, int | None]] | None = None
        self._number = 0                # of the PARK that was sent last
        self._answer: asyncio.Future[Park] | None = None

    @property
    def holds(self) -> bool:
        """Orders are held back."""
        return self._held is not None

    async def park(self, *, ahead: bool) -> None:
        """Has the hook keep the program out of the driver; `ahead`: unless it wants the GPU.

        Raises NvshareError with the reason if it does not. Orders are held back even then, until
        unpark().
        """
        self._held, self.wanted = [], False
        self._answer = asyncio.get_running_loop().create_future()
        self._number += 1
        self._send(protocol.encode_order(OrderRecord(
            Type.PARK, Flag.AHEAD if ahead else 0, self._number)), None)
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self._answer
        except TimeoutError:
            raise NvshareError("its library does not answer") from None
        finally:
            self._answer = None
        if answer is not Park.DONE:
            raise NvshareError(WORDS[answer])

    def found(self) -> None:
        """An earlier daemon has parked it."""
        self._held, self.away = [], True

    def unpark(self, gpu: bytes, *, moved: bool = False) -> None:
        """The process runs, on the card with this UUID: the orders held
        back go out first; those of a card that it has left do not."""
        self.away = self.wanted = False
        self._send(protocol.encode_unpark(gpu), None)
        held, self._held = self._held or [], None
        for _, _, page in held if moved else ():
            if page is not None:
                os.close(page)
        if moved:
            return
        for _, packet, page in held:
            self._send(packet, page)

    def lost(self) -> None:
        """The connection has ended."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(NvshareError("it has ended"))

    def hold(self, order: actions.Order | None, packet: bytes, page: int | None) -> None:
        """Keeps what would be sent, for later."""
        assert self._held is not None
        if isinstance(order, actions.Limits) and not order.number:
            self._held = [one for one in self._held if not _is_unasked_limits(one[0])]
        self._held.append((order, packet, page))

    def leave(self) -> list[actions.MoveOrder]:
        """The process is checkpointed. Returns the orders held back that need no hook."""
        self.away = True
        held, self._held = self._held or [], []
        self._held = [one for one in held if not answerable(one[0])]
        return [one for one, _, _ in held if isinstance(one, actions.MoveOrder) and answerable(one)]

    def hear(self, record: ReportRecord) -> bool:
        """What the hook says of being parked. False: the record says something else.

        Raises ProtocolError if its answer is no member of Park.
        """
        if record.type is Type.PARKED:
            if record.moved not in WORDS and record.moved != Park.DONE:
                raise ProtocolError(f"the unknown answer {record.moved} to PARK came")
            # A late answer is to an earlier PARK; the threads have been let go on since.
            if (record.number == self._number
                    and self._answer is not None and not self._answer.done()):
                self.wanted = bool(record.flags & Flag.WANTS)
                self._answer.set_result(Park(record.moved))
            return True
        return False

    def seen(self, memory: events.Memory) -> events.Memory:
        """The hook's figures, as they are while the process is checkpointed."""
        self.memory = memory
        if not self.away:
            return memory
        pending = memory.pinned + memory.pending if self.wanted else 0
        return replace(memory, resident=0, pinned=0, pending=pending, room=0)


def answerable(order: actions.Order | None) -> bool:
    """An order that takes memory away, or writes it back."""
    return isinstance(order, actions.MoveOrder) and not isinstance(order, actions.Load)


def _is_unasked_limits(order: actions.Order | None) -> bool:
    return isinstance(order, actions.Limits) and not order.number
