# SPDX-License-Identifier: Apache-2.0
"""Accepted and refused values of annotations and of claim parameters, for nvshare-kubelet and for
the API server's policies."""

from collections.abc import Mapping

WHOLE = ("1", "7", "99", "100", " 100 ", "60\n")
NO_NUMBER = (
    "", " ", "0", "00", "01", "-1", "+1", "1.0", "1e2", "0x10", "60%", "6 0", "x", "none", "¹", "६",
    "10000", "4294967297", "9" * 40, "60\n7",
)
SIZES = (
    "1", "4096", " 4096 ", "999999999", "4Gi", "4gi", "4 Gi", "4G", "1.5Gi", "0.5ti", "10k",
    "0.001k", "16777215Ti", "000000000000004Gi", "1.000000000000001Gi",
)
NO_SIZE = (
    "", " ", "0", "-1", "01", "1000000000", "1.5", "0.0009k", "0Gi", "0.0Gi", "4GiB", "4GB", "none",
    "4Pi", "4Mib", "Gi", ".5Gi", "5.Gi", "1.5.5Gi", "1e3Gi", "4,5Gi", "50%", "16777216Ti",
    "999999999999999Ti", "0000000000000004Gi", "1.0000000000000001Gi", "४Gi", "4 G i", "-4Gi", "4B",
)

# By annotation: accepted values, refused values.
VALUES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nvshare.com/gpu-core-limit": (WHOLE, (*NO_NUMBER, "101", "1000")),
    "nvshare.com/gpu-core-request": (WHOLE, (*NO_NUMBER, "101", "1000")),
    "nvshare.com/gpu-memory-limit": (SIZES, NO_SIZE),
    "nvshare.com/host-memory-limit": (SIZES, NO_SIZE),
    "nvshare.com/priority": (
        ("background", " normal", "high\n"), ("", "High", "low", "2", "normal high", "none")),
    "nvshare.com/weight": ((*WHOLE, "101", "1000"), (*NO_NUMBER, "1001")),
}

# Accepted and refused parameters of claims.
PARAMETERS: tuple[tuple[dict[str, object], ...], tuple[dict[str, object], ...]] = (
    (
        {}, {"weight": 1}, {"weight": 1000}, {"weight": "200"}, {"priority": "background"},
        {"weight": 300, "priority": "high"},
    ),
    (
        {"wieght": 1}, {"weight": 0}, {"weight": -1}, {"weight": 1001}, {"weight": 1.5},
        {"weight": True}, {"weight": None}, {"weight": [1]}, {"weight": {}}, {"weight": "x"},
        {"weight": ""}, {"weight": " 7"}, {"weight": "7\n"}, {"priority": 2}, {"priority": "low"},
        {"priority": "High"}, {"priority": None}, {"priority": ["high"]}, {"": 1},
        {"weight": 100, "memory": "1Gi"},
    ),
)
