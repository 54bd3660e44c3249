# SPDX-License-Identifier: Apache-2.0
"""The device for which memory at a location counts: counted_device() in wrapper.h."""

import ctypes
from pathlib import Path

import pytest

from libhook.tests.doubles import built_double

INVALID, DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT, DOMAIN, UNKNOWN = 0, 1, 2, 3, 4, 6, 77
HOST_MEMORY = -1                        # CU_DEVICE_CPU


built = built_double("counted", [])


@pytest.mark.parametrize(("kind", "number", "device"), [
    (DEVICE, 1, 1), (DEVICE, 5, 5), (INVALID, 0, HOST_MEMORY), (HOST, 0, HOST_MEMORY),
    (HOST_NUMA, 1, HOST_MEMORY), (HOST_NUMA_CURRENT, 0, HOST_MEMORY),
    # A locality domain of a device: its lowest byte is the device.
    (DOMAIN, 0x0301, 1), (DOMAIN, 0x0200, 0),
    # A type of a newer driver counts on that device, or on the current one.
    (UNKNOWN, 0x0301, 1), (UNKNOWN, 0x0309, 0), (UNKNOWN, -1, 0),
])
def test_allocation_counts_as_used_on_the_device_that_its_cumemlocation_names(
    built: Path, kind: int, number: int, device: int
) -> None:
    assert ctypes.CDLL(str(built)).counted_at(kind, number) == device
