# SPDX-License-Identifier: Apache-2.0
"""A user who connects to a card's socket without pause does not hold up the event loop."""

import os
import socket
from dataclasses import replace

import pytest

from nvshared.sharing.rivals import RIVALS_MOST, _address, _Post
from tests.unit.scripted import FACTS


def test_look_for_other_daemons_accepts_a_bounded_number_of_connections() -> None:
    facts = replace(FACTS, uuid=f"GPU-{os.getpid()}")
    post = _Post(facts)
    assert post.look() == []
    callers = []
    for _ in range(RIVALS_MOST + 1):
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.connect(f"\0{_address(facts)}")
        caller.setblocking(False)
        callers.append(caller)
    for _ in range(2):
        assert len(post.look()) == RIVALS_MOST
        with pytest.raises(BlockingIOError):
            callers[-1].recv(1)         # it waits in the kernel's queue
    callers.pop(0).close()
    assert len(post.look()) == RIVALS_MOST
    for caller in callers:
        caller.close()
    assert post.look() == []
    post.close()
