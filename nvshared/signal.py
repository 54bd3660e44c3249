# SPDX-License-Identifier: Apache-2.0
"""Signals between objects: lists of functions that are called synchronously and in order.

A listener's exception is logged, and the others are called: no listener makes a hand-over fail."""

import logging
from collections.abc import Callable
from typing import Generic, TypeVarTuple

Values = TypeVarTuple("Values")

logger = logging.getLogger(__name__)


class Signal(Generic[*Values]):
    def __init__(self, name: str) -> None:
        self.name = name
        self._listeners: list[Callable[[*Values], None]] = []

    def connect(self, listener: Callable[[*Values], None]) -> None:
        """Calls `listener` at each emit from now on."""
        self._listeners.append(listener)

    def emit(self, *values: *Values) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(*values)
            except Exception:
                logger.exception("a listener of %s failed", self.name)
