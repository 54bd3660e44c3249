# SPDX-License-Identifier: Apache-2.0
"""A restarted daemon orders nothing until the clients of its predecessor have reconnected: a
program that drains or moves memory meanwhile still holds it, and sends HELLO only afterwards.
"""

from dataclasses import replace

import pytest

from nvshared.hook.protocol import Flag, ReportRecord, Type
from nvshared.hook.session import Session
from nvshared.machine.nvml import Sample
from nvshared.scheduler.events import Memory
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND
from tests.records import encode_report
from tests.unit.scripted import DEFAULTS, FACTS, Time, Wire, peer

GATHER = SECOND
LARGE = FACTS.memory_total * 3 // 4     # no two fit together
ON_CARD = Memory(allocated=LARGE, resident=LARGE, room=LARGE)
SWAPPED = Memory(allocated=LARGE, host=LARGE)
FORGETFUL = replace(DEFAULTS,
                    settings=replace(DEFAULTS.settings, gather=GATHER, host_budget=256 * GIB))


class Program:
    def __init__(self, manager: Manager) -> None:
        self.wire = Wire()
        self.session = Session(manager, peer(), self.wire)
        self.session.take_over()

    def introduces_itself(self, memory: Memory, flags: Flag) -> None:
        self.session.received(encode_report(ReportRecord(
            Type.HELLO, flags, self.wire.sent[0].number, memory, FACTS.uuid_bytes, LARGE)))

    @property
    def order_types(self) -> list[Type]:
        aside = (Type.INTRODUCE, Type.LIMITS)
        return [record.type for record in self.wire.sent if record.type not in aside]


@pytest.fixture
def manager(time: Time) -> Manager:
    made = Manager(lambda: FORGETFUL, time.clock, time.timer)
    made.add(FACTS, Sample(), gather=True)
    return made


@pytest.mark.parametrize("dies", [False, True])
def test_restarted_daemon_waits_for_a_late_hello_until_the_client_disconnects(
        manager: Manager, time: Time, dies: bool) -> None:
    late, waits = Program(manager), Program(manager)
    waits.introduces_itself(SWAPPED, Flag.WANTS)
    time.pass_by(GATHER + SECOND // 2)
    assert waits.order_types == []
    assert manager.gpus[0].state == "gathering"
    if dies:
        late.session.ended()
        assert Type.LOAD in waits.order_types
        return
    late.introduces_itself(ON_CARD, Flag.RUNNING)
    now = manager.gpus[0].snapshot()
    assert 0 <= now.free <= now.capacity - LARGE
    assert manager.gpus[0].state == "turns"


@pytest.mark.parametrize(("silent", "within"), [
    (0, GATHER), (1, GATHER + FORGETFUL.settings.drain_patience)])
def test_restarted_daemon_schedules_after_a_fixed_time_and_a_bounded_wait_for_silent_clients(
        manager: Manager, time: Time, silent: int, within: int) -> None:
    for _ in range(silent):
        Program(manager)
    waits = Program(manager)
    waits.introduces_itself(SWAPPED, Flag.WANTS)
    time.pass_by(within - 1)
    assert waits.order_types == []
    time.pass_by(1)
    assert Type.LOAD in waits.order_types
