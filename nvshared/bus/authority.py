# SPDX-License-Identifier: Apache-2.0
"""Who may change something: polkit decides, and without polkit only root does.

The subject that polkit is asked about is the caller's name on the bus, never a
process id: a name cannot be taken over by another process between the question
and the answer.

Root and the user the daemon runs as are not asked about. polkit would say yes
to root anyway; and the other one could as well stop the daemon and start it
with other settings. That is also what makes a daemon on a session bus, in a
test or in a demonstration, obey whoever started it.
"""

import os

from dbus_next.constants import ErrorType

from nvshared.bus.connection import BusConnection, BusError
from nvshared.dbus.address import BUS
from nvshared.dbus.message import ALLOW_INTERACTIVE_AUTHORIZATION, Message
from nvshared.dbus.types import Variant
from nvshared.errors import NotPermitted, PasswordNeeded

POLKIT = (
    "org.freedesktop.PolicyKit1",
    "/org/freedesktop/PolicyKit1/Authority",
    "org.freedesktop.PolicyKit1.Authority",
)
USERS_REMEMBERED = 256                  # a bus never gives a name to another connection
_ALLOW_USER_INTERACTION = 1
_ABSENT = {ErrorType.SERVICE_UNKNOWN.value, ErrorType.NAME_HAS_NO_OWNER.value}


class Caller:
    """The peer that sent a message, as the bus vouches for it."""

    def __init__(self, connection: BusConnection, message: Message, *, polkit: bool) -> None:
        self._connection = connection
        self._polkit = polkit
        self.name: str = message.sender
        self.as_owner = False           # it may, as the program is its own
        self.interactive = bool(message.flags & ALLOW_INTERACTIVE_AUTHORIZATION)

    async def uid(self) -> int:
        """User id of the caller. Raises BusError if it has left the bus."""
        users = self._connection.users
        if self.name not in users:
            (uid,) = await self._connection.ask(BUS, "GetConnectionUnixUser", "s", [self.name])
            users[self.name] = int(uid)
            if len(users) > USERS_REMEMBERED:
                del users[next(iter(users))]
        return users[self.name]

    async def administers(self) -> bool:
        """Root or the user the daemon runs as, who are not asked about."""
        return await self.uid() in (0, os.geteuid())

    async def pid(self) -> int:
        """Process id of the caller. Raises BusError if it has left the bus."""
        (pid,) = await self._connection.ask(BUS, "GetConnectionUnixProcessID", "s", [self.name])
        return int(pid)

    async def present(self) -> bool:
        """Whether it is on the bus still."""
        try:
            (there,) = await self._connection.ask(BUS, "NameHasOwner", "s", [self.name])
        except BusError:
            return False
        return bool(there)

    async def authorise(self, action: str) -> None:
        """Returns if the caller may do this. Raises NotPermitted if not."""
        if await self.administers():
            return
        uid = await self.uid()
        if not self._polkit:
            raise NotPermitted(
                f"authentication required: {action} is for root alone here, not for uid {uid}")
        subject = ["system-bus-name", {"name": Variant("s", self.name)}]
        flags = _ALLOW_USER_INTERACTION if self.interactive else 0
        try:
            ((granted, challenge, _),) = await self._connection.ask(
                POLKIT, "CheckAuthorization", "(sa{sv})sa{ss}us", [subject, action, {}, flags, ""],
                # A person may have to find a password first.
                patience=None if self.interactive else 25,
            )
        except BusError as error:
            if error.name in _ABSENT:
                reason = "polkit, which could permit it, does not run"
            else:
                reason = f"polkit did not decide: {error.message}"
            raise NotPermitted(f"{action} is not permitted to uid {uid}: {reason}") from error
        if granted:
            return
        if challenge and not self.interactive:
            raise PasswordNeeded(f"authentication required: {action} needs a password")
        raise NotPermitted(f"{action} is not permitted to uid {uid}")
