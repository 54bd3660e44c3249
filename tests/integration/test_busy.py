# SPDX-License-Identifier: Apache-2.0
"""Programs that fit and keep the card busy take turns, until one of them pauses."""

from typing import Any

from tests.integration.conftest import Site, wait_until
from tests.integration.programs import Program

# Submits far ahead of the card, so that a busy machine causes no gaps.
KEEPS_IT_BUSY = '''
import select
spin, flying = kernel("spin"), []
while not select.select([sys.stdin], [], [], 0)[0]:
    launch(spin, None, 20_000)
    event = c_void_p()
    call("cuEventCreate", byref(event), 2)
    call("cuEventRecord", event, 0)
    flying.append(event)
    if len(flying) > 50:
        call("cuEventSynchronize", flying[0])
        call("cuEventDestroy_v2", flying.pop(0))
sys.stdin.readline()
call("cuCtxSynchronize")
pause("pauses")
'''


def ended(lines: list[dict[str, Any]]) -> set[int]:
    return {line["client"] for line in lines
            if line.get("report") == "turn-ended" and line["reason"] == "quantum"}


def running(lines: list[dict[str, Any]]) -> set[int]:
    found: set[int] = set()
    for line in lines:
        if line.get("report") == "turn-started":
            found.add(line["client"])
        elif line.get("report") == "turn-ended":
            found.discard(line["client"])
    return found


def waits_for_nothing(lines: list[dict[str, Any]], pid: int) -> bool:
    """Both clients have a turn, or this client's turn ended while it had no work."""
    last = [line["wants"] for line in lines if line.get("pid") == pid and "wants" in line][-1]
    return len(running(lines)) == 2 or (len(running(lines)) == 1 and not last)


def test_busy_programs_that_fit_together_take_turns_until_a_program_pauses(site: Site) -> None:
    site.start("--trace", str(site.folder / "trace"))
    one, two = Program(site, KEEPS_IT_BUSY), Program(site, KEEPS_IT_BUSY)
    wait_until(lambda: len(ended(site.trace())) == 2)
    assert not any(line.get("order") in ("evict", "load") and line["ahead"]
                   for line in site.trace()), "nothing has to move"
    one.go_on()
    assert one.hears() == "pauses"
    before = len(site.trace())
    wait_until(lambda: waits_for_nothing(site.trace(), one.popen.pid))
    # The other program keeps its turn and continues.
    two.go_on()
    assert two.hears() == "pauses"
    assert len(ended(site.trace()[before:])) <= 2
    for program in (one, two):
        program.finish()
