# SPDX-License-Identifier: Apache-2.0
"""The daemon on the message bus.

    publication = await publish(manager, "system")
    …
    await publication.close()

manager.py, gpu.py, client.py and logcontrol.py have the service objects, as dbus-next declares
them; interface.py adds who may call a method and how a property's changes are announced.
A call comes in through connection.py, the transport. dispatch.py answers it, after authority.py
has let it pass, with the objects in objects.py, which also announces changes. publication.py
holds all of this together.
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
