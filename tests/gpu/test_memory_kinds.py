# SPDX-License-Identifier: Apache-2.0
"""Memory allocated by other functions than cuMemAlloc, under frequent hand-overs."""

import pytest

from bench.harness import program, run, sharing
from tests.gpu.test_sharing import BUDGET, Record, compare, digests

TORCH = program("torch_train", "--gib", "12", "--steps", "300")
JAX = program("jax_train", "--gib", "5", "--steps", "500")

# The program, GiB of its rival, and settings.
KINDS = {
    # PyTorch maps its memory itself.
    "expandable segments": (TORCH, 12, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "cudaMallocAsync": (TORCH, 12, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    # JAX maps its memory itself: at its start, three quarters of the card.
    "JAX preallocating": (JAX, 12, {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".75"}),
    # cuda_async keeps no unused memory, so the rival has to be larger.
    "JAX cuda_async": (JAX, 17, {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}),
    "torch.multiprocessing": (
        program("torch_share", "--gib", "3", "--private-gib", "6", "--steps", "60"), 10, {}),
    # Far less than the card's memory: prefetches evict it, not page faults.
    "managed memory": (program("managed", "--gib", "12", "--steps", "400"), 12, {}),
    "larger than the card, and a competitor": (
        program("cupy_steps", "--gib", "24", "--steps", "120"), 12,
        {"NVSHARE_ENABLE_SINGLE_OVERSUB": "1"}),
    "a graph between hand-overs": (
        program("torch_engine", "--gib", "12", "--phases", "400", "--replays", "1",
                "--pause-ms", "10"), 12, {}),
    "torch.compile between hand-overs": (
        program("torch_train", "--gib", "12", "--steps", "400", "--compile"), 12, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_program_with_each_kind_of_memory_computes_the_same_results_beside_another_client(
    kind: str, record: Record
) -> None:
    command, rival_gib, settings = KINDS[kind]
    compare(record, kind, command, rival_gib, settings)


def test_program_larger_than_the_card_runs_only_with_single_oversub(record: Record) -> None:
    """The program allocates 24 GiB on a card of 20 GiB: 4 GiB are managed memory on the host."""
    large = program("cupy_steps", "--gib", "24", "--steps", "40")
    alone = run([large])
    with sharing("--capacity", "20GiB", *BUDGET) as daemon:
        refused, = run([large], daemon.environment)
        allowed = run([large], {**daemon.environment, "NVSHARE_ENABLE_SINGLE_OVERSUB": "1"})
        resident = [line["memory"]["resident"] + line["memory"]["pinned"]
                    for line in daemon.trace() if "memory" in line]
    record("larger than the card", {
        "alone_s": alone[0].seconds, "oversubscribed_s": allowed[0].seconds,
    })
    assert refused.code != 0
    assert "OutOfMemory" in refused.errors
    assert digests(allowed) == digests(alone)
    assert max(resident) <= 20 * 2**30
