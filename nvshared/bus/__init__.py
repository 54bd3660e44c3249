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

from nvshared import dbus  # noqa: F401, isort: skip (first: it keeps dbus-next's package empty)
from nvshared.bus.publication import Publication, publish

__all__ = ["Publication", "publish"]
