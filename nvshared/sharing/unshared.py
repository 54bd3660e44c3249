# SPDX-License-Identifier: Apache-2.0
"""Programs without libnvshare.so that take turns: the driver checkpoints each process as a whole.

A process of a tenant with the term `unshared = checkpoint` becomes a client. Its memory is NVML's
figure, which also counts as host memory, because a checkpoint needs it."""

import asyncio
import logging
import os
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from nvshared.clock import repeat
from nvshared.errors import GPULost
from nvshared.lanes import Run as RunInLane
from nvshared.lanes import call
from nvshared.machine import checkpoint, host, peer
from nvshared.machine.checkpoint import Answer
from nvshared.machine.nvml import Process, Sample
from nvshared.machine.peer import Peer
from nvshared.scheduler import actions, events
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.sharing.moving import Ask, ask_driver, free_host_memory, start_task
from nvshared.sharing.sampler import take_samples

TERM = "unshared"
SETTLED = 3                             # samples to wait for a HELLO, which only the library sends
LATER = 20                              # samples between two attempts to make a process a client
EVERY = 1.0                             # seconds between samples of all cards
RETRY_AFTER = 2.0                       # seconds until a command without a clear result is repeated
OUT_OF_MEMORY, NOT_SUPPORTED = 2, 801   # CUresult
WORDS = "it has no libnvshare.so: the driver checkpoints it between its turns"
MPS = "nvidia-cuda-mps"                 # first 15 characters of nvidia-cuda-mps-server, -control

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Unknown:
    samples: float = 0                  # samples since the last attempt; -inf: never try again
    peer: Peer | None = None            # None: not identified yet


class Unshared:
    """Makes clients of the processes without the library that may be suspended."""

    def __init__(self, manager: Manager, run: RunInLane, ask: Ask = checkpoint.ask) -> None:
        self.manager = manager
        self.run = run
        # Arguments: the client (or a name for the log), the pid, and nvshare-checkpoint's command.
        self.ask = partial(ask_driver, ask)
        self._unknown: dict[tuple[GPU, int], _Unknown] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        for gpu in self.manager.gpus:
            gpu.sampled.connect(partial(self._sampled, gpu))
        self.begin(self._find())
        self.begin(self._watch())

    def close(self) -> None:
        """Ends the tasks. Suspended processes stay suspended until the next daemon starts."""
        for task in self._tasks:
            task.cancel()

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return start_task(self._tasks, work)

    def allows(self, identity: Peer) -> bool:
        tenancy = self.manager.tenancy
        return any(tenancy.terms(str(one)).unshared for one in identity.tenants)

    def refused(self, gpu: GPU, pid: int, why: str) -> None:
        """Notes that a process is no client now. `why`: it cannot be a client; "": it can."""
        self._unknown[gpu, pid] = _Unknown(-inf if why else 0)
        if why:
            gpu.unsuspendable[pid] = why

    def _sampled(self, gpu: GPU, sample: Sample) -> None:
        clients = {one.peer.pid: one for one in gpu.clients.values()}
        listed = {one.pid: one for one in sample.processes or ()}
        for pid, process in listed.items():
            client = clients.get(pid)
            if client is None:
                self._count_sample(gpu, process)
            elif isinstance(client.link, StandIn):
                client.link.update_memory(process.memory)
        for key in [one for one in self._unknown if one[0] is gpu and one[1] not in listed]:
            del self._unknown[key]
        for pid in gpu.unsuspendable.keys() - listed.keys():
            del gpu.unsuspendable[pid]

    def _count_sample(self, gpu: GPU, process: Process) -> None:
        one = self._unknown.setdefault((gpu, process.pid), _Unknown())
        one.samples += 1
        if (one.samples >= SETTLED and self.manager.tenancy.is_set(TERM)
                and (one.peer is None or self.allows(one.peer))):
            one.samples = -inf
            self.begin(self._consider(gpu, process, one))

    async def _consider(self, gpu: GPU, process: Process, one: _Unknown) -> None:
        why = ""
        try:
            if why := await self._adopt(gpu, process, one):
                gpu.unsuspendable[process.pid] = why
        finally:
            one.samples = SETTLED - LATER if why else SETTLED

    async def _adopt(self, gpu: GPU, process: Process, one: _Unknown) -> str:
        """Makes a process a client. Returns why the driver or the host prevents that, or ""."""
        pid, size = process.pid, process.memory
        if one.peer is None:
            one.peer = await call(self.run, pid, partial(_identify, pid))
        if one.peer is None:
            return ""
        learnt = asyncio.Event()
        self.manager.tenancy.read_groups(str(one.peer.tenants[0]), learnt.set)
        await learnt.wait()
        if not self.allows(one.peer):
            return ""
        if one.peer.name.startswith(MPS):
            return "it belongs to MPS, whose programs the driver does not checkpoint"
        if not size:
            return "the driver does not say how much memory it has"
        await take_samples(self.manager.gpus)
        if any(pid == other.pid for card in self.manager.gpus if card is not gpu
               for other in card.sample.processes or ()):
            return "it uses several GPUs"
        if (await call(self.run, pid, partial(free_host_memory, pid)) or 0) < size:
            return "the host has too little free memory for its memory on the GPU"
        if size > self.manager.budget.shared.unneeded:
            return "the host budget has too little left for its memory on the GPU"
        answer = await self.ask(one.peer, pid, "state")
        if answer.state != "running":
            return answer.reason
        await self._join(gpu, one.peer, size, resident=True, running=True)
        return ""

    async def _join(
        self, gpu: GPU, identity: Peer, size: int, *, resident: bool, running: bool,
    ) -> None:
        ends = await call(self.run, identity.pid, partial(_open, identity))
        if ends is None:
            return
        if any(one.peer.pid == identity.pid for one in gpu.clients.values()):
            os.close(ends)
            return
        self._unknown.pop((gpu, identity.pid), None)
        gpu.unsuspendable.pop(identity.pid, None)
        on_card = size if resident else 0
        memory = events.Memory(allocated=size, host=size, resident=on_card, room=on_card)
        with suppress(GPULost):
            StandIn(self, gpu, identity, memory, ends, running=running).join()

    async def _watch(self) -> None:
        """Keeps all cards sampled while the term is set, so that new processes are noticed."""
        async def sample() -> None:
            if self.manager.tenancy.is_set(TERM):
                await take_samples(self.manager.gpus)

        await repeat(EVERY, sample)

    async def _find(self) -> None:
        answer = await self.ask("at the start", 0, "held")
        for pid, tag in answer.held:
            size, _, uuid = tag.partition("-")
            card = next((one for one in self.manager.gpus if one.facts.uuid == uuid), None)
            if card is None or not size.isdecimal() or int(size) > card.facts.memory_total:
                continue                # an earlier daemon with other cards suspended it
            identity = await call(self.run, pid, partial(_identify, pid))
            state = (await self.ask(f"process {pid}", pid, "state")).state
            if state == "running":      # in the driver; the cgroup freezer still stops its threads
                await self.ask(f"process {pid}", pid, "wake")
            elif state in ("locked", "checkpointed") and identity is not None:
                await self._join(
                    card, identity, int(size), resident=state == "locked", running=False)


class StandIn:
    """The Link of a client without the library: carries out orders with nvshare-checkpoint."""

    def __init__(
        self, unshared: Unshared, gpu: GPU, identity: Peer, memory: events.Memory, ends: int, *,
        running: bool,
    ) -> None:
        """`ends`: the pidfd of the process."""
        self._unshared = unshared
        self._client = Client(unshared.manager.next_id(), gpu, identity, self)
        self._client.has_library = False
        self._client.unparkable = WORDS
        self._gpu = gpu
        self._pid = identity.pid
        self._running = running
        self._busy = False
        self._memory = memory
        self._orders: asyncio.Queue[actions.Order] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._ends = ends

    def join(self) -> None:
        """Makes the process a client. Raises GPULost."""
        asyncio.get_running_loop().add_reader(self._ends, self._ended)
        self._task = self._unshared.begin(self._serve())
        try:
            self._gpu.join(self._client, self._memory, running=self._running, wants=True, commit=0)
        except GPULost:
            self._leave("")
            raise
        logger.info("%s: %s has no libnvshare.so, and takes turns by checkpoints",
                    self._gpu, self._client)

    def order(self, order: actions.Order) -> None:
        """Link: queues an order; orders are carried out one after the other."""
        if isinstance(order, actions.Run | actions.Stop | actions.MoveOrder):
            self._orders.put_nowait(order)

    def update_memory(self, size: int | None) -> None:
        """Takes NVML's figure of the process's memory, unless an order is in progress."""
        if not self._running or self._busy or not self._orders.empty():
            return
        if not self._unshared.allows(self._client.peer):
            self._leave("")
        elif size and size != self._memory.allocated:
            self._memory = replace(self._memory, allocated=size, resident=size, host=size)
            self._gpu.tell(events.MemoryChanged(self._client.id, self._memory))

    async def _serve(self) -> None:
        while True:
            self._busy = False
            order = await self._orders.get()
            self._busy = True
            match order:
                case actions.Stop():
                    await self._stop()
                case actions.Run() if not self._running:
                    await self._try("wake", "running")
                    self._running = True
                case actions.Writeback():
                    self._answer(events.WrittenBack, order, 0)
                case actions.Load():
                    await self._load(order)
                case actions.MoveOrder():
                    await self._evict(order)

    async def _try(self, command: str, *states: str) -> Answer:
        """Repeats a command until the driver reports one of these states for the process."""
        tag = f"{self._memory.allocated}-{self._gpu.facts.uuid}" if command == "hold" else ""
        while True:
            answer = await self._unshared.ask(self._client, self._pid, command, tag=tag)
            # "none" without an error: the process has no CUDA context any more.
            if answer.state == "failed" or (answer.state == "none" and not answer.trouble):
                # The threads must run again: their calls return the driver's error.
                await self._unshared.ask(self._client, self._pid, "wake")
                self._leave("" if answer.state == "none" else "the driver could not restore it")
            if answer.state in states:
                return answer
            await asyncio.sleep(RETRY_AFTER)

    async def _stop(self) -> None:
        answer = await self._try("hold", "running", "locked", "checkpointed")
        if answer.state == "running":
            if any(one.name in ("hold", "restorer") or one.code == NOT_SUPPORTED
                   for one in answer.steps if one.code):
                self._leave(answer.trouble)
            self._gpu.tell(events.Reopened(self._client.id, self._memory))
            return
        self._running = False
        self._gpu.tell(events.Stopped(self._client.id, self._memory, wants=True))

    async def _evict(self, order: actions.MoveOrder) -> None:
        size = self._memory.resident
        if self._running or not size or order.room >= size:
            self._answer(events.Evicted, order, 0)
            return
        free = await call(self._unshared.run, self._pid, partial(free_host_memory, self._pid))
        if (free or 0) < size:
            logger.warning("%s: the host has too little free memory for its checkpoint",
                           self._client)
            self._answer(events.Evicted, order, 0, no_memory=True)
            return
        began = self._gpu.now
        answer = await self._try("park", "running", "checkpointed")
        if answer.state == "running":
            self._leave(answer.trouble or "the driver did not checkpoint it")
        self._memory = replace(self._memory, resident=0)
        self._answer(events.Evicted, order, size, began)

    async def _load(self, order: actions.MoveOrder) -> None:
        size = self._memory.allocated
        if self._memory.resident or order.room < size:
            self._answer(events.Loaded, order, 0)
            return
        began = self._gpu.now
        answer = await self._try("restore", "locked", "checkpointed", "running")
        if answer.state == "checkpointed":
            full = any(one.code == OUT_OF_MEMORY for one in answer.steps)
            self._answer(events.Loaded, order, 0, began, no_memory=full, driver_error=not full)
            return
        self._memory = replace(self._memory, resident=size)
        self._answer(events.Loaded, order, size, began)

    def _answer(
        self, kind: type[events.Moved], order: actions.MoveOrder, moved: int,
        began: int | None = None, **failed: bool,
    ) -> None:
        self._memory = replace(self._memory, room=max(order.room, self._memory.resident))
        took = 0 if began is None else self._gpu.now - began
        self._gpu.tell(kind(self._client.id, self._memory, order.number, moved, took, **failed))

    def _ended(self) -> None:
        if not self._running:
            # "held" also removes the control groups of stopped processes that have ended.
            self._unshared.begin(self._unshared.ask("at the end of a process", 0, "held"))
        with suppress(asyncio.CancelledError):
            self._leave("")

    def _leave(self, why: str) -> None:
        """Removes the client; if `why`, the process is never made a client again. Raises
        CancelledError in the stand-in's task."""
        if self._ends >= 0:
            asyncio.get_running_loop().remove_reader(self._ends)
            os.close(self._ends)
            self._ends = -1
        if why:
            logger.warning("%s: %s is not suspended any more: %s", self._gpu, self._client, why)
        self._gpu.leave(self._client)
        self._unshared.refused(self._gpu, self._pid, why)
        if self._task is not None:
            self._task.cancel()
            if asyncio.current_task() is self._task:
                raise asyncio.CancelledError


def _identify(pid: int) -> Peer:
    return peer.identify(pid, peer.owner(pid))


def _open(identity: Peer) -> int | None:
    """Returns a pidfd of a process; None: the process has ended."""
    with suppress(OSError):
        found = os.pidfd_open(identity.pid)
        if host.started(identity.pid) == identity.started:
            return found
        os.close(found)
    return None
