# SPDX-License-Identifier: Apache-2.0
"""What tenants used, as the Manager answers it."""

from nvshared.bus.members import Body
from nvshared.dbus.writing import encode
from nvshared.errors import NoHistory, NoSuchGPU
from nvshared.history import Asked, Found, History
from nvshared.scheduler.usage import Usage
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND

_ROWS = f"a(tss{'t' * len(Usage._fields)}a{{sv}})"
TAKES = "since_usec:t until_usec:t step_usec:t by:s gpu:s names:u everyone:b"
GIVES = f"from_usec:t to_usec:t each_usec:t rows:{_ROWS} missing:s"
_TYPES = "".join(one.split(":")[1] for one in GIVES.split())


def obstacle(_interface: object, _uid: int, *arguments: object) -> str | None:
    """Anybody may see what they have used themselves; the last argument asks for all."""
    return "" if arguments[-1] else None


async def answer(
    manager: Manager, history: History | None, uid: int | None, since: int, until: int, step: int,
    by: str, gpu: str, names: int,
) -> Body:
    """`uid`: whose alone. Microseconds. Raises InvalidArgs, NoHistory, NoSuchGPU."""
    if history is None:
        raise NoHistory("no history is kept", "set history and state-dir, see nvshared.conf(5)")
    asked = Asked(
        since // SECOND, -(-until // SECOND), step // SECOND, by, _uuid(manager, gpu), uid, names)
    return await history.ask(asked, _body)


def _uuid(manager: Manager, gpu: str) -> str:
    """Of a card; one that is no longer there has its UUID only."""
    try:
        return manager.gpu(gpu).facts.uuid if gpu else ""
    except NoSuchGPU:
        if gpu.startswith("GPU-"):
            return gpu
        raise


def _body(found: Found) -> Body:
    """There may be many rows, so the event loop has them ready to be sent."""
    rows = [[row.start * SECOND, row.name, row.user, *row.usage, {}] for row in found.rows]
    times = [one * SECOND for one in (found.since, found.until, found.step)]
    return Body(encode(_TYPES, [*times, rows, found.missing]))
