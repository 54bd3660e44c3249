# SPDX-License-Identifier: Apache-2.0
"""Duration of the daemon's part in a hand-over of the card, and its processor time.

All clients want the card. The holder reports IDLE and answers STOP and EVICT at once; no memory is
moved. The holder's next request for the card is not part of the measured time.
"""

import time
from dataclasses import dataclass
from statistics import median, quantiles

from bench.daemon.crowd import Client, Crowd
from bench.daemon.service import Service
from bench.process import megabytes, processor
from nvshared.hook.protocol import Type

WARMING = 20                            # first hand-overs, which are not counted
QUIET = 0.5                             # seconds without a record, after which no order is open


@dataclass(frozen=True, slots=True)
class Latency:
    kind: str
    clients: int
    handovers: int
    released: float                     # from the release of the card to the next RUN; median
    released_99th: float
    stopped: float                      # from STOP to the next client's RUN; median
    stopped_99th: float
    worked: float                       # mean processor time of the daemon for a hand-over
    waited: float                       # mean time that the daemon waited for a processor
    resident: float                     # MB: the daemon's largest resident memory


def measure(service: Service, kind: str, number: int, allocated: int, handovers: int) -> Latency:
    released, stopped = [], []
    with Crowd(service.socket, service.uuid, number, allocated) as crowd:
        for client in crowd.clients:
            client.want()
        holder = _running(crowd)
        crowd.settle(QUIET)
        for _ in range(WARMING):
            holder, _, _ = _hand_over(crowd, holder)
        before = processor(service.pid)
        for _ in range(handovers):
            holder, whole, part = _hand_over(crowd, holder)
            released.append(whole)
            stopped.append(part)
        spent = processor(service.pid).since(before)
        resident = megabytes(service.pid, "VmHWM")
    return Latency(kind, number, handovers, round(median(released), 1), _99th(released),
                   round(median(stopped), 1), _99th(stopped),
                   round(spent.worked / handovers * 1e6, 1),
                   round(spent.waited / handovers * 1e6, 1), resident)


def _99th(values: list[float]) -> float:
    return round(quantiles(values, n=100)[-1], 1)


def _hand_over(crowd: Crowd, holder: Client) -> tuple[Client, float, float]:
    """Makes a hand-over. Returns the next holder, us since the release, and us since STOP."""
    began = time.perf_counter_ns()
    stop_received = began
    following: list[Client] = []

    def heard(client: Client, kind: Type) -> bool:
        nonlocal stop_received
        if kind == Type.STOP:
            stop_received = time.perf_counter_ns()
        elif kind == Type.RUN and client is not holder:
            following.append(client)
        return bool(following)

    holder.say(Type.IDLE)
    crowd.until(heard)
    ended = time.perf_counter_ns()
    holder.want()
    crowd.ask(holder)                   # the daemon has handled the request, too
    return following[0], (ended - began) / 1e3, (ended - stop_received) / 1e3


def _running(crowd: Crowd) -> Client:
    found: list[Client] = []

    def heard(client: Client, kind: Type) -> bool:
        if kind == Type.RUN:
            found.append(client)
        return bool(found)

    crowd.until(heard)
    return found[0]
