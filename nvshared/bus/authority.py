# SPDX-License-Identifier: Apache-2.0
"""Decides which callers may change something: polkit permits it; without polkit, only root may.

The subject that polkit is asked about is the caller's name on the bus, never a
process id: no other process can take over a name between the check and its
result.

For root and for the user whom the daemon runs as, polkit is not asked. polkit permits root
everything anyway, and the daemon's user could as well restart the daemon with other settings.
So a daemon on a session bus, in a test or in a demonstration, obeys the user who started it.

A polkit check may wait for a password as long as the caller likes, and the bus limits the replies
that the daemon may wait for (128 on Debian's). So the pending checks of each connection and of each
user are limited, CHECKS_RESERVED of them are only for users without a pending check, and a check
is cancelled when its caller has left the bus.
"""

import asyncio
import os
from collections import Counter
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any

from dbus_next.constants import ErrorType, MessageFlag
from dbus_next.message import Message
from dbus_next.signature import Variant

from nvshared.bus.connection import BusConnection
from nvshared.dbus import BUS, BusError
from nvshared.errors import NotPermitted, PasswordNeeded
from nvshared.lanes import Run, call
from nvshared.machine import subordinate
from nvshared.units import SECOND

POLKIT = (
    "org.freedesktop.PolicyKit1",
    "/org/freedesktop/PolicyKit1/Authority",
    "org.freedesktop.PolicyKit1.Authority",
)
USERS_REMEMBERED = 256                  # uids kept by bus name; a bus never reuses a name
_ALLOW_USER_INTERACTION = 1
PATIENCE = 25.0                         # seconds for polkit's reply if no password is asked for
OWNER_PATIENCE = SECOND                 # for looking up the owner of a subordinate user id
PRESENCE_INTERVAL = 2.0                 # seconds between checks that a caller is on the bus
CHECKS = 64                             # pending at polkit at most, of all callers
CHECKS_EACH_CONNECTION = 4
CHECKS_EACH_USER = 8
CHECKS_RESERVED = 16                    # of CHECKS, reserved for users without a pending one
_ABSENT = {ErrorType.SERVICE_UNKNOWN.value, ErrorType.NAME_HAS_NO_OWNER.value}


class Checks:
    """The checks over one bus connection that polkit has not answered yet."""

    def __init__(self, connection: BusConnection, run: Run) -> None:
        """`run`: Lanes.run, since a lookup in a user directory (LDAP) may be slow."""
        self._connection = connection
        self._run = run
        self._of_caller: Counter[str] = Counter()
        self._of_user: Counter[int | str] = Counter()
        self._names = count(1)          # for cancellation ids, by which polkit cancels a check

    async def ask(self, caller: "Caller", uid: int, action: str) -> tuple[bool, bool]:
        """Whether polkit permits the action, and whether it would after a password.

        Raises BusError if polkit does not reply, or if too many checks are pending.
        """
        user = await self._owner(uid)
        most = CHECKS - CHECKS_RESERVED if self._of_user[user] else CHECKS
        if (
            self._of_caller[caller.name] >= CHECKS_EACH_CONNECTION
            or self._of_user[user] >= CHECKS_EACH_USER or self._of_user.total() >= most
        ):
            raise BusError(
                ErrorType.LIMITS_EXCEEDED, "too many calls wait for polkit already; answer or "
                "cancel those that ask for a password, and try again")
        name = f"nvshared{next(self._names)}"
        subject = ["system-bus-name", {"name": Variant("s", caller.name)}]
        flags = _ALLOW_USER_INTERACTION if caller.interactive else 0
        # No timeout of its own: the bus counts the call as pending until polkit replies, so
        # the counters below do, too.
        answer = asyncio.get_running_loop().create_task(self._connection.ask(
            POLKIT, "CheckAuthorization", "(sa{sv})sa{ss}us", [subject, action, {}, flags, name],
            patience=None))
        self._of_caller[caller.name] += 1
        self._of_user[user] += 1
        answer.add_done_callback(lambda _: self._answered(caller.name, user))
        try:
            async with asyncio.timeout(None if caller.interactive else PATIENCE):
                while not (await asyncio.wait([answer], timeout=PRESENCE_INTERVAL))[0]:
                    if not await caller.present():
                        raise BusError(ErrorType.NO_REPLY.value, "the caller has left the bus")
        except TimeoutError as error:
            raise BusError(
                ErrorType.NO_REPLY.value, f"it did not answer within {PATIENCE:.0f} s") from error
        finally:
            if not answer.done():
                answer.add_done_callback(_forget)
                self._connection.post(Message(
                    *POLKIT, "CancelCheckAuthorization", signature="s", body=[name],
                    flags=MessageFlag.NO_REPLY_EXPECTED))
        ((granted, challenge, _),) = answer.result()
        return granted, challenge

    async def _owner(self, uid: int) -> int | str:
        """The user to whom /etc/subuid lends this user id.

        It is the name that /etc/subuid has if looking up its number takes too long.
        """
        lender = subordinate.lenders()(uid)
        if lender == uid:
            return uid
        owner = await call(self._run, lender, partial(subordinate.owner, uid), OWNER_PATIENCE)
        return lender if owner is None else owner

    def _answered(self, name: str, user: int | str) -> None:
        self._of_caller -= Counter([name])      # Counter's -= removes counts of zero
        self._of_user -= Counter([user])


def _forget(answer: "asyncio.Task[list[object]]") -> None:
    """Retrieves the exception of an abandoned reply, which asyncio would log otherwise."""
    with suppress(BusError, asyncio.CancelledError):
        answer.result()


class Caller:
    """The peer that sent a message, as the bus vouches for it."""

    def __init__(
        self, connection: BusConnection, message: Message, checks: Checks | None
    ) -> None:
        """`checks`: the pending polkit checks; None: polkit is not asked on this bus."""
        self._connection = connection
        self._checks = checks
        self.name: str = message.sender
        self.interactive = bool(message.flags & MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION)

    async def uid(self) -> int:
        """User id of the caller. Raises BusError if it has left the bus."""
        users = self._connection.users
        if self.name not in users:
            users[self.name] = int(await self._ask_bus("GetConnectionUnixUser"))
            if len(users) > USERS_REMEMBERED:
                del users[next(iter(users))]
        return users[self.name]

    async def administers(self) -> bool:
        """Whether the caller is root or the daemon's user: polkit is not asked about them."""
        return await self.uid() in (0, os.geteuid())

    async def pid(self) -> int:
        """Process id of the caller. Raises BusError if it has left the bus."""
        return int(await self._ask_bus("GetConnectionUnixProcessID"))

    async def present(self) -> bool:
        """Whether the caller is still on the bus."""
        try:
            return bool(await self._ask_bus("NameHasOwner"))
        except BusError:
            return False

    async def _ask_bus(self, member: str) -> Any:
        (found,) = await self._connection.ask(BUS, member, "s", [self.name])
        return found

    async def authorise(self, action: str, hint: str = "") -> None:
        """Returns if the caller may do this.

        Raises NotPermitted, or BusError if too many checks are pending.
        """
        if await self.administers():
            return
        uid = await self.uid()
        refused = f"{action} is not permitted to uid {uid}"
        if self._checks is None:
            raise NotPermitted(
                f"authentication required: {action} is for root alone here, not for uid {uid}",
                hint)
        try:
            granted, challenge = await self._checks.ask(self, uid, action)
        except BusError as error:
            if error.name == ErrorType.LIMITS_EXCEEDED.value:
                raise
            reason = f"polkit did not decide: {error.message}"
            if error.name in _ABSENT:
                reason = "polkit, which could permit it, does not run"
            raise NotPermitted(f"{refused}: {reason}", hint) from error
        if challenge and not granted and not self.interactive:
            raise PasswordNeeded(f"authentication required: {action} needs a password", hint)
        if not granted:
            raise NotPermitted(refused, hint)


caller: ContextVar[Caller] = ContextVar("caller")       # the caller of the running method
