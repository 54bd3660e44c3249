# SPDX-License-Identifier: Apache-2.0
"""Physical memory outlives the contexts of its program: it belongs to the GPU."""

from tests.integration.conftest import Site, wait_until
from tests.integration.programs import Program

EXPORT = '''
file, imported = c_int(), c_uint64()
call("cuMemExportToShareableHandle", byref(file), handle, 1, 0)
call("cuCtxCreate_v2", byref(context), 0, 0)
there = reserve(size)
call("cuMemImportFromShareableHandle", byref(imported), c_void_p(file.value), 1)
map_at(there, imported, size)
'''


def test_exported_memory_swapped_before_the_last_context_ended_is_loaded_without_a_context(
    site: Site
) -> None:
    """Memory that was swapped when the last context ended has its content in other processes."""
    site.start("--tq", "1")
    program = Program(site, f'''
size = 96 * MIB
data = noise(size)
address, handle = map_memory(size, handles=1)
put(address, data)
call("cuMemUnmap", address, size)
away()
call("cuDevicePrimaryCtxRelease_v2", 0)
away()
{EXPORT}
assert get(there, size) == data
active, flags = c_int(), c_int()
call("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(active))
assert not active.value                  # the library's own context is hidden from the program
''')
    hook = program.lose_card()
    assert program.hears() == "away"
    hook.close()
    wait_until(lambda: " left" in site.log.read_text())
    program.finish()
