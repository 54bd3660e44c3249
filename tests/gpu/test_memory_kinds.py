# SPDX-License-Identifier: Apache-2.0
"""Memory that programs get by other ways than cuMemAlloc, under frequent hand-overs."""

from bench.harness import program
from tests.gpu.test_sharing import Record, compare


def test_expandable_segments(record: Record) -> None:
    """PyTorch maps its memory itself."""
    compare(
        record, "expandable segments", program("torch_train", "--gib", "12", "--steps", "300"), 12,
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )


def test_jax_that_takes_three_quarters_of_the_card(record: Record) -> None:
    """JAX maps its memory itself, and at its start all that it will ever use."""
    compare(
        record, "JAX preallocating", program("jax_train", "--gib", "5", "--steps", "500"), 12,
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".75"},
    )


def test_jax_with_its_stream_ordered_allocator(record: Record) -> None:
    compare(
        record, "JAX cuda_async", program("jax_train", "--gib", "5", "--steps", "500"), 14,
        {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"},
    )


def test_a_tensor_shared_by_two_processes(record: Record) -> None:
    compare(
        record, "torch.multiprocessing",
        program("torch_share", "--gib", "3", "--private-gib", "6", "--steps", "60"), 10,
    )


def test_stream_ordered_pools(record: Record) -> None:
    compare(
        record, "cudaMallocAsync", program("torch_train", "--gib", "12", "--steps", "300"), 12,
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    )
