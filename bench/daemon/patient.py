# SPDX-License-Identifier: Apache-2.0
"""nvshared that keeps connections without HELLO, so that those of an attack stay open until the
attack ends, and says at its end how long its event loop stood until then: python -m
bench.daemon.patient OPTIONS."""

import selectors
import sys
import time

from nvshared import daemon
from nvshared.hook import connection
from nvshared.report import systemd
from nvshared.units import SECOND


class WatchedSelector(selectors.DefaultSelector):
    """Measures how long the event loop takes between two calls of select()."""

    longest = 0.0, 0.0                  # between two calls, and its CPU time; seconds
    woke = 0.0, 0.0
    measures = True

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        before, now = WatchedSelector.woke, (time.monotonic(), time.thread_time())
        if before[0] and WatchedSelector.measures:
            WatchedSelector.longest = max(
                WatchedSelector.longest, (now[0] - before[0], now[1] - before[1]))
        try:
            return super().select(timeout)
        finally:
            WatchedSelector.woke = time.monotonic(), time.thread_time()


class Ready(systemd.Notifier):
    def ready(self) -> None:
        """Excludes the start from the measurement."""
        super().ready()
        WatchedSelector.longest = WatchedSelector.woke = 0.0, 0.0

    def stopping(self) -> None:
        """Excludes the end, at which all connections are closed in one go."""
        super().stopping()
        WatchedSelector.measures = False


if __name__ == "__main__":
    connection.HELLO_WITHIN = 3600 * SECOND
    selectors.DefaultSelector = WatchedSelector     # type: ignore[misc]
    systemd.Notifier = Ready            # type: ignore[misc]
    status = daemon.main()
    print("the event loop stood for {:.3f} s at most, of which it ran for {:.3f} s".format(
        *WatchedSelector.longest), file=sys.stderr)
    sys.exit(status)
