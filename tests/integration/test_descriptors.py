# SPDX-License-Identifier: Apache-2.0
"""Descriptors that a client sends to the daemon are not kept open, and delay no other client."""

import os
import socket

import pytest

from nvshared.hook.protocol import ReportRecord, Type
from tests.integration.conftest import Site
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
