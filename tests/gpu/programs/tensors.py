# SPDX-License-Identifier: Apache-2.0
"""Digests of PyTorch tensors."""

import torch


def fold(*tensors: torch.Tensor) -> int:
    """A digest of 64 bits over all bits of tensors, each of a multiple of 8 bytes."""
    total = 0
    for tensor in tensors:
        for part in tensor.detach().flatten().split(1 << 26):
            words = part.view(torch.int64)
            place = torch.arange(
                1, 2 * words.numel(), 2, dtype=torch.int64, device=words.device)
            total = (total * 31 + int(place.mul_(words).sum())) % 2**64
    return total
