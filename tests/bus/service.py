# SPDX-License-Identifier: Apache-2.0
"""A private dbus-daemon, a manager to publish on it, and a D-Bus client, for bus tests."""

import asyncio
import contextlib
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageFlag, MessageType
from dbus_next.message import Message

from nvshared.bus import Publication, publish
from nvshared.clock import Timer, monotonic
from nvshared.machine.nvml import Sample
from nvshared.machine.peer import Peer
from nvshared.machine.tenant import Kind, Tenant
from nvshared.names import BUS_NAME, MANAGER_INTERFACE, MANAGER_PATH
from nvshared.scheduler.actions import Action
from nvshared.scheduler.events import Memory, MemoryChanged
from nvshared.settings.state import StateFile
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.sharing.tenancy import Tenancy
from nvshared.units import GIB
from tests.unit.scripted import DEFAULTS, FACTS, OTHER, Noted, Scripted

CONFIGURATION = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <servicedir>{folder}</servicedir>
  <policy context="default">
    <allow user="*"/>
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
    {own}
  </policy>
</busconfig>
"""
PROPERTIES = "org.freedesktop.DBus.Properties"
OTHER_UID = 4711                         # user id: neither root nor the daemon's user
UNUSED_PID = 4_999_999                      # no process has such a number
SAMPLE = Sample(memory_used=40 * GIB, utilisation=0.97, temperature=61, power=412.4, processes=())


class PrivateBus:
    def __init__(self, folder: Path, own: str = '<allow own="*"/>') -> None:
        self.folder = folder            # folder of the bus's socket, configuration and services
        self._socket = folder / "bus"
        self._configuration = folder / "bus.conf"
        self._configuration.write_text(CONFIGURATION.format(
            socket=self._socket, folder=folder, own=own))
        folder.chmod(0o755)
        self.address = f"unix:path={self._socket}"
        self.start()

    def start(self) -> None:
        """Start the dbus-daemon; returns once it listens."""
        self._socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            ["dbus-daemon", f"--config-file={self._configuration}", "--nofork", "--print-address"],
            stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def private_bus(own: str = '<allow own="*"/>') -> Iterator[PrivateBus]:
    """A private bus that ends with the block; `own`: bus policy for owners of names."""
    with tempfile.TemporaryDirectory() as folder:
        bus = PrivateBus(Path(folder), own)
        try:
            yield bus
        finally:
            bus.stop()


def a_timer() -> Timer:
    loop = asyncio.get_running_loop()

    def at(when: int, callback: Any) -> Any:
        return loop.call_at(when / 1e6, callback).cancel

    return at


def a_manager(store: StateFile | None = None, tenancy: Tenancy | None = None) -> Manager:
    manager = Manager(lambda: DEFAULTS, monotonic, a_timer(), store=store, tenancy=tenancy)
    for facts in (FACTS, OTHER):
        manager.add(facts, SAMPLE, gather=False)
    return manager


def a_client(manager: Manager, gpu: GPU, *, pid: int = UNUSED_PID,
             tenants: tuple[Tenant, ...] = (Tenant(Kind.USER, "0"),)) -> Client:
    """A client that has sent HELLO: 20 GiB on the card, 10 GiB in host memory."""
    peer = Peer(pid, 0, 0, "python", tenants)
    memory = Memory(30 * GIB, 20 * GIB, GIB, 0, 21 * GIB, 10 * GIB)
    client = Client(manager.next_id(), gpu, peer, Noted())
    gpu.join(client, memory, running=False, wants=False, commit=0)
    return client


def decide(client: Client, *actions: Action, holders: Sequence[Client] | None = None) -> None:
    """The client's scheduler returns `actions` once, and has `holders` from now on."""
    scheduler = client.gpu.scheduler
    assert isinstance(scheduler, Scripted)
    if holders is not None:
        scheduler.holders = tuple(one.id for one in holders)
    scheduler.decide = lambda _event: actions
    client.gpu.tell(MemoryChanged(client.id, client.memory, wants=True))
    scheduler.decide = lambda _event: ()


class Peeper:
    def __init__(self, bus: MessageBus) -> None:
        self.bus = bus
        self.signals: list[Message] = []
        bus.add_message_handler(self._note)

    def _note(self, message: Message) -> None:
        if message.message_type is MessageType.SIGNAL and message.path.startswith("/com/nvshare"):
            self.signals.append(message)

    async def call(self, member: str, signature: str = "", body: Sequence[Any] = (), *,
                   path: str = MANAGER_PATH, interface: str = MANAGER_INTERFACE,
                   flags: int = 0) -> Message:
        reply = await self.bus.call(Message(
            destination=BUS_NAME, path=path, interface=interface or None,   # type: ignore[arg-type]
            member=member, signature=signature, body=list(body), flags=MessageFlag(flags)))
        assert reply is not None
        return reply

    async def result(self, member: str, *rest: Any, **more: Any) -> Any:
        reply = await self.call(member, *rest, **more)
        assert reply.message_type is MessageType.METHOD_RETURN, reply.body
        (value,) = reply.body
        return value

    async def properties(self, path: str, interface: str = "") -> dict[str, Any]:
        """Property values of an interface; by default, of all interfaces of the object."""
        found = await self.result("GetAll", "s", [interface], path=path, interface=PROPERTIES)
        return {name: variant.value for name, variant in found.items()}

    async def watch(self) -> None:
        await self._to_the_bus("AddMatch", "s", [f"type='signal',sender='{BUS_NAME}'"])

    async def settled(self) -> None:
        """Wait until all messages that nvshared has sent until now have arrived."""
        await self.call("Ping", interface="org.freedesktop.DBus.Peer")

    async def close(self) -> None:
        self.bus.disconnect()
        await self.bus.wait_for_disconnect()
        self.bus._stream.close()
        self.bus._sock.close()

    async def _to_the_bus(self, member: str, signature: str, body: list[Any]) -> None:
        name = "org.freedesktop.DBus"
        reply = await self.bus.call(Message(destination=name, path="/org/freedesktop/DBus",
                                            interface=name, member=member, signature=signature,
                                            body=body))
        assert reply is not None
        assert reply.message_type is MessageType.METHOD_RETURN, reply.body


@contextlib.asynccontextmanager
async def peeper(address: str) -> AsyncIterator[Peeper]:
    someone = Peeper(await MessageBus(bus_address=address).connect())
    try:
        yield someone
    finally:
        await someone.close()


@contextlib.asynccontextmanager
async def published(manager: Manager, bus: str) -> AsyncIterator[Publication]:
    publication = await publish(manager, bus)
    try:
        yield publication
    finally:
        await publication.close()
