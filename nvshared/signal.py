# SPDX-License-Identifier: Apache-2.0
"""Signals between objects: lists of functions that are called synchronously and in order.

    class GPU:
        def __init__(self) -> None:
            self.client_new: Signal[Client] = Signal("client_new")

    gpu.client_new.connect(publish)        # publish(client) from now on
    gpu.client_new.emit(client)

The emitting object does not know the listeners. If a listener raises an exception, it is logged
with its traceback, and the other listeners are called nevertheless. So a failure of the bus cannot
make a hand-over fail.
"""

import logging
from collections.abc import Callable
from typing import Generic, TypeVarTuple

Values = TypeVarTuple("Values")

logger = logging.getLogger(__name__)


class Signal(Generic[*Values]):
    """A named list of listeners, each called with the arguments of `emit`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._listeners: list[Callable[[*Values], None]] = []

    def connect(self, listener: Callable[[*Values], None]) -> Callable[[], None]:
        """Calls `listener` at each emit from now on. Returns a function that disconnects it."""
        self._listeners.append(listener)

        def disconnect() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return disconnect

    def emit(self, *values: *Values) -> None:
        """Calls all listeners that are connected when emit() begins."""
        for listener in tuple(self._listeners):
            try:
                listener(*values)
            except Exception:
                logger.exception("a listener of %s failed", self.name)
