# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/top.svg: what `nvsharectl top` shows while programs take turns.

`make screenshot` runs it. Nothing in the picture is made up. A daemon of its own shares
this machine's GPU, or a simulated one, between programs that do not fit together, and
the dashboard draws what that daemon answers.
"""

import argparse
import asyncio
import io
import re
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from nvshared import library
from nvshared.control import Daemon
from nvshared.control.snapshot import Snapshot
from nvshared.demo.gpu import DemoGPU, find
from nvshared.demo.process import running
from nvshared.demo.service import service
from nvshared.tui.dashboard import dashboard
from nvshared.tui.rates import rates
from nvshared.units import GIB, MIB

PICTURE = Path(__file__).with_name("images") / "top.svg"
BUSY = {"training": 0.61, "inference": 0.54}       # of the card's memory
IDLE = {"notebook": 0.2}
SIMULATED_MEMORY = 2 * GIB
CHUNKS = 16                             # allocations of each program
WORK = ["--steps", "1000000", "--kernel-us", "40000", "--cpu-ms", "300"]
LOOK = 0.1                              # seconds between two looks at the daemon
WINDOW = 10.0                           # seconds over which rates are taken, at least
PATIENCE = 90.0
WIDTH = 96                              # characters
FONTS = "ui-monospace, DejaVu Sans Mono, Menlo, Consolas"
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


async def picture(simulate: bool) -> str:
    """Runs the programs until there is something to see; that, as SVG."""
    with tempfile.TemporaryDirectory(prefix="nvshare-", dir="/tmp") as name:
        folder = Path(name)
        gpu = _whole(await find(folder, simulate))
        async with AsyncExitStack() as stack:
            daemon = await stack.enter_async_context(service(gpu, folder))
            for program, share in {**IDLE, **BUSY}.items():
                work = ["--hold"] if program in IDLE else WORK
                memory = _memory(int(gpu.capacity * share))
                await stack.enter_async_context(running(
                    [*_command(folder / program), *memory, *work], gpu.with_sharing(),
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
                ))
            return _drawn(*await _moment(daemon.bus))


def _whole(gpu: DemoGPU) -> DemoGPU:
    """The demonstration uses a part of a card, so that it is over soon. Here all of it is seen."""
    if not gpu.simulated:
        return replace(gpu, capacity=gpu.capacity + gpu.ballast, ballast=0)
    environment = {**gpu.environment, "NVSHARE_SIM_MEMORY": str(SIMULATED_MEMORY)}
    return replace(
        gpu, total=SIMULATED_MEMORY, capacity=SIMULATED_MEMORY, environment=environment
    )


def _command(program: Path) -> list[str]:
    """nvshare-workload under a name that says what it stands for."""
    program.symlink_to(library.workload())
    return [str(program)]


def _memory(size: int) -> list[str]:
    chunk = size // CHUNKS // (2 * MIB) * 2 * MIB
    return ["--memory", str(chunk * CHUNKS), "--chunk", str(chunk)]


async def _moment(bus: str) -> tuple[Snapshot, Snapshot, float]:
    """A moment worth a picture, one before it, and the seconds between the two."""
    began: tuple[float, Snapshot] | None = None
    with Daemon(bus) as client:
        end = time.monotonic() + PATIENCE
        while (now := time.monotonic()) < end:
            snapshot = await asyncio.to_thread(client.snapshot)
            if snapshot.gpus[0].turns > len(BUSY):
                began = began or (now, snapshot)
                if now - began[0] > WINDOW and _tells(snapshot):
                    return began[1], snapshot, now - began[0]
            await asyncio.sleep(LOOK)
    raise TimeoutError(f"nothing worth a picture within {PATIENCE:.0f} seconds")


def _tells(snapshot: Snapshot) -> bool:
    """One computes with all of its memory there; of those that wait or idle some is away."""
    states = {client.state: client for client in snapshot.clients}
    if set(states) != {"running", "waiting", "idle"} or not snapshot.gpus[0].utilization:
        return False
    running_now = states.pop("running")
    return running_now.swapped == 0 and all(client.swapped for client in states.values())


def _drawn(before: Snapshot, now: Snapshot, seconds: float) -> str:
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(dashboard(now, rates(before, now, seconds)))
    drawn = console.export_svg(
        title="nvsharectl top", theme=DIMMED_MONOKAI, unique_id="nvsharectl-top"
    )
    # Whoever shows the picture takes a font of their own, and asks no other server for one.
    drawn = FONT.sub("", drawn).replace("Fira Code", FONTS)
    return drawn.replace("<svg ", '<svg xml:space="preserve" ', 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulate", action="store_true", help="do not look for a real GPU")
    parser.add_argument("--output", type=Path, default=PICTURE, help="the file; %(default)s")
    options = parser.parse_args()
    options.output.write_text(asyncio.run(picture(options.simulate)), encoding="utf-8")
