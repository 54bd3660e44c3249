# SPDX-License-Identifier: Apache-2.0
"""Reports to nvshared that kubelet cannot be reached: nvsharectl, metrics and alerts show it."""

import logging

from nvshared.control import Daemon
from nvshared.errors import NvshareError

logger = logging.getLogger(__name__)

FAULT = "kubelet-unreached"             # a row of nvshared.faults.KINDS
PATIENCE = 5.0                          # most seconds until nvshared replies


class ReportedFault:
    """The fault, over a connection of its own: nvshared ends the fault when that ends, also with
    this process."""

    def __init__(self, bus: str) -> None:
        self._bus = bus
        self._daemon: Daemon | None = None
        self._error = ""

    def set(self, detail: str) -> None:
        """Reports the fault, also if it is reported already: nvshared may have been restarted.
        `detail`: why kubelet is not reached; "": it is. Blocks."""
        if not detail:
            self._close()
            return
        try:
            if self._daemon is None:
                self._daemon = Daemon(self._bus, PATIENCE)
            self._daemon.report_fault(FAULT, detail)
            self._error = ""
        except NvshareError as error:   # nvshared or the bus is away; the caller repeats the call
            self._close()
            if str(error) != self._error:
                logger.info("nvshared is not told that kubelet is not reached: %s", error)
            self._error = str(error)

    def _close(self) -> None:
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None
