# SPDX-License-Identifier: Apache-2.0
"""Has the interface of torch_memory_saver, for engines that pause and resume their memory with it.

Engines import this module in its place if its folder is in PYTHONPATH, and /usr/lib/nvshared too.
`pause` releases the process's turn, and memory leaves the GPU as far as other programs need the
room; `resume` does nothing, as the next work waits for a turn and finds its memory in place. This
holds for all memory of the process, whatever its tag and its region. Two things differ from
torch_memory_saver: contents are kept always, so memory whose contents are of no use is copied too;
and the room is for other processes, not for further allocations of the same one.
"""

from __future__ import annotations

import contextlib
from typing import Any

from nvshared.program import release

configure_subprocess = contextlib.nullcontext   # subprocesses inherit LD_PRELOAD


class TorchMemorySaver:
    """What `from torch_memory_saver import torch_memory_saver` gives."""

    enabled = True
    hook_mode = "preload"
    memory_margin_bytes = 0
    retain_cpu_backup = True

    def region(self, tag: str = "default", enable_cpu_backup: bool = False,
               **_options: Any) -> contextlib.AbstractContextManager[None]:
        """Does nothing: all memory of the process can leave the GPU."""
        return contextlib.nullcontext()

    def disable(self, **_options: Any) -> contextlib.AbstractContextManager[None]:
        """Does nothing, as region()."""
        return contextlib.nullcontext()

    def cuda_graph(self, cuda_graph: Any, pool: Any = None, stream: Any = None,
                   capture_error_mode: str = "global", **_options: Any) -> Any:
        """torch.cuda.graph() of the same arguments: graphs keep their addresses."""
        import torch

        return torch.cuda.graph(
            cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode)

    def pause(self, tag: str | None = None) -> None:
        """Releases the turn. Raises RuntimeError if this process shares no GPU: nothing would
        leave it."""
        if not release():
            raise RuntimeError("this process shares no GPU, so no memory would leave it: start it "
                               "with nvsharectl run")

    def resume(self, tag: str | None = None) -> None:
        """Does nothing."""

    def set_disk_backup_dir(self, path: str) -> None:
        """Does nothing: what leaves the GPU is in host memory, or where nvshared keeps it."""

    def get_cpu_backup(self, tensor: Any, zero_copy: bool = False) -> Any:
        """A copy of the tensor in host memory. Waits for a turn to make it."""
        return tensor.cpu()


torch_memory_saver = TorchMemorySaver()
