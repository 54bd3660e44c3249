# SPDX-License-Identifier: Apache-2.0
"""Descriptors that a client sends to the daemon are not kept open, and delay no other client."""

import os
import resource
import socket
from pathlib import Path

import pytest

from nvshared.hook.protocol import ReportRecord, Type
from tests.integration.conftest import Site, Start, wait_until
from tests.records import encode_report


@pytest.mark.parametrize("greeted", [False, True])
def test_descriptors_that_a_client_sends_are_refused_by_the_kernel_or_closed_by_the_daemon(
    site: Site, greeted: bool
) -> None:
    site.start()
    hook = site.hook()
    if greeted:
        hook.hello()
    reading, writing = os.pipe()
    try:
        socket.send_fds(hook.socket, [encode_report(ReportRecord(Type.MEMORY))], [writing])
    except PermissionError:             # Linux 6.16 and later refuse descriptors
        assert greeted or hook.hello() is not None
    else:
        while hook.hear() is not None:
            continue
    os.close(writing)
    assert os.read(reading, 1) == b"", "the daemon keeps it open"
    os.close(reading)
    assert site.hook().hello() is not None


@pytest.mark.parametrize("free", [0, 3])       # 3: it accepts a client that it cannot watch
def test_daemon_without_a_free_descriptor_shows_the_fault_few_descriptors(
        site: Site, start: Start, free: int) -> None:
    control = start("--max-clients", "64")
    daemon = site.started[-1].pid
    before = resource.prlimit(daemon, resource.RLIMIT_NOFILE)
    taken = max(int(one.name) for one in Path(f"/proc/{daemon}/fd").iterdir()) + 1

    def has_fault() -> bool:
        return "few-descriptors" in {fault.id for fault in control.snapshot().all_faults}

    assert not has_fault()
    resource.prlimit(daemon, resource.RLIMIT_NOFILE, (taken + free, before[1]))
    for _ in range(20):
        site.hook()
    wait_until(has_fault)
    resource.prlimit(daemon, resource.RLIMIT_NOFILE, before)
    wait_until(lambda: not has_fault())
    assert site.hook().hello() is not None
