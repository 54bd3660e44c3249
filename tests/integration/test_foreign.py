# SPDX-License-Identifier: Apache-2.0
"""Descriptors of anything are sent to the daemon, which goes on serving others."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshared.errors import ProtocolError
from nvshared.hook import foreign, protocol
from nvshared.hook.protocol import OrderRecord, ReportRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakehook import PATIENCE, Hook
from tests.integration.silent import Silent
from tests.integration.test_passed import played


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Silent]:
    folder = tmp_path / "silent"
    folder.mkdir()
    try:
        made = Silent(folder)
    except OSError as error:
        pytest.skip(f"this process may mount no file system of its own: {error}")
    yield made
    made.close()


def hand_over(hook: Hook, descriptor: int, record: ReportRecord) -> None:
    """Sends it along with a record."""
    socket.send_fds(hook.socket, [protocol.encode_report(record)], [descriptor])


def passed(hook: Hook, order: OrderRecord, size: int) -> ReportRecord:
    """That this is memory of so many bytes."""
    return ReportRecord(Type.PASSED, number=order.number, memory=hook.memory, moved=size)


def is_dropped(hook: Hook) -> bool:
    """Whatever it hears until then."""
    while hook.hear() is not None:
        continue
    return True


def test_a_file_whose_maker_does_not_answer_holds_nobody_up(site: Site, silent: Silent) -> None:
    hook, order = played(site)
    hand_over(hook, silent.open(), passed(hook, order, 2 * MIB))
    assert is_dropped(hook)
    assert site.hook().hello() is not None


def test_such_a_file_does_not_hold_up_the_daemons_end(site: Site, silent: Silent) -> None:
    hook, order = played(site)
    hand_over(hook, silent.open(), passed(hook, order, 2 * MIB))
    assert is_dropped(hook)
    daemon = site.started[-1]
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0


def test_nothing_is_taken_from_who_has_sent_one_nor_after_too_many(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "KEPT_MOST", 2)
    monkeypatch.setattr(foreign, "_kept", {})
    reading, writing = os.pipe()
    for tenant, descriptor in (("ann", reading), ("bob", writing)):
        assert foreign.are_taken(tenant)
        with pytest.raises(ProtocolError):
            foreign.check(descriptor, tenant)
        assert not foreign.are_taken(tenant)
    assert not foreign.are_taken("eve")
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_a_block_of_no_bytes_is_not_taken(site: Site) -> None:
    hook, order = played(site)
    descriptor = os.open(site.folder / "memory", os.O_CREAT | os.O_RDWR)
    hand_over(hook, descriptor, passed(hook, order, 0))
    os.close(descriptor)
    assert is_dropped(hook)
    assert site.hook().hello() is not None


def test_who_was_not_asked_for_memory_may_send_none(site: Site) -> None:
    """Even a descriptor that nobody takes may hold up who lets go of it: of a TCP connection that
    lingers."""
    one, other = socket.socketpair()
    with one, other:
        try:
            one.getsockopt(socket.SOL_SOCKET, foreign.SO_PASSRIGHTS)
        except OSError:
            pytest.skip("this kernel refuses no descriptors")
        site.start()
        hook = site.hook()
        with pytest.raises(PermissionError):
            hand_over(hook, one.fileno(), ReportRecord(Type.MEMORY))
        hook.hello()
        with pytest.raises(PermissionError):
            hand_over(hook, one.fileno(), ReportRecord(Type.MEMORY))
