# SPDX-License-Identifier: Apache-2.0
"""Publishes a manager on a message bus, and reconnects when the bus was restarted."""

import asyncio
import logging
from collections.abc import Sequence

from dbus_next.constants import ErrorType, NameFlag, RequestNameReply

from nvshared.bus import services
from nvshared.bus.connection import BusConnection
from nvshared.bus.dispatch import Bus
from nvshared.clock import repeat
from nvshared.dbus import BUS, BusError, locate
from nvshared.errors import AlreadyRunning, BusUnavailable, NotPermitted, NvshareError
from nvshared.history import History
from nvshared.names import BUS_NAME, LOG_CONTROL_PATH, MANAGER_PATH, client_path, gpu_path
from nvshared.scheduler import actions
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.events import ClientEvent, Event, Ganged, Tick
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import take_samples

logger = logging.getLogger(__name__)

RETRY = 1.0                             # seconds between attempts to reconnect to the bus


async def publish(manager: Manager, bus: str, history: History | None = None) -> "Publication":
    """Puts the manager on a bus. Raises BusUnavailable, NotPermitted, AlreadyRunning."""
    publication = Publication(manager, bus, history)
    try:
        await publication.connect()
    except BaseException as error:
        await publication.close()
        if isinstance(error, BusUnavailable):
            error.hint += "; or do without D-Bus: --bus none"
        raise
    return publication


class Publication:
    def __init__(self, manager: Manager, bus: str, history: History | None = None) -> None:
        self._address = bus
        self._bus = Bus(self._refresh, polkit=bus == "system")
        self._connection: BusConnection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._clients: dict[int, services.ClientInterface] = {}
        self._manager = manager
        self._manager_interface = services.ManagerInterface(manager, history)
        self._bus.export(MANAGER_PATH, self._manager_interface)
        self._bus.export(LOG_CONTROL_PATH, services.LogControl())
        # These listeners stay connected after close(): without a bus connection they are no-ops.
        manager.tenancy.renamed.connect(lambda client: self._client_changed(client.id))
        manager.changed.connect(lambda: self._bus.changed(self._manager_interface))
        manager.gpu_new.connect(self._gpu_new)
        manager.gpu_removed.connect(self._gpu_removed)
        for gpu in manager.gpus:
            self._gpu_new(gpu)
        for client in manager.clients:
            self._client_new(client)

    async def _refresh(self) -> None:
        """Updates the figures and faults of all GPUs."""
        await asyncio.gather(take_samples(self._manager.gpus), self._manager.look_for_faults())

    async def close(self) -> None:
        """Answers pending calls, sends queued signals, and disconnects from the bus."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._bus.announce(float("inf"))
        await self._bus.close()
        if self._connection is not None:
            await self._connection.close()
        self._bus.attach(None)

    async def connect(self) -> None:
        await self._connect()
        self._keeper = asyncio.get_running_loop().create_task(repeat(RETRY, self._keep))

    async def _connect(self) -> None:
        connection = await BusConnection.open(locate(self._address), self._bus.take)
        self._bus.attach(connection)
        try:
            await _own(connection, BUS_NAME)
        except BaseException:
            self._bus.attach(None)
            await connection.close()
            raise
        self._connection = connection
        self._manager.faults.set("bus-lost", "")

    async def _keep(self) -> None:
        """Waits until the connection to the bus is lost or, without a connection, reconnects."""
        if self._connection is None:
            try:
                await self._connect()
                logger.info("back on the message bus %r", self._address)
            except NvshareError as error:
                logger.debug("still without a message bus: %s", error)
            return
        reason = ""
        try:
            await asyncio.shield(self._connection.reading)
        except Exception as error:      # after any error the connection is lost
            reason = str(error)
        logger.error("lost the message bus %r (%s); sharing goes on", self._address,
                     reason or "it closed the connection")
        self._bus.attach(None)
        self._connection = None
        self._manager.faults.set("bus-lost", reason or "it closed the connection")

    def _gpu_new(self, gpu: GPU) -> None:
        interface = services.GPUInterface(self._manager, gpu)
        self._bus.export(gpu_path(gpu.facts.index), interface)
        self._bus.export(gpu_path(gpu.facts.index), services.StatisticsInterface(gpu))

        def happened(_now: int, event: Event) -> None:
            if isinstance(event, Tick):
                for id in gpu.clients.keys() & self._clients.keys():
                    # Only the start and the end of a wait for a compute window emit no action.
                    shown = self._clients[id].shown["State"]
                    if gpu.clients[id].view.rationed or shown == ClientState.LIMITED:
                        self._client_changed(id)
            elif isinstance(event, Ganged):
                for member in event.clients:
                    self._client_changed(member)
            elif isinstance(event, ClientEvent):
                self._client_changed(event.client)

        def decided(_now: int, _event: Event, caused: Sequence[actions.Action]) -> None:
            for action in caused:
                self._client_changed(action.client)

        def reported(client: Client, report: actions.Action) -> None:
            path = client_path(client.id)
            match report:
                case actions.TurnStarted():
                    interface.emit(interface.turn_started, path)
                case actions.TurnEnded():
                    reason = str(report.reason)
                    interface.emit(interface.turn_ended, path, reason, report.held_time)
                case actions.Stuck():
                    ours = self._manager_interface
                    ours.emit(ours.client_stuck, path, str(report.state), report.waited, {})

        gpu.happened.connect(happened)
        gpu.decided.connect(decided)
        gpu.reported.connect(reported)
        gpu.client_new.connect(self._client_new)
        gpu.client_removed.connect(self._client_removed)
        gpu.changed.connect(lambda: self._bus.changed(interface))

    def _gpu_removed(self, gpu: GPU) -> None:
        for client in gpu.clients.values():
            self._client_removed(client)
        self._bus.unexport(gpu_path(gpu.facts.index))

    def _client_new(self, client: Client) -> None:
        interface = self._clients[client.id] = services.ClientInterface(self._manager, client)
        path = client_path(client.id)
        self._bus.export(path, interface)
        self._manager_interface.emit(services.ManagerInterface.client_new, client.id, path)

    def _client_removed(self, client: Client) -> None:
        path = client_path(client.id)
        if self._clients.pop(client.id, None) is None:
            return                      # its card was removed before
        self._bus.unexport(path)
        self._manager_interface.emit(services.ManagerInterface.client_removed, client.id, path)

    def _client_changed(self, number: int) -> None:
        interface = self._clients.get(number)
        if interface is not None:
            self._bus.changed(interface)


async def _own(connection: BusConnection, name: str) -> None:
    """Becomes the owner of a bus name. Raises AlreadyRunning, NotPermitted, BusUnavailable."""
    try:
        (reply,) = await connection.ask(
            BUS, "RequestName", "su", [name, NameFlag.DO_NOT_QUEUE.value])
    except BusError as error:
        if error.name in (ErrorType.NO_REPLY.value, ErrorType.DISCONNECTED.value):
            reason = str(error.__cause__) or "it did not answer"
            raise BusUnavailable(
                f"the message bus went before we owned {name}: {reason}",
                "is dbus running? --bus chooses another") from error
        raise NotPermitted(
            f"the message bus does not let us own {name}: {error}",
            "run nvshared as root, and install its policy, dbus/com.nvshare.conf") from error
    if reply not in (RequestNameReply.PRIMARY_OWNER.value, RequestNameReply.ALREADY_OWNER.value):
        raise AlreadyRunning(
            f"another nvshared owns {name} on this message bus",
            "stop it first: systemctl stop nvshared")
