# SPDX-License-Identifier: Apache-2.0
"""Plugins that resolve the driver before the library (RTLD_DEEPBIND) pass the gate, too.

A plugin in a namespace of dlmopen() has its own driver, which cannot reach the program's memory."""

import subprocess
from pathlib import Path

import pytest

from nvshared.units import MIB
from tests.integration.conftest import SIMULATOR, Site
from tests.integration.programs import Program

SOURCE = Path(__file__).with_name("past.c")

OPEN = '''
import ctypes, os
plugin = ctypes.CDLL("PLUGIN", os.RTLD_DEEPBIND | os.RTLD_WHEN)
'''
WORK = '''
size, address = 64 * MIB, c_uint64()
call("cuMemAlloc_v2", byref(address), 2 * size)
data = noise(size)
put(address.value, data)
away()
work = [c_uint64(address.value + size), address, c_size_t(size)]
assert plugin.plugin_copy(*work) == 0
assert get(address.value + size, size) == data
say("copied")
'''


def build(target: Path, *flags: str) -> Path:
    command = ["gcc", "-shared", "-fPIC", "-O1", str(SOURCE), *flags, "-o", str(target)]
    subprocess.run([*command, f"-L{SIMULATOR}", "-l:libcuda.so.1"], check=True)
    return target


@pytest.mark.parametrize(
    ("flags", "when", "early"),
    [(("-Wl,-z,now,-z,relro",), "NOW", True), (("-Wl,-z,lazy,-z,norelro",), "LAZY", False)],
    ids=["relro, before the program uses the card", "lazy"])
def test_plugin_opened_with_deepbind_waits_until_evicted_memory_is_loaded(
    site: Site, tmp_path: Path, flags: tuple[str, ...], when: str, early: bool
) -> None:
    site.start("--tq", "1")
    plugin = build(tmp_path / "plugin.so", *flags)
    opening = OPEN.replace("PLUGIN", str(plugin)).replace("WHEN", when)
    program = Program(site, ("" if early else opening) + WORK, before=opening if early else "")
    program.evict()
    assert program.hears() == "copied"
    program.ends_well()


APART = '''
c = ctypes.CDLL(None)
c.dlmopen.restype = c.dlsym.restype = c_void_p
handle = c.dlmopen(c_size_t(-1), b"PLUGIN", os.RTLD_NOW)
assert handle, "it cannot be opened"
alone = ctypes.CFUNCTYPE(c_int)(c.dlsym(c_void_p(handle), b"plugin_alone"))
size, address = 64 * MIB, c_uint64()
call("cuMemAlloc_v2", byref(address), size)
data = noise(size)
put(address.value, data)
assert alone() == 1
away()
assert alone() == 1                      # the plugin works although its program has no turn
say("done")
assert get(address.value, size) == data
'''


def test_plugin_in_a_dlmopen_namespace_submits_without_a_turn_and_changes_no_results(
    site: Site, tmp_path: Path
) -> None:
    site.start("--tq", "1")
    plugin = build(tmp_path / "plugin.so")
    program = Program(site, APART.replace("PLUGIN", str(plugin)))
    hook = program.lose_card(900 * MIB)
    assert program.hears() == "done"
    assert hook.running
    hook.close()
    program.ends_well()
