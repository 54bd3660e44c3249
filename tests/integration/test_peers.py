# SPDX-License-Identifier: Apache-2.0
"""One program on two cards: each is shared by itself, and peer access survives hand-overs."""

import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import BUILD, ROOT, Site
from tests.integration.fakehook import PATIENCE
from tests.integration.programs import evict_and_load
from tests.integration.test_life import LINKED, SOURCE, compiled

TWO = '''
other = c_void_p()
call("cuDevicePrimaryCtxRetain", byref(other), 1)
def on(which):
    call("cuCtxSetCurrent", which)
size = 32 * MIB
first = allocate(size)
on(other)
second, zeros = allocate(size), allocate(size)
fill(zeros, 0, size)
'''

KERNEL = '''
adding = kernel("add")
def copied(source, result=0):
    "The bytes that a kernel on the other card reads at source."
    launch(adding, None, second, source, zeros, size // 8, blocks=64, threads=256)
    call("cuCtxSynchronize", result=result)
    return get(second, size) if result == 0 else None
data = noise(size)
put(first, data)
'''


def test_peer_access_stays_enabled_after_eviction(site: Site) -> None:
    evict_and_load(site, TWO + KERNEL + '''
call("cuCtxEnablePeerAccess", context, 0)
call("cuCtxEnablePeerAccess", context, 0, result=704)    # PEER_ACCESS_ALREADY_ENABLED
assert copied(first) == data                             # resident memory was opened to the peer
on(context)
third = allocate(size)                                   # new memory is opened when it is allocated
put(third, data[::-1])
on(other)
assert copied(third) == data[::-1]
away()
assert copied(first) == data                             # loaded memory is opened again
assert copied(third) == data[::-1]
call("cuCtxDisablePeerAccess", context)
call("cuCtxDisablePeerAccess", context, result=705)
away()
on(context)
assert get(first, size) == data and get(third, size) == data[::-1]
on(other)
# the error is final, as without the library
copied(first, result=700)
''', times=2)


def test_memory_that_queued_work_of_another_card_reads_is_not_evicted(site: Site) -> None:
    """No work is in flight on the first card; queued work of the second card reads its memory."""
    evict_and_load(site, TWO + KERNEL + '''
call("cuCtxEnablePeerAccess", context, 0)
launch(kernel("spin"), None, 3_000_000)
launch(adding, None, second, first, zeros, size // 8, blocks=64, threads=256)
away()
call("cuCtxSynchronize")
assert get(second, size) == data
''')


COPIES = '''
data = noise(size)
on(context)
put(first, data)
ways = (("cuMemcpy", False), ("cuMemcpyAsync", True), ("cuMemcpyDtoD_v2", False),
        ("cuMemcpyDtoDAsync_v2", True))
def copied():
    for name, in_stream in ways:
        for here in (context, other):
            on(other)
            fill(second, 0, size)
            call("cuCtxSynchronize")
            on(here)
            call(name, second, first, size, *([0] if in_stream else []))
            call("cuCtxSynchronize")
            on(other)
            assert get(second, size) == data, name
copied()
away()
copied()
'''


def test_copy_to_a_card_without_peer_access_copies_the_right_bytes(site: Site) -> None:
    """The driver makes such copies for memory of cuMemAlloc, but not for memory of cuMemMap."""
    evict_and_load(site, TWO + COPIES + '''
on(context)
# with access in one direction, then in both
call("cuCtxEnablePeerAccess", other, 0)
copied()
on(other)
call("cuCtxEnablePeerAccess", context, 0)
copied()
''')


def apart(site: Site, program: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [program, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**site.environment, "LD_PRELOAD": str(BUILD / "libnvshare.so"),
             "NVSHARE_SOCKET": str(site.socket)})


def compiled_apart(folder: Path) -> Path:
    return compiled(folder, *LINKED, source=SOURCE.with_name("apart.c"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_apart(tmp_path_factory.mktemp("apart"))


def test_copies_of_all_shapes_between_cards_without_peer_access_copy_the_right_bytes(
    site: Site, program: Path
) -> None:
    site.start("--tq", "1")
    said, _ = apart(site, program, "stalled").communicate(timeout=PATIENCE)
    lines = said.decode().splitlines()
    assert len(lines) == 16
    assert [line for line in lines if not line.endswith(" 0 right")] == [
        "wrong size 1", "wrong index 1", "wrong number 1"]


def test_copy_from_a_card_without_a_client_of_the_process_copies_the_right_bytes(
    site_of_three: Site, program: Path
) -> None:
    site = site_of_three
    site.start("--tq", "1")
    owner = apart(site, program, "owner", "2")
    assert owner.stdout is not None
    importer = apart(site, program, "importer", "1")
    said, _ = importer.communicate(owner.stdout.read(64), timeout=PATIENCE)
    assert said.decode().splitlines() == ["from right", "to the other right"]
    assert importer.returncode == 0
    owner.communicate(timeout=PATIENCE)
    assert owner.returncode == 0
