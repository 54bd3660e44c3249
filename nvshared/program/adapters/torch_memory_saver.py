# SPDX-License-Identifier: Apache-2.0
"""A substitute for torch_memory_saver, for inference engines that use it to pause their memory.

`pause` releases the turn, `resume` does nothing. Unlike torch_memory_saver, both ignore tags and
regions, contents are always kept, and only other processes can use the freed space."""

from __future__ import annotations

import contextlib
from typing import Any

from nvshared.program import release

configure_subprocess = contextlib.nullcontext   # no-op: subprocesses inherit LD_PRELOAD


class TorchMemorySaver:
    """The type of `torch_memory_saver.torch_memory_saver`."""

    enabled = True
    hook_mode = "preload"
    memory_margin_bytes = 0
    retain_cpu_backup = True

    def region(self, tag: str = "default", enable_cpu_backup: bool = False,
               enable_disk_backup: bool = False, cpu_backup_backend: str | None = None,
               **_options: Any) -> contextlib.AbstractContextManager[None]:
        """Does nothing: all memory of the process can be evicted, not only that of regions."""
        return contextlib.nullcontext()

    def disable(self, **_options: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def cuda_graph(self, cuda_graph: Any, pool: Any = None, stream: Any = None,
                   capture_error_mode: str = "global", tag: str = "default",
                   enable_cpu_backup: bool = False, cpu_backup_backend: str | None = None,
                   **_options: Any) -> Any:
        """Returns torch.cuda.graph(): blocks keep their addresses, so graphs stay valid."""
        import torch

        return torch.cuda.graph(
            cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode)

    def pause(self, tag: str | None = None) -> None:
        """Releases the turn. Raises RuntimeError if this process shares no GPU."""
        if not release():
            raise RuntimeError("this process shares no GPU, so no memory would leave it: start it "
                               "with nvsharectl run")

    def resume(self, tag: str | None = None) -> None:
        """Does nothing: the next work waits for a turn."""

    def set_disk_backup_dir(self, path: str) -> None:
        """Does nothing: nvshared's settings decide where swapped memory is kept."""

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """Returns a copy of the tensor in host memory. The copy waits for a turn."""
        return x.cpu()


torch_memory_saver = TorchMemorySaver()
