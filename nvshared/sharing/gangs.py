# SPDX-License-Identifier: Apache-2.0
"""Gangs: clients of a process, of `run --gang` or of a pod, that run together or not at all.

Kernels of one member may wait for kernels of another, so a gang's gates open only when all members
are resident. Cards are claimed in the order of their indices, and claims are kept: no deadlock.
If one member has submitted more launches than another, not all can drain. So drained members submit
one launch at a time ("steps") until all have drained."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count, groupby

from nvshared.clock import Clock, Timer
from nvshared.machine.tenant import Kind
from nvshared.scheduler.client import Phase
from nvshared.scheduler.events import Ganged, Standing
from nvshared.scheduler.gang import Member
from nvshared.sharing.gpu import GPU, Client
from nvshared.units import MIB, MILLISECOND, SECOND

DORMANT = 5 * SECOND
GATHER = 30 * SECOND
EXCEEDING = 5 * SECOND                  # us until members that do not fit a card are reported
CATCH_UP = 10 * MILLISECOND
PAUSE_MOST = 16 * MILLISECOND           # between two launches of a member in Standing.STEPS
GRANT_LEAST = 5 * SECOND                # us: initial Gang.patience; doubles at each failure,
GRANT_MOST = 320 * SECOND               # up to this
GANG_SHOWN = 8                          # characters of a gang's name that are displayed
OPEN = (Phase.RUNNING, Phase.DRAINING)

logger = logging.getLogger(__name__)


class GangState(Enum):
    NO_TURN = "no turn"                 # the gang has no turn
    LOADING = "loading"                 # all cards are claimed, and members are being loaded
    RUNNING = "running"                 # the members' gates are open
    DRAINING = "draining"               # the members are draining


@dataclass(eq=False)
class Gang:
    number: int
    name: str                           # the displayed name
    size: int                           # processes expected in all; 0: unknown
    clients: list[Client] = field(default_factory=list)
    state: GangState = GangState.NO_TURN
    since: int = 0                      # us: when the state or its last round of steps began
    gathered: bool = False              # all processes have joined, or GATHER has passed
    busy: int | None = None             # us: when a member began to want its card, or None
    awaited: int | None = None          # us: when a wait for missing processes began, or None
    rounds: int = 0                     # number of rounds of steps in the present state DRAINING
    patience: int = GRANT_LEAST         # us within which all members must be loaded
    resuming: bool = False              # a member could not drain, so all members go on
    exceeds: int | None = None          # us: when members on one card ceased to fit, or None
    exceeded: bool = False              # they did not fit for EXCEEDING, which was reported
    sent: dict[Client, Ganged] = field(default_factory=dict)    # last event sent, its id removed
    forms: bool = False                 # several clients, no two of one process on one card

    def __str__(self) -> str:
        return f"gang {self.name}"

    @property
    def joined(self) -> int:
        return len({_process(one) for one in self.clients})

    def turn(self, state: GangState, now: int) -> None:
        self.state, self.since, self.rounds, self.resuming = state, now, 0, False


Members = dict[Client, Member]


class Gangs:
    """All gangs. Each event of a card causes a review of the gangs with a member on that card."""
    def __init__(self, clock: Clock, timer: Timer) -> None:
        self._draining = False
        self._clock, self._timer = clock, timer
        self._gangs: dict[object, Gang] = {}
        self._stale: dict[Gang, None] = {}      # gangs to review
        self._numbers = count(1)
        self._reviewing = False
        self._deadline: int | None = None

    def join(self, client: Client) -> None:
        key, name, size = _gang_of(client)
        if key is None:
            return
        gang = self._gangs.setdefault(key, Gang(next(self._numbers), name, size))
        gang.clients.append(client)
        self._form(gang)
        self.review()

    def leave(self, client: Client) -> None:
        key, *_ = _gang_of(client)
        if key is not None:
            gang = self._gangs[key]
            gang.clients.remove(client)
            gang.sent.pop(client, None)
            self._form(gang)
            if not gang.clients:
                del self._gangs[key]
        self.review()

    def _form(self, gang: Gang) -> None:
        self._stale.pop(gang, None)
        places = {(one.gpu, _process(one)) for one in gang.clients}
        several = len(gang.clients) > 1 or gang.size > 1
        gang.forms = several and len(places) == len(gang.clients)
        if gang.forms:
            self._stale[gang] = None
            return
        if gang.sent:
            gang.turn(GangState.NO_TURN, self._clock())
            self._set_standing(gang, gang.clients, Standing.FREE)

    def drain(self, on: bool) -> None:
        """Dissolves gangs while the daemon drains, so that clients can run without the daemon."""
        self._draining = on
        self._review_all()

    def happened(self, gpu: GPU) -> None:
        self._stale |= dict.fromkeys(self._forming_on(gpu))
        self.review()

    def _forming_on(self, gpu: GPU) -> list[Gang]:
        return [one for one in self._gangs.values() if one.forms
                and any(client.gpu is gpu for client in one.clients)]

    def _review_all(self) -> None:
        self._deadline = None           # _due() sets it again, if a review is due later
        self._stale |= dict.fromkeys(one for one in self._gangs.values() if one.forms)
        self.review()

    def review(self) -> None:
        """Reviews the gangs in `_stale` until none is left. No-op during a review."""
        if self._reviewing:
            return
        self._reviewing = True
        try:
            while self._stale:
                gang = next(iter(self._stale))
                del self._stale[gang]
                self._review(gang, self._clock())
        finally:
            self._reviewing = False

    def _review(self, gang: Gang, now: int) -> None:
        seen = ((one, one.gpu.scheduler.member(one.id)) for one in gang.clients if not one.gpu.lost)
        every: Members = {client: member for client, member in seen if member is not None}
        sent = {client: event.standing for client, event in gang.sent.items()}
        if any(m.standing is not sent.get(c, Standing.FREE) for c, m in every.items()):
            return                      # a card's scheduler has yet to handle its last Ganged event
        if not self._gathered(gang, every, now):
            self._set_standing(
                gang, [one for one in every if every[one].phase is not Phase.RUNNING])
            return
        if not any(m.wants for m in every.values()):
            gang.busy = None
        elif gang.busy is None:
            gang.busy = now
        members = {c: m for c, m in every.items() if not self._dormant(gang, m, now)}
        heavy = {c.gpu for c, m in members.items() if not m.needs_no_room}
        apart = self._draining or len(heavy) < 2 or any(m.unresponsive for m in every.values())
        if apart or not self._together(gang, members, now):
            if gang.state is not GangState.NO_TURN:
                gang.turn(GangState.NO_TURN, now)
            self._set_standing(gang, every, Standing.FREE)
            return
        self._set_standing(gang, every.keys() - members.keys())
        if gang.state is GangState.NO_TURN and any(
            m.phase in OPEN and not m.parked for m in members.values()
        ):
            gang.turn(GangState.RUNNING, now)    # the gang formed while members were running
        match gang.state:
            case GangState.NO_TURN:
                self._claim(gang, members, now)
            case GangState.LOADING:
                self._enter(gang, members, now)
            case GangState.RUNNING:
                self._run(gang, members, now)
            case GangState.DRAINING:
                self._end(gang, members, now)

    def _gathered(self, gang: Gang, every: Members, now: int) -> bool:
        if gang.gathered or gang.joined >= gang.size or self._draining:
            gang.gathered = True
        elif gang.awaited is None and any(m.wants for m in every.values()):
            gang.awaited = now
        if gang.gathered or gang.awaited is None or not self._due(gang.awaited + GATHER, now):
            return gang.gathered
        logger.warning(
            "%s: only %d of %d processes have come; they do not wait for the others any more",
            gang, gang.joined, gang.size)
        gang.gathered = True
        return True

    def _dormant(self, gang: Gang, member: Member, now: int) -> bool:
        if member.phase is not Phase.IDLE or gang.busy is None:
            return False
        return self._due(max(member.since, gang.busy) + DORMANT, now)

    def _together(self, gang: Gang, members: Members, now: int) -> bool:
        """Marks members that exceed their card as crowded. False: give each turns of its own."""
        for crowded in _by_card(members):
            needed = sum(members[one].unpinned_need for one in crowded)
            room = members[crowded[0]].room_if_alone
            if needed > room and not any(members[one].crowded for one in crowded):
                break
        else:
            gang.exceeds = None
            return True
        for one in crowded:
            members[one] = members[one]._replace(crowded=True)
        if gang.exceeds is None:
            gang.exceeds = now
        if not (gang.exceeded or self._due(gang.exceeds + EXCEEDING, now)):
            return True
        chosen = any(one.peer.gang for one in members)
        if not gang.exceeded:
            logger.warning(
                "%s: its programs on %s need %d MiB together, and no more than %d MiB of the GPU "
                "can be had: %s", gang, crowded[0].gpu, needed // MIB, room // MIB,
                "it waits" if chosen else "each has turns of its own")
        gang.exceeded = True
        return chosen

    def _claim(self, gang: Gang, members: Members, now: int) -> None:
        able = all(_able(m) and self._due(m.not_before, now) for m in members.values())
        if not able or not any(m.wants for m in members.values()):
            self._set_standing(gang, members)
            return
        claiming = Standing.CLAIMS
        for on_card in _by_card(members):
            heavy = [one for one in on_card if not members[one].needs_no_room]
            self._set_standing(gang, heavy, claiming)
            if not all(members[one].ready for one in heavy):
                claiming = Standing.APART
        if claiming is Standing.CLAIMS:
            gang.turn(GangState.LOADING, now)
            self._set_standing(gang, members, Standing.GRANTED)

    def _enter(self, gang: Gang, members: Members, now: int) -> None:
        """Opens the gates of a gang once all members are resident on the cards it has claimed."""
        late = self._due(gang.since + gang.patience, now)
        if late or not all(_able(m) and m.not_before <= now for m in members.values()):
            gang.patience = min(2 * gang.patience, GRANT_MOST) if late else gang.patience
            gang.turn(GangState.NO_TURN, now)
            self._set_standing(gang, members)
        elif all(m.phase in OPEN or _is_loaded(m) for m in members.values()):
            gang.patience = GRANT_LEAST
            gang.turn(GangState.RUNNING, now)
            self._set_standing(gang, members, Standing.OPEN)
        else:
            self._set_standing(gang, members, Standing.GRANTED)

    def _run(self, gang: Gang, members: Members, now: int) -> None:
        """Ends the turn of a gang that is idle or has a held-up member; else updates standings."""
        held_up = {
            c for c, m in members.items() if m.phase is Phase.DRAINING and not m.is_permanent}
        # Work in flight on one card may wait for work on another, so all members are paced.
        paced = any(m.contended for m in members.values())
        # From _latest() on members may be stopped again, which ends the turn: OPEN would undo that.
        gang.resuming = gang.resuming and not self._due(_latest(members), now)
        if gang.resuming:
            for client in [one for one, m in members.items() if m.parked]:
                gang.sent.pop(client, None)     # it drained after OPEN was sent: send OPEN again
            self._set_standing(
                gang, members, Standing.OPEN, stop_after=_latest(members), paced=paced)
            gang.resuming = bool(held_up)
            return
        # A running, fully resident member goes on although the card shrank, like a single client.
        held_up = held_up or {c for c, m in members.items() if m.held_up or (
            m.crowded and m.wants and m.phase not in OPEN)}
        running = [m for m in members.values() if m.phase is Phase.RUNNING]
        # If all members are of one process, one idle member shows that the process is idle.
        is_one_process = len({one.peer.pid for one in members}) == 1
        is_idle = any(m.idle and m.contended for m in running) and (
            is_one_process or all(m.idle for m in running))
        if not any(m.phase in OPEN or m.phase is Phase.LOADING for m in members.values()):
            gang.turn(GangState.NO_TURN, now)
            self._stale[gang] = None
        elif held_up or is_idle:
            gang.turn(GangState.DRAINING, now)
            self._set_standing(gang, members, Standing.ENDS)
            self._stale[gang] = None
        else:
            waiting = [c for c, m in members.items() if m.wants and m.phase not in OPEN]
            waiting = [one for one in waiting if not _is_loaded(members[one])]
            for gpu in {one.gpu: None for one in waiting if not members[one].needs_no_room}:
                self._take_back_grants(gang, gpu, now)
            inactive = [c for c, m in members.items() if m.phase is Phase.IDLE and not m.wants]
            self._set_standing(gang, waiting, Standing.GRANTED)
            self._set_standing(gang, inactive)
            active = members.keys() - {*waiting, *inactive}
            self._set_standing(gang, active, Standing.OPEN, paced=paced)

    def _take_back_grants(self, late: Gang, gpu: GPU, now: int) -> None:
        for gang in self._forming_on(gpu):
            if gang is not late and gang.state is GangState.LOADING:
                gang.turn(GangState.NO_TURN, now)
                self._set_standing(gang, gang.clients)

    def _end(self, gang: Gang, members: Members, now: int) -> None:
        """Drains all members. Drained members step while other members cannot drain."""
        active = {c: m for c, m in members.items() if m.phase in OPEN and not m.is_permanent}
        parked = [c for c, m in active.items() if m.parked]
        draining = [c for c, m in active.items() if m.phase is Phase.DRAINING and not m.parked]
        running = [c for c, m in active.items() if m.phase is Phase.RUNNING]
        if any(active[one].stop_after > now for one in running):
            gang.turn(GangState.RUNNING, now)
            gang.resuming = True
            self._set_standing(gang, members, Standing.OPEN, stop_after=_latest(members))
        elif not draining and not running:
            gang.turn(GangState.NO_TURN, now)
            self._set_standing(gang, members)
            self._stale[gang] = None
        elif draining and parked and self._due(gang.since + CATCH_UP, now):
            # Pauses grow: the end of the others' drains must be known before the next launch.
            pause = min((1 << gang.rounds) * MILLISECOND // 2, PAUSE_MOST) if gang.rounds else 0
            wanting = [one for one in parked if active[one].wants]
            self._set_standing(gang, wanting, Standing.STEPS, pause=pause)
        elif running and not draining:
            if any(gang.sent[one].standing is Standing.STEPS for one in running):
                gang.since = now
                gang.rounds += 1
            self._set_standing(gang, members, Standing.ENDS)

    def _set_standing(
        self, gang: Gang, members: Iterable[Client], standing: Standing = Standing.APART,
        *, pause: int = 0, stop_after: int = 0, paced: bool = False,
    ) -> None:
        news: dict[GPU, list[int]] = {}
        event = Ganged((), gang.number, standing, pause, stop_after, paced)
        for client in sorted(members, key=_claim_order):
            before = gang.sent.get(client)
            if event == before or (before is None and standing is Standing.FREE):
                continue
            gang.sent[client] = event
            client.join_gang(gang.name)
            if standing is Standing.FREE:
                del gang.sent[client]
                client.join_gang("")
            news.setdefault(client.gpu, []).append(client.id)
        for gpu, ids in news.items():
            gpu.tell(replace(event, clients=tuple(ids)))

    def _due(self, moment: int, now: int) -> bool:
        """Whether the time `moment` has come. If not, a review of all gangs is scheduled for it."""
        if moment <= now:
            return True
        if self._deadline is None or moment < self._deadline:
            self._deadline = moment
            self._timer(moment, self._review_all)
        return False


def _is_loaded(member: Member) -> bool:
    return member.phase is Phase.LOADING and member.whole


def _able(member: Member) -> bool:
    return not (member.crowded or member.held_up)


def _latest(members: Members) -> int:
    """The earliest time in us at which all members may be stopped after a failed drain."""
    return max(member.stop_after for member in members.values())


def _by_card(members: Iterable[Client]) -> list[list[Client]]:
    """Returns the members of each card, in the order in which cards are claimed."""
    in_order = sorted(members, key=_claim_order)
    return [[*on_card] for _, on_card in groupby(in_order, key=lambda one: one.gpu.facts.index)]


def _claim_order(client: Client) -> tuple[int, int]:
    return client.gpu.facts.index, client.id


def _process(client: Client) -> int:
    """The client's pid; for a client with unknown pid a unique negative number."""
    return client.peer.pid or -client.id


def _gang_of(client: Client) -> tuple[object, str, int]:
    """The gang's key, its name and the number of processes expected; key None: no gang."""
    peer = client.peer
    if peer.gang:
        # Owner and tenant are part of the key: other users' gangs may have the same name.
        return (peer.owner, peer.tenant, peer.gang), peer.gang[:GANG_SHOWN], peer.gang_size
    if peer.tenant.kind is Kind.POD:
        return (peer.owner, peer.tenant), str(peer.tenant), 0
    return (peer.pid, str(peer.pid), 0) if peer.pid else (None, "", 0)
