# SPDX-License-Identifier: Apache-2.0
"""Less usual ways to call the driver and to export memory."""

import subprocess
from pathlib import Path

import pytest

from bench.harness import rival, run, sharing
from bench.trace import summary
from tests.gpu.running import python, said
from tests.gpu.test_sharing import BUDGET, Record, check, competitor
from tests.integration.programs import PRELUDE
from tests.integration.test_peers import COPIES, TWO
from tests.integration.test_plugins import OPEN, SOURCE

HALF = 4                                # GiB that the plugin copies, and GiB that it copies to

WORK = f'''
import time
size, address = {HALF} << 30, c_uint64()
call("cuMemAlloc_v2", byref(address), 2 * size)
data, rounds, end = os.urandom(64 * MIB), 0, time.monotonic() + 8
put(address.value + size - len(data), data)
while time.monotonic() < end:
    call("cuMemsetD8_v2", address.value + size, rounds % 256, size)
    work = [c_uint64(address.value + size), address, c_size_t(size)]
    assert plugin.plugin_copy(*work) == 0, rounds
    rounds += 1
assert get(address.value + 2 * size - len(data), len(data)) == data
print(json.dumps({{"rounds": rounds}}))
'''


def build(folder: Path) -> Path:
    """Compiles the plugin, with libcuda.so.1 as a needed library."""
    named = ["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null"]
    subprocess.run([*named, "-o", str(folder / "libcuda.so.1")], check=True)
    command = ["gcc", "-shared", "-fPIC", "-O1", str(SOURCE), "-Wl,--no-as-needed"]
    target = folder / "plugin.so"
    subprocess.run([*command, f"-L{folder}", "-l:libcuda.so.1", "-o", str(target)], check=True)
    return target


@pytest.mark.parametrize("early", [True, False], ids=["before the program uses the card", "after"])
def test_plugin_opened_with_deepbind_takes_turns_with_another_client(
    tmp_path: Path, early: bool, record: Record
) -> None:
    opening = OPEN.replace("PLUGIN", str(build(tmp_path))).replace("WHEN", "NOW")
    body = opening + PRELUDE + WORK if early else PRELUDE + opening + WORK
    with sharing("--tq", "200ms", "--capacity", "20GiB", *BUDGET) as daemon:
        with rival(competitor(16, "--until-told"), daemon.environment) as other:
            (done,) = run([python(body)], daemon.environment)
        figures = summary(daemon.trace())
    assert done.code == 0, done.errors
    record("a plugin opened with RTLD_DEEPBIND", {**figures, **done.output})
    check(other[0], 16)
    assert figures["turns"] > 10, "they did not take turns"


@pytest.mark.usefixtures("two_cards")
def test_copies_between_cards_without_peer_access_copy_the_right_bytes() -> None:
    program = python(PRELUDE + TWO + COPIES.replace("away()\n", ""))
    said(program)
    with sharing() as daemon:
        said(program, daemon.environment)


HANDLE = '''
address, file = c_uint64(), c_int(-1)
call("cuMemAlloc_v2", byref(address), 300 * MIB)
data = os.urandom(300 * MIB)
put(address.value, data)
got = cuda.cuMemGetHandleForAddressRange(byref(file), address, c_size_t(300 * MIB), 1, c_uint64(0))
assert get(address.value, 300 * MIB) == data
print(json.dumps([got, file.value >= 0]))
'''


def test_dma_buf_export_returns_the_drivers_result() -> None:
    program = python(PRELUDE + HANDLE)
    with sharing() as daemon:
        assert said(program, daemon.environment) == said(program)
