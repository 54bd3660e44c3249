# SPDX-License-Identifier: Apache-2.0
"""Shows who uses the GPUs, sets the quantum, awaits a program."""

import asyncio

from dbus_next import BusType
from dbus_next.aio import MessageBus

NAME, PATH = "com.nvshare", "/com/nvshare"


async def main():
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    daemon = bus.get_proxy_object(NAME, PATH, await bus.introspect(NAME, PATH))
    objects = daemon.get_interface("org.freedesktop.DBus.ObjectManager")
    for path, known in (await objects.call_get_managed_objects()).items():
        if client := known.get("com.nvshare.Client"):
            print(path, client["PID"].value, client["State"].value)
    manager = daemon.get_interface("com.nvshare.Manager")
    await manager.call_set_tq(20)
    came = asyncio.get_running_loop().create_future()
    manager.on_client_new(lambda number, path: came.set_result(path))
    print(await came, "came")


asyncio.run(main())
