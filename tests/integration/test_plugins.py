# SPDX-License-Identifier: Apache-2.0
"""Plugins that find the driver before the library (RTLD_DEEPBIND) pass the gate all the same."""

import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import SIMULATOR, Site
from tests.integration.test_own_memory import Program, give_it_back, take_the_card

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
print(json.dumps("copied"), flush=True)
'''


def build(target: Path, *flags: str) -> Path:
    """The plugin, linked with the simulated driver."""
    command = ["gcc", "-shared", "-fPIC", "-O1", str(SOURCE), *flags, "-o", str(target)]
    subprocess.run([*command, f"-L{SIMULATOR}", "-l:libcuda.so.1"], check=True)
    return target


@pytest.mark.parametrize("early", [True, False], ids=["before the program uses the card", "after"])
@pytest.mark.parametrize(
    ("flags", "when"),
    [(("-Wl,-z,now,-z,relro",), "NOW"), (("-Wl,-z,lazy,-z,norelro",), "LAZY"),
     (("-fno-plt", "-Wl,-z,norelro"), "NOW")],
    ids=["relro", "lazy", "no plt"],
)
def test_a_plugin_that_binds_past_the_library_waits_for_its_memory(
    site: Site, tmp_path: Path, flags: tuple[str, ...], when: str, early: bool
) -> None:
    site.start("--tq", "1")
    plugin = build(tmp_path / "plugin.so", *flags)
    opening = OPEN.replace("PLUGIN", str(plugin)).replace("WHEN", when)
    program = Program(
        site, ("" if early else opening) + WORK, before=opening if early else ""
    )
    assert program.hears() == "away"
    hook = take_the_card(site)
    program.go_on()
    give_it_back(hook)
    assert program.hears() == "copied"
    program.ends_well()
