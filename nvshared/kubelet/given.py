# SPDX-License-Identifier: Apache-2.0
"""What kubelet has given to other device plugins: the checkpoint that it keeps on disk.

A card that another device plugin offers as well would be handed out twice: whole to one pod, and
shared to others. Kubelet writes down which devices each resource has and which pods hold them,
so we need not trust that an administrator has configured both plugins to leave each other alone.

Device plugins name their devices as they like. The devices of a GPU's resource whose names identify
no GPU may be any card.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nvshared.errors import NvshareError
from nvshared.kubelet.card import DRIVER, Card, identifies

T = TypeVar("T")
CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
# Of a resource whose devices may be NVIDIA's GPUs. The other makers' GPUs are none.
GPU_RESOURCE = re.compile(r"^nvidia\.com/|gpu|cuda|(?:^|\W)mig(?:\W|$)", re.IGNORECASE)
OTHER_MAKER = re.compile(r"^(?:[\w-]+\.)*(?:amd|intel)\.com/", re.IGNORECASE)


def elsewhere(kubelet: Path, ours: str) -> dict[str, str]:
    """Names of devices of other resources than ours, each with its resource.

    Raises NvshareError where kubelet's file cannot be read or understood: without it every card
    may be given away.
    """
    def read(data: Any) -> dict[str, str]:
        found = {
            device: resource
            for resource, devices in (data["RegisteredDevices"] or {}).items()
            for device in devices or ()
        }
        for entry in data["PodDeviceEntries"] or ():
            found |= dict.fromkeys(_devices(entry["DeviceIDs"]), entry["ResourceName"])
        return {device: resource for device, resource in found.items() if resource != ours}

    return _checkpoint(kubelet, read, {})


def holders(kubelet: Path, ours: str) -> set[tuple[str, str]]:
    """Pods, by kubelet's identifier, and their containers that have devices of our resource.

    Raises NvshareError as elsewhere() does.
    """
    def read(data: Any) -> set[tuple[str, str]]:
        return {
            (entry["PodUID"], entry["ContainerName"])
            for entry in data["PodDeviceEntries"] or () if entry["ResourceName"] == ours
        }

    return _checkpoint(kubelet, read, set())


def _checkpoint(kubelet: Path, read: Callable[[Any], T], nothing: T) -> T:
    path = kubelet / CHECKPOINT
    try:
        return read(json.loads(path.read_text())["Data"])
    except FileNotFoundError:
        return nothing                  # no device plugin has ever registered here
    except OSError as error:
        raise NvshareError(f"cannot read {path}: {error.strerror}", "run it as root") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NvshareError(
            f"{path} is not as kubelet writes it: {type(error).__name__}: {error}",
            "please report the version of kubelet",
        ) from error


def _devices(given: Any) -> list[str]:
    """By NUMA node, as kubelet has it since 1.20, or plain."""
    if isinstance(given, dict):
        return [device for devices in given.values() for device in devices or ()]
    return list(given or ())


def conflict(card: Card, devices: Mapping[str, str], driver: Path = DRIVER) -> str:
    """Why this card may be handed out already, by names of devices with their resources; "" if it
    is not."""
    unknown = ""
    for device, resource in devices.items():
        match identifies(device, card, driver):
            case True:
                return f"{card.uuid} is handed out as {resource} already"
            case None if GPU_RESOURCE.search(resource) and not OTHER_MAKER.match(resource):
                unknown = unknown or (
                    f"{card.uuid} may be handed out as {resource} already: the name {device!r} "
                    "does not say which GPU it is")
    return unknown
