# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/*.svg: what `nvsharectl` shows while programs take turns.

`make screenshot` runs it. Nothing in the pictures is made up. A daemon of its own shares
this machine's GPU, or a simulated one, between programs that do not fit together, and
the dashboard and the other commands show what that daemon answers.
"""

import argparse
import asyncio
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from nvshared import library
from nvshared.control import Daemon
from nvshared.control.snapshot import Snapshot
from nvshared.demo import DemoGPU, find, running, service
from nvshared.tui.screen import draw
from nvshared.tui.state import (
    Command,
    Opened,
    Screen,
    View,
    program_key,
    reselected,
    with_snapshot,
)
from nvshared.units import GIB, MIB

PICTURES = Path(__file__).with_name("images")
WIDTHS = (80, 130, 200)                 # characters
HEIGHT, TALL = 20, 36                   # lines of the list, and of what is read
COMMANDS = {
    "status": ["status"],
    "clients": ["clients"],
    "tenants": ["tenants"],
    "history": ["history", "--since", "1h", "--step", "minute"],
    "plot": ["history", "--since", "10min", "--step", "minute", "--by", "tenant", "--plot"],
}
BUSY = {"training": 0.61, "inference": 0.54}       # parts of the card's memory
IDLE = {"notebook": 0.2}
UNSHARED = {"renderer": 0.02}
SIMULATED_MEMORY = 2 * GIB
CHUNKS = 16                             # allocations of each program
WORK = ["--steps", "1000000", "--kernel-us", "40000", "--cpu-ms", "300"]
LOOK = 0.1                              # seconds between two looks at the daemon
HISTORY = 150.0                         # seconds that the graphs show
PATIENCE = 90.0
FONTS = "ui-monospace, DejaVu Sans Mono, Menlo, Consolas"
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


async def pictures(simulate: bool, seconds: float) -> dict[str, str]:
    """Runs the programs until there is something to see; all screens, as SVG, by name."""
    with tempfile.TemporaryDirectory(prefix="nvshare-", dir="/tmp") as name:
        folder = Path(name)
        gpu = _whole(await find(folder, simulate))
        async with AsyncExitStack() as stack:
            bus = f"unix:path={folder / 'bus'}"
            process = await stack.enter_async_context(running(
                ["dbus-daemon", "--session", f"--address={bus}", "--nofork", "--print-address=1"],
                os.environ))
            assert process.stdout is not None
            await process.stdout.readline()         # it listens
            await stack.enter_async_context(service(gpu, folder, bus))
            for program, share in {**IDLE, **BUSY, **UNSHARED}.items():
                work = WORK if program in BUSY else ["--hold"]
                memory = _memory(int(gpu.capacity * share))
                environment = gpu.environment if program in UNSHARED else gpu.sharing()
                await stack.enter_async_context(running(
                    [*_command(folder / program), *memory, *work], environment,
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
                ))
            states = await _states(bus, seconds)
            told = {
                (name, width): await asyncio.to_thread(_told, bus, command, width)
                for name, command in COMMANDS.items() for width in WIDTHS
            }
    tops = {
        f"top-{screen}-{width}": _drawn(
            f"nvsharectl top, {screen}", f"{screen}-{width}", width, _screen(state, width))
        for screen, state in states.items() for width in WIDTHS
    }
    return tops | {
        f"{name}-{width}": _drawn(
            f"nvsharectl {' '.join(COMMANDS[name])}", f"{name}-{width}", width, text)
        for (name, width), text in told.items()
    }


def _whole(gpu: DemoGPU) -> DemoGPU:
    """The demonstration uses a part of a card, so that it is over soon. Here all of it is seen."""
    if not gpu.simulated:
        return gpu._replace(capacity=gpu.capacity + gpu.ballast, ballast=0)
    environment = {**gpu.environment, "NVSHARE_SIM_MEMORY": str(SIMULATED_MEMORY)}
    return gpu._replace(
        total=SIMULATED_MEMORY, capacity=SIMULATED_MEMORY, environment=environment
    )


def _command(program: Path) -> list[str]:
    """nvshare-workload under a name that says what it stands for."""
    program.symlink_to(library.workload())
    return [str(program)]


def _memory(size: int) -> list[str]:
    chunk = size // CHUNKS // (2 * MIB) * 2 * MIB
    return ["--memory", str(chunk * CHUNKS), "--chunk", str(chunk)]


async def _states(bus: str, seconds: float) -> dict[str, View]:
    """The dashboard at a moment worth a picture, after some minutes' looks; its screens."""
    state, worth = View(), False
    with Daemon(bus) as client:
        began = time.monotonic()
        while not worth or time.monotonic() - began < seconds:
            if time.monotonic() - began > seconds + PATIENCE:
                raise TimeoutError(f"nothing worth a picture within {PATIENCE:.0f} seconds")
            await asyncio.sleep(LOOK)
            snapshot = await asyncio.to_thread(client.snapshot)
            state, worth = with_snapshot(state, snapshot, time.monotonic()), _tells(snapshot)
        waiting = next(one for one in snapshot.clients if one.state == "waiting")
        state = reselected(replace(state, selected=program_key(waiting)))
        tenant = await asyncio.to_thread(client.tenant, waiting.tenant)
        turns = await asyncio.to_thread(client.turns, waiting.id)
    opened = Opened(waiting, (tenant,), tuple(turns))
    return {
        "main": state,
        "details": replace(state, opened=opened),
        "change": replace(state, unconfirmed=Command("weight", waiting, 200, waiting.tenant)),
        "help": replace(state, in_help=True),
    }


def _tells(snapshot: Snapshot) -> bool:
    """One computes with all of its memory there; of those that wait or idle some is away."""
    states = {client.state: client for client in snapshot.clients}
    if set(states) != {"running", "waiting", "idle"} or not snapshot.gpus[0].utilization:
        return False
    running_now = states.pop("running")
    return running_now.swapped == 0 and all(client.swapped for client in states.values())


def _told(bus: str, command: list[str], width: int) -> Text:
    """What a command shows in a terminal of this width."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", TALL, width, 0, 0))
    environment = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(
        [sys.executable, "-c", "from nvshared.cli.main import main; main()", "--bus", bus,
         *command],
        env={**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        stdout=its, stderr=subprocess.PIPE,
    ) as process:
        os.close(its)
        written = b"".join(_until_closed(ours))
        os.close(ours)
        assert process.stderr is not None
        words = process.stderr.read().decode(errors="replace")
    if process.returncode:
        raise RuntimeError(f"nvsharectl {' '.join(command)}: {words.strip()}")
    return Text.from_ansi(written.decode().replace("\r\n", "\n").rstrip())


def _until_closed(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):             # EIO: all who had the other end have closed it
        while part := os.read(terminal, 4096):
            yield part


def _screen(state: View, width: int) -> Text:
    height = HEIGHT if state.screen is Screen.MAIN else TALL
    return Text("\n").join(draw(state, width, height).lines)


def _drawn(title: str, name: str, width: int, text: Text) -> str:
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(text, soft_wrap=True)
    drawn = console.export_svg(title=title, theme=DIMMED_MONOKAI, unique_id=f"nvsharectl-{name}")
    # Whoever shows the picture takes a font of their own, and asks no other server for one.
    drawn = FONT.sub("", drawn).replace("Fira Code", FONTS)
    return drawn.replace("<svg ", '<svg xml:space="preserve" ', 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulate", action="store_true", help="do not look for a real GPU")
    parser.add_argument(
        "--output", type=Path, default=PICTURES, help="the folder; %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=HISTORY, help="what the graphs show; %(default)s")
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    for name, picture in asyncio.run(pictures(options.simulate, options.seconds)).items():
        (options.output / f"{name}.svg").write_text(picture, encoding="utf-8")
