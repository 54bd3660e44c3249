# SPDX-License-Identifier: Apache-2.0
"""nvshared as its command line sees it: ask, wait, read the answer.

    with Client("system") as client:
        for gpu in client.snapshot().gpus:
            print(gpu.name, gpu.tq)

Everything a client wants to know comes with one question; and neither asyncio
nor dbus-next is imported, since a command should be over before it is noticed.
"""

import sys
from types import TracebackType
from typing import Self

from nvshared.client.connection import Connection, Question
from nvshared.client.snapshot import Snapshot, snapshot
from nvshared.names import MANAGER_INTERFACE, MANAGER_PATH

_PROPERTIES = Question(
    MANAGER_PATH, "org.freedesktop.DBus.Properties", "GetAll", "s", (MANAGER_INTERFACE,)
)
_OBJECTS = Question(MANAGER_PATH, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects")


class Client:
    """A connection to nvshared. All methods raise an NvshareError when they fail."""

    def __init__(self, bus: str = "system") -> None:
        """`bus` is system, session or an address."""
        self._connection = Connection(bus)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def snapshot(self) -> Snapshot:
        """Everything as it is now."""
        (properties,), (objects,) = self._connection.ask(_PROPERTIES, _OBJECTS)
        return snapshot(properties, objects)

    def gpu(self, name: str) -> int:
        """The index of the GPU that goes by this index, UUID or PCI address."""
        question = Question(MANAGER_PATH, MANAGER_INTERFACE, "GetGPU", "s", (name,))
        ((path,),) = self._connection.ask(question)
        return int(path.rpartition("/")[2])

    def set_tq(self, seconds: int, gpu: str | None = None) -> None:
        """The quantum of one GPU (index, UUID or PCI address), or of all."""
        if gpu is None:
            self._change("SetTQ", "u", seconds)
        else:
            self._change("SetGPUTQ", "su", gpu, seconds)

    def set_anti_thrash(self, mode: str, gpu: str | None = None) -> None:
        """auto, on or off; for one GPU or for all."""
        if gpu is None:
            self._change("SetAntiThrash", "s", mode)
        else:
            self._change("SetGPUAntiThrash", "ss", gpu, mode)

    def reload(self) -> None:
        """Has the configuration read again."""
        self._change("Reload", "")

    def reset_settings(self) -> None:
        """Forgets what was changed at run time."""
        self._change("ResetSettings", "")

    def _change(self, member: str, signature: str, *body: str | int) -> None:
        question = Question(MANAGER_PATH, MANAGER_INTERFACE, member, signature, body)
        self._connection.ask(question, interactive=sys.stdin is not None and sys.stdin.isatty())
