# SPDX-License-Identifier: Apache-2.0
"""In BUSY records the library reports whether the GPU idled for a part of the last second."""

from nvshared.hook.protocol import Flag, Type
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon
from tests.integration.programs import Program

# Many launches in flight, so that a busy machine makes no gaps.
KEEPS_THE_GPU_BUSY = '''
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


def test_client_reports_a_busy_gpu_until_its_program_pauses(site: Site) -> None:
    daemon = FakeDaemon(site)
    program = Program(site, KEEPS_THE_GPU_BUSY)
    daemon.accept(Flag.REPORT_BUSY)
    while daemon.until(Type.BUSY).flags & Flag.GAPS:
        continue
    program.go_on()
    assert program.hears() == "pauses"
    while not daemon.until(Type.BUSY).flags & Flag.GAPS:
        continue
    daemon.let_finish(program)
