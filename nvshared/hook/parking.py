# SPDX-License-Identifier: Apache-2.0
"""Stands in for the hook of a parked client, whose memory, pinned or not, is off the card.

Orders are held back, or answered in the hook's place: see docs/connections.md."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace

from nvshared.errors import NvshareError, ProtocolError
from nvshared.hook import protocol
from nvshared.hook.protocol import Flag, OrderRecord, Park, ReportRecord, Type
from nvshared.scheduler import actions, events

PATIENCE = 15.0                         # seconds for the hook to answer PARK

REFUSALS = {
    Park.BUSY: "its threads do not rest",
    Park.CALLED: "it wants to use the GPU",
    Park.SEVERAL: "it uses several GPUs",
    Park.HOLDS: "memory of it cannot leave the GPU",
    Park.UNSEEN: "it may call the driver past libnvshare.so, or its threads cannot be looked at",
}


class ParkedHook:
    """The parking state of one client's hook."""

    def __init__(self, send: Callable[[bytes, int | None], None]) -> None:
        """`send`: Wire.send."""
        self.checkpointed = False       # the process is checkpointed
        self.driver_wanted = False      # a thread of the program wants the driver
        self.memory = events.Memory()   # the hook's last figures
        self._send = send
        self._held: list[tuple[actions.Order | None, bytes, int | None]] | None = None
        self._number = 0                # number of the last PARK sent
        self._answer: asyncio.Future[Park] | None = None

    @property
    def holds(self) -> bool:
        """Whether orders to the hook are held back."""
        return self._held is not None

    @property
    def has_turn(self) -> bool:
        """Parkable: whether a LOAD or RUN is held back."""
        return any(isinstance(one, actions.Load | actions.Run) for one, _, _ in self._held or ())

    async def park(self, context: int, *, ahead: bool) -> None:
        """Makes the hook keep the program out of the driver; `ahead`: unless it wants the GPU.

        `context`: Client.context, which the hook's HELLO to a later daemon repeats. Raises
        NvshareError with the hook's reason to refuse. Orders are held back until unpark() even so.
        """
        self._held, self.driver_wanted = [], False
        self._answer = asyncio.get_running_loop().create_future()
        self._number += 1
        flags = Flag.AHEAD if ahead else 0
        order = OrderRecord(Type.PARK, flags, self._number, host=context)
        self._send(protocol.encode_order(order), None)
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self._answer
        except TimeoutError:
            raise NvshareError("its library does not answer") from None
        finally:
            self._answer = None
        if answer is not Park.DONE:
            raise NvshareError(REFUSALS[answer])

    def take_over(self) -> None:
        """Marks the client as parked by an earlier daemon."""
        self._held, self.checkpointed = [], True

    def unpark(self, gpu: bytes, *, moved: bool = False) -> None:
        """Sends UNPARK, as the process runs on the card with the UUID `gpu`, then the held orders;
        if the process has `moved` to another card, these are dropped."""
        self.checkpointed = self.driver_wanted = False
        self._send(protocol.encode_unpark(gpu), None)
        if moved:
            self._drop_held()
        held, self._held = self._held or [], None
        for _, packet, page in held:
            self._send(packet, page)

    def want_driver(self) -> bool:
        """Records that a thread wants the driver. True: the checkpointed process must wake."""
        wakes = self.checkpointed and not self.driver_wanted
        self.driver_wanted = True
        return wakes

    def end(self) -> None:
        """Fails a pending park() and drops the held orders, as the connection has ended."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(NvshareError("it has ended"))
        self._drop_held()

    def _drop_held(self) -> None:
        for _, _, page in self._held or []:
            if page is not None:
                os.close(page)
        self._held = None

    def hold(self, packet: bytes, page: int | None, order: actions.Order | None) -> None:
        """Keeps a packet until unpark(). A LIMITS that answers no COMMIT replaces the last one."""
        assert self._held is not None
        if _is_unasked_limits(order):
            self._held = [one for one in self._held if not _is_unasked_limits(one[0])]
        self._held.append((order, packet, page))

    def mark_checkpointed(self) -> list[actions.MoveOrder]:
        """Records that the process is checkpointed. Returns held orders, to be answered now."""
        self.checkpointed = True
        held, answered = self._held or [], actions.Evict | actions.Writeback
        self._held = [one for one in held if not isinstance(one[0], answered)]
        return [order for order, _, _ in held if isinstance(order, answered)]

    def handle_parked(self, record: ReportRecord) -> None:
        """Handles PARKED, the reply to PARK. Raises ProtocolError if it is no member of Park."""
        if record.moved not in REFUSALS and record.moved != Park.DONE:
            raise ProtocolError(f"the unknown answer {record.moved} to PARK came")
        # A late reply to an earlier PARK is ignored: UNPARK has released the threads meanwhile.
        if record.number == self._number and self._answer is not None and not self._answer.done():
            self.driver_wanted = record.has(Flag.WANTS)
            self._answer.set_result(Park(record.moved))

    def adjusted(self, memory: events.Memory) -> events.Memory:
        """Stores the hook's figures. Returns them adjusted for a process that is checkpointed."""
        self.memory = memory
        if not self.checkpointed:
            return memory
        pending = memory.pinned + memory.pending if self.driver_wanted else 0
        return replace(memory, resident=0, pinned=0, pending=pending, room=0)


def _is_unasked_limits(order: actions.Order | None) -> bool:
    return isinstance(order, actions.Limits) and not order.number
