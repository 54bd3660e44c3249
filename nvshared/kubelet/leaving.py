# SPDX-License-Identifier: Apache-2.0
"""The end of the device plugin without a lost pod.

Kubelet fails for good a pod that is bound to the node while no plugin is registered, and the node
object shows its shares for up to ten seconds more. So no pod is bound meanwhile: the node has a
taint until the object shows no share. From then on pods wait for the next plugin."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from nvshared.kubelet.api import FAILURES
from nvshared.kubelet.node import NodeObject
from nvshared.kubelet.pods import Pods

logger = logging.getLogger(__name__)

REMOVAL = 2.0                           # seconds in which a removal takes this process's rights
SETTLE = 2.0                            # seconds until the scheduler and kubelet are in step
ADMISSION = 10.0                        # most seconds for pods that are bound to be admitted
REPORT = 20.0                           # most seconds until kubelet reports; it does each ten
PAUSE = 0.5                             # seconds between two looks


async def leave(node: NodeObject, pods: Pods, stop: Callable[[], Awaitable[None]]) -> None:
    """Calls `stop`, which ends the plugin, when no pod is on its way; returns when none comes.

    Without the right to taint nodes, which kubelet's kubeconfig lacks, it returns soon."""
    # A removal deletes the DaemonSet and its rights together. Without rights the taint would stay,
    # and keep all pods from the node.
    await asyncio.sleep(REMOVAL)
    try:
        await asyncio.to_thread(node.set_taint, is_leaving=True)
    except FAILURES as error:
        logger.warning(
            "pods that are bound to this node now may fail, unless it is cordoned: it cannot be "
            "tainted: %s", error)
        return
    try:
        await asyncio.sleep(SETTLE)
        await _until(lambda: not pods.arriving(), ADMISSION)
        await stop()
        await _until(lambda: not _shown(node), REPORT)
    finally:
        try:
            await asyncio.to_thread(node.set_taint, is_leaving=False)
        except FAILURES as error:
            logger.error("the node's taint is not removed; the next start does: %s", error)


async def _until(is_reached: Callable[[], bool], patience: float) -> None:
    limit = time.monotonic() + patience         # a look itself may wait for the API server
    for _ in range(int(patience / PAUSE)):
        if await asyncio.to_thread(is_reached) or time.monotonic() >= limit:
            return
        await asyncio.sleep(PAUSE)


def _shown(node: NodeObject) -> int:
    try:
        node.read()
    except FAILURES as error:
        logger.warning("the node is not read: %s", error)
    return node.allocatable or 0
