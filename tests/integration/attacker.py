# SPDX-License-Identifier: Apache-2.0
"""A hostile user without privileges, as a program:

    python -m tests.integration.attacker ATTACK ADDRESS [--gpu UUID] [--uid N] [--width N]
        [--rounds N]

It becomes the user N, prints "ready", waits for a line on stdin, attacks for the given number of
rounds and prints "done"; without a number it attacks until stdin is closed. Then it closes its
connections. ADDRESS: the path of the daemon's socket, or the address of the bus. The attacker
ignores errors of its connections.

Each attack is a generator; each step is a round.
"""

import argparse
import array
import contextlib
import os
import random
import resource
import select
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dbus_next.constants import MessageFlag
from dbus_next.message import Message
from dbus_next.signature import Variant

from nvshared.dbus import BUS, introduction, pack
from nvshared.hook import packets, protocol
from nvshared.hook.protocol import Flag, OrderRecord, ReportRecord, Type
from nvshared.names import BUS_NAME, MANAGER_INTERFACE, MANAGER_PATH
from nvshared.scheduler.events import Memory
from nvshared.units import MIB
from tests.records import decode_order, encode_report

QUESTIONS = 100                         # messages of one round
SWARM = 50                              # processes at a time
ANSWERS = {Type.STOP: Type.STOPPED, Type.EVICT: Type.MOVED, Type.LOAD: Type.MOVED}


class Attack:
    """The daemon's socket, the GPUs, the number of connections, and the random numbers."""

    def __init__(self, address: str, uuids: list[bytes], width: int) -> None:
        self.address = address
        self.width = width              # number of connections at a time
        self.uuids = uuids
        self.uuid = uuid = uuids[0]
        self.hello = encode_report(ReportRecord(Type.HELLO, uuid=uuid))
        self.random = random.Random(width)

    def connect(self) -> socket.socket | None:
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return None                 # the attacker's own limit of descriptors
        try:
            made.connect(self.address)
        except OSError:
            made.close()
            return None
        made.setblocking(False)
        return made

    def crowd(self) -> list[socket.socket]:
        return [one for _ in range(self.width) if (one := self.connect()) is not None]

    def registered(self) -> list[socket.socket]:
        crowd = self.crowd()
        for one in crowd:
            say(one, self.hello)
        return crowd

    def admitted(self) -> list[socket.socket]:
        """Registers clients one after the other; each has an answer, which is not read yet."""
        crowd = []
        for _ in range(self.width):
            if (one := self.connect()) is not None:
                say(one, self.hello)
                asked = select.poll()
                asked.register(one, select.POLLIN)
                asked.poll()
                crowd.append(one)
        return crowd


def say(one: socket.socket, packet: bytes) -> bool:
    """Sends a packet, unless the buffer is full. False: the connection has ended."""
    try:
        one.send(packet)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def hold(attack: Attack) -> Iterator[None]:
    """Opens connections that send nothing, and closes none of them."""
    held: list[list[socket.socket]] = []
    while True:
        held.append(attack.crowd())
        yield


def come_and_go(attack: Attack) -> Iterator[None]:
    while True:
        for one in attack.registered():
            one.close()
        yield


def swarm(attack: Attack) -> Iterator[None]:
    """Opens silent connections from many processes at once, one from each."""
    while True:
        children = []
        for _ in range(min(attack.width, SWARM)):
            child = os.fork()
            if not child:
                if (one := attack.connect()) is not None:
                    say(one, attack.hello)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        yield


def answer_nothing(attack: Attack) -> Iterator[None]:
    """Registers clients, sends requests and never reads; connects again when disconnected."""
    question = encode_report(ReportRecord(Type.COMMIT, number=1, wanted=MIB))
    crowd: list[socket.socket] = []
    while True:
        crowd += attack.registered()[len(crowd):]
        for one in tuple(crowd):
            if not all(say(one, question) for _ in range(QUESTIONS)):
                one.close()
                crowd.remove(one)
        yield


def garbage(attack: Attack) -> Iterator[None]:
    """Sends parts of records, records of every type, noise, and packets larger than a record."""
    dice = attack.random
    while True:
        for one in attack.registered():
            for packet in (
                b"", attack.hello[:dice.randrange(packets.SIZE)], attack.hello * 2,
                dice.randbytes(dice.randrange(4096)),
                bytes([dice.randrange(80), 0, protocol.OLDEST, 0])
                + dice.randbytes(packets.SIZE - 4),
                bytes([dice.randrange(80)]) + attack.hello[1:packets.HEAD]
                + dice.randbytes(len(attack.hello) - packets.HEAD)):
                say(one, packet)
            one.close()
        yield


def descriptors(attack: Attack) -> Iterator[None]:
    """Sends records with as many file descriptors as the kernel allows."""
    many = array.array("i", [0] * 250).tobytes()
    while True:
        for one in attack.registered():
            with contextlib.suppress(OSError):
                one.sendmsg(
                    [encode_report(ReportRecord(Type.MEMORY))],
                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
            one.close()
        yield


def change(attack: Attack) -> Iterator[None]:
    """Clients that obey all orders, and change their state all the time."""
    crowd = attack.admitted()
    records = [
        encode_report(ReportRecord(kind, flags, memory=Memory(host=size)))
        for size in (0, 4096)
        for kind, flags in ((Type.MEMORY, 0), (Type.MEMORY, Flag.WANTS), (Type.IDLE, 0))
    ]
    while True:
        for one in crowd:
            for record in records:
                say(one, record)
            with contextlib.suppress(OSError):
                while packet := one.recv(packets.LONGEST):
                    obey(one, decode_order(packet))
        yield


def gang(attack: Attack) -> Iterator[None]:
    """Clients on all GPUs, in gangs of eight, that want the GPU, obey, and want it again."""
    wants = encode_report(ReportRecord(Type.MEMORY, Flag.WANTS))
    crowd = attack.crowd()
    for number, one in enumerate(crowd):
        uuid = attack.uuids[number % len(attack.uuids)]
        for record in (ReportRecord(Type.GANG, text=f"g{number // 8}:8"),
                       ReportRecord(Type.HELLO, uuid=uuid)):
            say(one, encode_report(record))
        say(one, wants)
    while True:
        for one in select.select(crowd, [], [], 0.1)[0]:
            with contextlib.suppress(OSError):
                while packet := one.recv(packets.LONGEST):
                    order = decode_order(packet)
                    obey(one, order)
                    if order.type is Type.STOP:
                        say(one, wants)
        yield


def promise(attack: Attack) -> Iterator[None]:
    """Clients that report a promise of all memory, a request for it, and its use."""
    everything = Memory(allocated=1 << 40, pending=1 << 40)
    yield from claim(attack, everything, 1 << 40, everything)


def claim_host_memory(attack: Attack) -> Iterator[None]:
    """Clients that report more host memory than the host has."""
    yield from claim(attack, Memory(), 0, Memory(host=16 << 30, beyond=16 << 30))


def cling(attack: Attack) -> Iterator[None]:
    """Clients that report that they fill the card, and carry out no order."""
    size = 1000 * MIB
    memory = Memory(allocated=size, resident=size, room=size)
    yield from claim(attack, memory, size, memory)


def claim(attack: Attack, first: Memory, commit: int, then: Memory) -> Iterator[None]:
    """Registers clients with the false figures `first`, and answers every order with `then`."""
    hello = ReportRecord(Type.HELLO, memory=first, uuid=attack.uuid, commit=commit)
    crowd = attack.crowd()
    for one in crowd:
        say(one, encode_report(hello))
        say(one, encode_report(ReportRecord(Type.MEMORY, memory=then)))
        say(one, encode_report(ReportRecord(Type.COMMIT, number=1, wanted=1 << 40, memory=then)))
        say(one, encode_report(ReportRecord(Type.COMMIT, number=2, memory=then)))
    while True:
        for one in crowd:
            with contextlib.suppress(OSError):
                while packet := one.recv(packets.LONGEST):
                    order = decode_order(packet)
                    if order.type in ANSWERS:
                        say(one, encode_report(ReportRecord(
                            ANSWERS[order.type], number=order.number, memory=then)))
        yield


def obey(one: socket.socket, order: OrderRecord) -> None:
    answer = ANSWERS.get(order.type)
    if answer is not None:
        report = ReportRecord(answer, number=order.number, memory=Memory(room=order.room))
        say(one, encode_report(report))


ATTACKS: dict[str, Callable[[Attack], Iterator[None]]] = {
    attack.__name__: attack
    for attack in (
        hold, come_and_go, swarm, answer_nothing, garbage, descriptors, change, gang, promise,
        claim_host_memory, cling)
}


class Caller:
    """An attacker's connection to the bus, used directly: D-Bus libraries refuse wrong messages."""

    def __init__(self, address: str) -> None:
        """`address`: of the bus. Raises OSError if the bus refuses the connection."""
        self.serial = 0
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(address.removeprefix("unix:path="))
        self.socket.sendall(introduction())
        if not self.socket.recv(1000).startswith(b"OK"):
            raise ConnectionRefusedError
        self.socket.sendall(b"BEGIN\r\n")
        self.socket.sendall(self.message("Hello", peer=BUS))
        self.socket.recv(1000)

    def message(
        self, member: str, signature: str = "", body: Sequence[Any] = (), *,
        path: str = MANAGER_PATH, of: str = MANAGER_INTERFACE,
        flags: MessageFlag = MessageFlag.NONE, peer: tuple[str, str, str] | None = None,
    ) -> bytes:
        self.serial += 1
        to = peer or (BUS_NAME, path, of)
        call = Message(*to, member, flags=flags, signature=signature, body=list(body))
        return pack(call, self.serial)

    def hear(self) -> None:
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 20):
                continue
        except BlockingIOError:
            pass
        self.socket.setblocking(True)


Messages = Callable[[Caller, random.Random], bytes]


def flood(address: str, width: int, messages: Messages, *, hear: bool) -> Iterator[None]:
    """Sends messages on `width` connections, and connects again when the bus ends a connection."""
    dice = random.Random(width)
    callers: list[Caller | None] = [None] * width
    while True:
        for number, caller in enumerate(callers):
            try:
                if caller is None:
                    caller = callers[number] = Caller(address)
                caller.socket.settimeout(0.1)
                caller.socket.sendall(b"".join(messages(caller, dice) for _ in range(QUESTIONS)))
                if hear:
                    caller.hear()
            except TimeoutError:
                continue                # the bus delays the reply
            except OSError:
                if caller is not None:
                    caller.socket.close()
                callers[number] = None
        yield


def change_settings(caller: Caller, dice: random.Random) -> bytes:
    made: Callable[[], bytes] = dice.choice([
        lambda: caller.message("SetTQ", "u", [dice.randrange(1, 9)]),
        lambda: caller.message("SetAntiThrash", "s", ["off"]),
        lambda: caller.message(
            "SetClientTerms", "ua{sv}", [1, {"memory-limit": Variant("t", 1)}]),
        lambda: caller.message("Reload"),
        lambda: caller.message(
            "Set", "ssv", [MANAGER_INTERFACE, "TQ", Variant("u", 1)],
            of="org.freedesktop.DBus.Properties"),
    ])
    return made()


def change_quietly(caller: Caller, dice: random.Random) -> bytes:
    """A SetTQ call without a reply, so that no limit of the bus on pending replies applies."""
    return caller.message("SetTQ", "u", [dice.randrange(1, 9)], flags=MessageFlag.NO_REPLY_EXPECTED)


def long_quietly(caller: Caller, _: random.Random) -> bytes:
    """A call of 1 MiB: a hundred of them, kept, would exceed the daemon's memory limit."""
    return caller.message("SetTQ", "s", ["y" * (1 << 20)], flags=MessageFlag.NO_REPLY_EXPECTED)


def everything(caller: Caller, _: random.Random) -> bytes:
    return caller.message("GetManagedObjects", of="org.freedesktop.DBus.ObjectManager")


def oddities(caller: Caller, dice: random.Random) -> bytes:
    """Calls of unknown objects and members, with arguments of wrong types."""
    path = "/" + "/".join("x" * dice.randrange(1, 200) for _ in range(dice.randrange(1, 9)))
    deep: Any = Variant("s", "deep")
    for _ in range(20):
        deep = Variant("v", deep)
    made: Callable[[], bytes] = dice.choice([
        lambda: caller.message("Introspect", path=path, of="org.freedesktop.DBus.Introspectable"),
        lambda: caller.message("Introspect", of="org.freedesktop.DBus.Introspectable"),
        lambda: caller.message("N" * 255, path=path),
        lambda: caller.message("SetTQ", "s", ["long " * dice.randrange(1, 5000)]),
        lambda: caller.message("SetTQ", "v", [deep]),
        lambda: caller.message("SetTQ", "a{sv}", [{str(n): Variant("u", n) for n in range(200)}]),
        lambda: caller.message("GetGPU", "s", ["\n\x1b[2J" * 50]),
    ])
    return made()


# For each attack by name: its messages, and whether the attacker reads replies.
BUS_ATTACKS: dict[str, tuple[Messages, bool]] = {
    "change_settings": (change_settings, True),
    "change_settings_deaf": (change_settings, False),
    "change_settings_quietly": (change_quietly, False),
    "get_everything_deaf": (everything, False),
    "long_quietly": (long_quietly, False),
    "oddities": (oddities, True),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("attack", choices=[*ATTACKS, *BUS_ATTACKS])
    parser.add_argument("address")
    parser.add_argument("--gpu", default="", help="UUIDs, with commas")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--width", type=int, default=1)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.uid is not None:
        os.setgroups([])
        os.setgid(given.uid)
        os.setuid(given.uid)
    if given.attack in BUS_ATTACKS:
        messages, hear = BUS_ATTACKS[given.attack]
        attack = flood(given.address, given.width, messages, hear=hear)
    else:
        uuids = [bytes.fromhex(one) for one in given.gpu.split(",")]
        attack = ATTACKS[given.attack](Attack(given.address, uuids, given.width))
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0
    while done != given.rounds or not done:
        next(attack)
        done += 1
        if not given.rounds and select.select([sys.stdin], [], [], 0)[0]:
            break
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
