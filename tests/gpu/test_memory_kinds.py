# SPDX-License-Identifier: Apache-2.0
"""Memory that programs get by other ways than cuMemAlloc, under frequent hand-overs."""

from bench.harness import program, run, sharing
from tests.gpu.test_sharing import BUDGET, Record, compare, digests


def test_pytorch_with_expandable_segments_computes_the_same_beside_a_rival(record: Record) -> None:
    """PyTorch maps its memory itself."""
    compare(
        record, "expandable segments", program("torch_train", "--gib", "12", "--steps", "300"), 12,
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )


def test_jax_preallocating_most_of_the_card_computes_the_same_beside_a_rival(
    record: Record
) -> None:
    """JAX maps its memory itself: at its start, three quarters of the card."""
    compare(
        record, "JAX preallocating", program("jax_train", "--gib", "5", "--steps", "500"), 12,
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".75"},
    )


def test_jax_with_cuda_async_allocator_computes_the_same_beside_a_rival(record: Record) -> None:
    """It holds what it uses and no more, so the rival has to be larger."""
    compare(
        record, "JAX cuda_async", program("jax_train", "--gib", "5", "--steps", "500"), 17,
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"},
    )


def test_tensor_shared_by_two_processes_is_right_beside_a_rival(record: Record) -> None:
    compare(
        record, "torch.multiprocessing",
        program("torch_share", "--gib", "3", "--private-gib", "6", "--steps", "60"), 10,
    )


def test_pytorch_with_cuda_malloc_async_computes_the_same_beside_a_rival(record: Record) -> None:
    compare(
        record, "cudaMallocAsync", program("torch_train", "--gib", "12", "--steps", "300"), 12,
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    )


def test_managed_memory_program_computes_the_same_beside_a_rival(record: Record) -> None:
    """12 GiB of it, far less than the card has: it is sent away, never left to faults."""
    compare(
        record, "managed memory", program("managed", "--gib", "12", "--steps", "400"), 12,
    )


def test_program_larger_than_the_card_runs_only_with_single_oversub(record: Record) -> None:
    """24 GiB on a card of 20, of which four are managed memory on the host."""
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


def test_program_larger_than_the_card_computes_the_same_beside_a_rival(record: Record) -> None:
    compare(
        record, "larger than the card, and a competitor",
        program("cupy_steps", "--gib", "24", "--steps", "120"), 12,
        {"NVSHARE_ENABLE_SINGLE_OVERSUB": "1"},
    )
