# SPDX-License-Identifier: Apache-2.0
"""Several cards that share one host's memory, and programs that obey all orders.

A program is its memory figures only. Site.check() checks the invariants of the host
budget after each step of a program.
"""

from dataclasses import replace
from uuid import UUID

from nvshared.hook.protocol import OrderRecord, Type
from nvshared.machine.nvml import Facts, Sample
from nvshared.scheduler.domains import least_host
from nvshared.scheduler.events import Memory
from nvshared.settings.defaults import Defaults, GPUDefaults
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND
from tests.unit.scripted import NO_RESERVE, SETTINGS, Time, peer
from tests.unit.sessionhook import SessionHook

PATIENCE = 60 * SECOND                  # us: maximum wait for an answer


class Program(SessionHook):
    """A client's program, which carries out its orders when the site is settled."""

    def __init__(self, site: "Site", gpu: GPU, memory: Memory, commit: int, uid: int = 0) -> None:
        super().__init__(site.manager, gpu, peer(uid=uid), memory)
        self.gpu = gpu
        self.answers: dict[int, bool] = {}
        self._asked: dict[int, int] = {}
        self.say(Type.HELLO, commit=commit)

    @property
    def host(self) -> int:
        """Bytes of host memory of the program, its open EVICT orders included."""
        evicts = [order.host for order in self.wire.orders if order.type is Type.EVICT]
        return max([self.memory.host, *evicts])

    def request(self, size: int) -> None:
        """Sends COMMIT; the program allocates the memory when the request is granted."""
        self.questions += 1
        self._asked[self.questions] = size
        self.say(Type.COMMIT, number=self.questions, wanted=size)

    def free(self, size: int) -> None:
        resident = min(self.memory.resident, size)
        allocated = min(self.memory.allocated, size)
        self.memory = replace(self.memory, allocated=allocated, resident=resident)
        self.say(Type.MEMORY)

    def obey(self, record: OrderRecord) -> None:
        super().obey(record)
        if record.type is Type.LIMITS and record.number:
            size = self._asked[record.number]
            self.answers[record.number] = self.grants(record, size)
            if self.answers[record.number]:
                allocated = max(size, self.memory.allocated)
                self.memory = replace(self.memory, allocated=allocated)
                self.want()


class Site:
    """A daemon with cards of the same size, and the programs on them."""

    def __init__(self, cards: int, card: int, whole: int, *, gather: bool = False) -> None:
        """`card`: bytes of each card; `whole`: bytes of host memory for all cards."""
        self.whole = whole
        self.time = Time()
        self.programs: list[Program] = []
        settings = replace(SETTINGS, host_budget=whole, gather=SECOND, tq=SECOND)
        self.defaults = Defaults(settings, lambda _: GPUDefaults(NO_RESERVE, GIB))
        self.manager = Manager(lambda: self.defaults, self.time.clock, self.time.timer)
        for index in range(cards):
            facts = Facts(index, f"GPU-{UUID(int=index)}", "Card", f"0000:{index:02x}:00.0", card)
            self.manager.add(facts, Sample(memory_used=0), gather=gather)

    @property
    def gpus(self) -> list[GPU]:
        return self.manager.gpus

    @property
    def parts(self) -> list[int]:
        """Bytes of host memory that each card may take."""
        return [gpu.scheduler.snapshot().budgets["host"].size for gpu in self.gpus]

    def resize(self, whole: int) -> None:
        self.whole = whole
        settings = replace(self.defaults.settings, host_budget=whole)
        self.defaults = replace(self.defaults, settings=settings)
        self.manager.reload()

    def check(self) -> None:
        assert sum(program.host for program in self.programs) <= self.whole
        # A card may have taken more than its part after margins for other cards' clients grew. Then
        # the other cards' parts must leave the taken bytes out.
        budgets = [gpu.scheduler.snapshot().budgets["host"] for gpu in self.gpus]
        taken = sum(max(one.size, one.used) for one in budgets)
        assert taken <= self.whole, "cards may take more host memory than there is"

    def program(self, card: int = 0, size: int = 0, memory: Memory | None = None, commit: int = 0,
                uid: int = 0) -> Program:
        made = Program(self, self.gpus[card], memory or Memory(), commit, uid)
        self.programs.append(made)
        if size:
            assert self.grows(made, size)
        return made

    def end(self, program: Program) -> None:
        program.session.ended()
        self.programs.remove(program)
        self.settle()

    def grows(self, program: Program, size: int) -> bool:
        number, end = len(program.answers) + 1, self.time.now + PATIENCE
        program.request(size)
        self.settle()
        while number not in program.answers:
            assert self.time.now < end, "it is never answered"
            self.time.pass_by(SECOND)
            self.settle()
        return program.answers[number]

    def fits(self, program: Program, size: int) -> bool:
        """Whether the request must be granted without reclaiming commit of other programs."""
        gpu, programs = program.gpu, [one for one in self.programs if one.gpu is program.gpu]
        more = max(0, size - max(program.limits.commit, program.memory.need))
        committed = sum(max(one.limits.commit, one.memory.need) for one in programs) + more
        needed = least_host(committed - gpu.capacity.bytes, len(programs))
        held = sum(one.host for one in programs)
        left = gpu.scheduler.parts["host"].promisable
        return size <= gpu.capacity.bytes and max(needed, held) <= left

    def settle(self) -> None:
        self.check()
        while busy := [program for program in self.programs if program.wire.packets]:
            for program in busy:
                program.obey(program.hear())
                self.check()
