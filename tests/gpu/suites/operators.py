# SPDX-License-Identifier: Apache-2.0
"""PyTorch's database of operators: all samples of each, forward and backward, as a digest."""

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tests.gpu.suites.absent import stand_in
from tests.gpu.suites.outcome import Outcome, chosen, first_line

stand_in("expecttest")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

SECOND = (torch.int32, torch.float16, torch.bfloat16, torch.bool, torch.complex64)
# Bytes: a size of each class (small to large) that PyTorch's allocator treats differently.
STAINED = (512, 64 << 10, 1 << 20, 8 << 20, 32 << 20)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a value, at any depth of its containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in value:
            yield from tensors(value[key])
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from tensors(item)


def add(digest: Any, value: Any) -> None:
    """Adds to the digest types, shapes and all bits of the tensors in a value."""
    for tensor in tensors(value):
        plain = tensor.detach()
        if plain.layout is not torch.strided:
            plain = plain.to_dense()
        if plain.is_quantized:
            plain = plain.int_repr()
        plain = plain.resolve_conj().resolve_neg().cpu().contiguous()
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(value, bool | int | float | complex | str):
        digest.update(repr(value).encode())


def gradients(result: Any, inputs: Any) -> Sequence[torch.Tensor | None]:
    """The gradients of the sum of all outputs that have a gradient."""
    outputs = [tensor for tensor in tensors(result) if tensor.requires_grad]
    leaves = [tensor for tensor in tensors(inputs) if tensor.requires_grad and tensor.is_leaf]
    if not outputs or not leaves:
        return ()
    ones = [torch.ones_like(tensor) for tensor in outputs]
    found: Sequence[torch.Tensor | None]
    found = torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
    return found


def stain(byte: int) -> None:
    """Writes `byte` to freed memory, so that results show a later read of unwritten memory."""
    for size in STAINED:
        pieces = [torch.full((size,), byte, dtype=torch.uint8, device="cuda") for _ in range(4)]
        del pieces


def digest_of(operator: Any, dtype: torch.dtype) -> str:
    """Digest of the operator's results for all its samples. Raises the operator's exceptions."""
    digest = hashlib.sha256()
    backward = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cuda")
    for sample in operator.sample_inputs("cuda", dtype, requires_grad=backward):
        result = operator(sample.input, *sample.args, **sample.kwargs)
        for value in result if isinstance(result, tuple) else (result,):
            add(digest, value)
        if backward:
            given = (sample.input, sample.args, sample.kwargs)
            try:
                add(digest, [one for one in gradients(result, given) if one is not None])
            except RuntimeError as error:
                # Some operators have no gradient for these inputs: the error's text counts instead.
                add(digest, first_line(str(error)))
    return digest.hexdigest()


def run(count: int, byte: int) -> Iterator[Outcome]:
    """The outcomes of `count` pairs of an operator and a type."""
    tests = {}
    for operator in op_db:
        types = operator.supported_dtypes("cuda")
        second = next((dtype for dtype in SECOND if dtype in types), None)
        for dtype in (torch.float32, second):
            if dtype in types:
                tests[f"{operator.formatted_name} {dtype}"] = (operator, dtype)
    for name in chosen(tests, count):
        operator, dtype = tests[name]
        stain(byte)
        torch.manual_seed(zlib.crc32(name.encode()))
        try:
            yield Outcome(name, "passed", digest=digest_of(operator, dtype))
        # Any exception is an outcome: it must be the same with the library.
        except Exception as error:
            yield Outcome(name, "failed", first_line(f"{type(error).__name__}: {error}"))
