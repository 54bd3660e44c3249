# SPDX-License-Identifier: Apache-2.0
"""The daemon on the message bus.

    publication = await publish(manager, "system")
    …
    await publication.close()

services.py has the service objects, declared as dbus-next requires; interface.py adds the
permission that a method needs and how property changes are announced. connection.py is the
transport. dispatch.py authorises and answers calls, and announces changes.
publication.py creates the objects and the connection.
"""

from nvshared import dbus  # noqa: F401, isort: skip (first: it keeps dbus-next's package empty)
from nvshared.bus.publication import Publication, publish

__all__ = ["Publication", "publish"]
