# SPDX-License-Identifier: Apache-2.0
"""Memory that is pinned on the card: what is granted of it counts until it is there, no longer."""

import select

from tests.integration.conftest import MIB, Site
from tests.integration.test_own_memory import Program

# What is pinned as long as it exists, by several threads: each frees its own while others ask.
CHURNED = '''
import threading
size, refused = MIB, []
class Descriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint)]
context = c_void_p()
call("cuCtxGetCurrent", byref(context))
def churn():
    call("cuCtxSetCurrent", context)
    for _ in range(400):
        array = c_void_p()
        shape = Descriptor(1024, size // 4096, 0x20, 1)
        error = cuda.cuArrayCreate_v2(byref(array), byref(shape))
        if error:
            refused.append(error)
        else:
            call("cuArrayDestroy", array)
threads = [threading.Thread(target=churn) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not refused, (len(refused), set(refused))
'''


def test_what_was_pinned_and_freed_is_no_reason_to_refuse_more(site: Site) -> None:
    """A card of 1 GiB, of which somebody else needs 600 MiB, and never more than four are pinned.

    In all 1,600 MiB are. While a thread is on its way from the answer to its memory, what others
    pin counts on, also when it is freed: on a busy machine that may be a hundred of theirs.
    """
    site.start("--tq", "1")
    hook = site.hook()
    assert hook.hello() is not None
    assert hook.allocate(600 * MIB)
    program = Program(site, CHURNED)
    # Where host memory is short it had to ask for its 600 MiB, was granted more than that, and
    # is asked for the rest.
    while program.popen.poll() is None:
        if select.select([hook.socket], [], [], 0.1)[0]:
            record = hook.hear()
            assert record is not None
            hook.obey(record)
    program.ends_well()
