# SPDX-License-Identifier: Apache-2.0
"""The daemon on the message bus.

    publication = await publish(manager, "system")
    …
    await publication.close()

members.py says how an interface is declared. manager.py, gpu.py, client.py and
logcontrol.py declare ours, with one line each for what they do. A call comes in
through connection.py, the transport; its bytes are a matter of nvshared/dbus.
dispatch.py answers it, after authority.py has let it pass, and finds its object
in tree.py, which also announces changes. publication.py holds all of this together.
"""

from nvshared.bus.publication import Publication
from nvshared.history import History
from nvshared.sharing.manager import Manager

__all__ = ["Publication", "publish"]


async def publish(
    manager: Manager, bus: str, history: History | None = None
) -> Publication:
    """Puts the manager on "system", "session" or the bus at an address, as com.nvshare.

    Raises BusUnavailable if there is no such bus, NotPermitted if it does not
    let us own the name, AlreadyRunning if somebody else does.
    """
    publication = Publication(manager, bus, history)
    try:
        await publication.open()
    except BaseException:
        await publication.close()
        raise
    return publication
