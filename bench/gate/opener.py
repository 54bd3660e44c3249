# SPDX-License-Identifier: Apache-2.0
"""The least daemon there can be: lets whoever says HELLO run, at once and for ever."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nvshared.hook.protocol import Limits, Record, Type, decode, encode

PLENTY = 1 << 40                        # bytes; nothing is allocated


@contextmanager
def opener(path: Path) -> Iterator[None]:
    """Listens at `path` for one program while the block lasts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen(1)
        thread = threading.Thread(target=_serve, args=(listening,), daemon=True)
        thread.start()
        yield


def _serve(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        while packet := connection.recv(4096):
            if decode(packet).type is not Type.HELLO:
                continue
            limits = Limits(commit=PLENTY, most=PLENTY, total=PLENTY, host_slab=1 << 20)
            connection.send(encode(Record(Type.WELCOME, limits=limits)))
            connection.send(encode(Record(Type.RUN)))
