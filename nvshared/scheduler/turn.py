# SPDX-License-Identifier: Apache-2.0
"""One turn of a client; turns.py decides when it begins and ends."""

from dataclasses import dataclass, replace

from nvshared.scheduler import events
from nvshared.scheduler.actions import Run, TurnEnd
from nvshared.scheduler.records import Direction
from nvshared.units import SECOND

OTHERS_IDLE = 2 * SECOND                # idle window if no client waits and no memory need move


@dataclass(slots=True)
class Turn:
    """A turn of a client, from its choice to the end of the drain."""

    serial: int                         # increases with each turn on the card
    # Serials of the turns under way when the client overtook the blocked head of the queue. The
    # client's turn ends as soon as the first of these turns ends.
    ends_with: frozenset[int] = frozenset()
    started: int | None = None          # when RUN was sent
    renewed: int = 0                    # when its last further quantum began; 0: none began
    idle: bool = False                  # IDLE arrived after the RUN that requested it
    rests_since: int | None = None      # since when it is idle, by the last IDLE; None: it works
    last_run: Run | None = None
    copying: frozenset[Direction] = frozenset()  # directions of the program's copies
    busy: int | None = None             # when BUSY last reported a second without a gap
    bytes_missing: int | None = None    # to load when chosen as Card.head; None: not the head
    swapped: int = 0                    # swapped bytes of the client when it was chosen
    ending: TurnEnd | None = None       # why STOP was sent
    preempted: bool = False             # may end before its quantum is over
    stop_after: int = 0                 # earliest next STOP, after a drain that did not end
    reported: bool = False              # the client was reported as stuck in this drain
    parked: events.Stopped | None = None    # STOPPED, kept until the gang has drained; see gang.py
    resumed: bool = False               # the turn continued after it was parked

    @property
    def counted(self) -> int:
        """The time from which the current quantum is measured, once the turn has begun."""
        return max(self.started or 0, self.renewed)

    def start(self, now: int) -> None:
        self.started = now

    def renew(self, now: int) -> None:
        self.renewed = now

    def preempt(self) -> None:
        """Lets the turn end before its quantum is over."""
        self.preempted = True

    def run(self, run: Run, *, copies: bool) -> None:
        """Records a RUN. Reports that it does not request count no more; `copies`: it requests
        reports of copies as the RUNs of other clients do."""
        if not copies:
            self.copying = frozenset()
        if not run.report_idle:
            self.rests_since = None
        if not run.report_idle or run.idle_window == OTHERS_IDLE:
            self.idle = False           # the hook sends IDLE again once a RUN requests IDLE
        if not run.report_busy:
            self.busy = None
        self.last_run = run

    def note(self, report: events.Record, run: Run, now: int) -> None:
        """Records IDLE, COPIES and BUSY, except reports that only a RUN before `run` requested."""
        match report:
            case events.WentIdle() if run.report_idle:
                # A program idle for OTHERS_IDLE may work again by now: its hook rarely looks.
                self.idle = not report.resumed and run.idle_window != OTHERS_IDLE
                if report.resumed:
                    self.rests_since = None
                elif self.rests_since is None:
                    self.rests_since = now - run.idle_window
            case events.Copies() if run.report_copies:
                loaded = ((Direction.IN, report.inward), (Direction.OUT, report.outward))
                self.copying = frozenset(direction for direction, is_loaded in loaded if is_loaded)
            case events.Busy() if run.report_busy:
                self.busy = None if report.gaps else now
                if not report.gaps:
                    self.rests_since = None     # it has worked for longer than since its IDLE

    def stop(self, why: TurnEnd) -> None:
        self.ending, self.reported = why, False

    def report_stuck(self) -> None:
        self.reported = True

    def postpone(self, until: int) -> None:
        """Lets no STOP be sent before the time `until`, after a drain that did not end."""
        self.stop_after = until

    def resume(self) -> None:
        """The turn goes on after a drain of the client, or of another gang member, did not end."""
        self.resumed = self.resumed or self.parked is not None
        self.parked = self.ending = self.last_run = self.busy = None    # so that a RUN is sent
        self.idle, self.rests_since, self.copying = False, None, frozenset()

    def park(self, answer: events.Stopped) -> None:
        """Keeps the client's STOPPED until its gang has drained."""
        self.parked = replace(answer, used=None) if self.resumed else answer
        self.reported = False

    def want(self) -> None:
        if self.parked is not None:
            self.parked = replace(self.parked, wants=True)
