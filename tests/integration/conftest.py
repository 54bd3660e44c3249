# SPDX-License-Identifier: Apache-2.0
"""The real daemon as a process, with a socket of its own and simulated cards."""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from bench.trace import Line, written
from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.hook.protocol import VERSION, Type
from nvshared.units import MIB
from tests.bus.service import private_bus
from tests.integration.fakehook import PATIENCE, Hook, pump
from tests.integration.zygote import Daemon, Zygote

if TYPE_CHECKING:
    from tests.integration.kubelet_node import Node

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "libhook" / "build"
SIMULATOR = BUILD / "simulator"

CARD = 1024 * MIB
CARDS = 2
LOOK = 1.0                              # seconds between checks that a daemon still runs

# The first process that uses the cards creates the simulator's files, which all users must open.
OPEN_CARDS = "import ctypes; assert ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2() == 0"
DAEMON = [sys.executable, "-m", "nvshared"]
# Constants that tests replace in a daemon, as changes of its environment.
SAMPLED_OFTEN = {"NVSHARE_TEST_CONSTANTS": "nvshared.sharing.sampler:SAMPLE_INTERVAL=100000"}
SAMPLED_ONCE = {"NVSHARE_TEST_CONSTANTS": "nvshared.sharing.sampler:SAMPLE_INTERVAL=3600000000"}
PATIENT = {"NVSHARE_TEST_CONSTANTS": "nvshared.hook.connection:HELLO_WITHIN=3600000000"}


@dataclass(eq=False)
class Process:
    """A process with pipes: a test writes lines to its stdin and reads lines of its stdout."""

    popen: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)      # lines of stdout read so far

    def tell(self, line: str = "") -> None:
        print(line, file=self.popen.stdin, flush=True)

    def line(self) -> str:
        assert self.popen.stdout is not None
        self.lines.append(self.popen.stdout.readline().strip())
        return self.lines[-1]

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.line()

    def wait_for(self, line: str) -> None:
        assert self.popen.stdout is not None
        for got in self.popen.stdout:
            self.lines.append(got.strip())
            if got.strip() == line:
                return
        pytest.fail(f"it ended before {line!r}; it said {self.lines}")

    def kill(self) -> None:
        kill(self.popen)

    def end(self) -> None:
        """Closes its standard input, after which it exits with success."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        assert self.popen.wait() == 0


@dataclass
class Site:
    """A folder for a daemon's socket and files, and the simulated cards that the daemon finds."""

    folder: Path
    environment: dict[str, str]
    uuids: list[bytes]
    before: list[str] = field(default_factory=list)     # command that executes the daemon
    module: str = "nvshared"            # or tests.integration.changed: nvshared with faults
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    meter: Process | None = None        # a process that samples NVML, for test_moving.py
    programs: list[Any] = field(default_factory=list)   # programs of test_moving
    hooks: list[Hook] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)     # sockets of a fake daemon
    version: int = VERSION              # of the protocol, which hook() speaks

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "sock"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def trace(self) -> list[Line]:
        """All lines of the file "trace" in this folder."""
        return written(self.folder / "trace")

    def lines(self, **fields: object) -> list[Line]:
        return [line for line in self.trace() if fields.items() <= line.items()]

    def command(self, *options: str) -> list[str]:
        return [
            sys.executable, "-m", self.module, "--config", str(self.folder / "nvshared.conf"),
            "--socket", str(self.socket), "--bus", "none", *options,
        ]

    def run(self, *options: str, **changed: str) -> subprocess.CompletedProcess[str]:
        """A daemon that is expected to end by itself."""
        return subprocess.run(
            self.command(*options), env={**self.environment, **changed}, cwd=ROOT,
            capture_output=True, text=True, timeout=PATIENCE, check=False)

    def start(self, *options: str, **changed: str) -> subprocess.Popen[str]:
        address = self.folder / "notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(str(address))
            ready.settimeout(LOOK)
            environment = {**self.environment, "NOTIFY_SOCKET": str(address), **changed}
            command = [*self.before, *self.command(*options)]
            daemon: subprocess.Popen[str]
            with self.log.open("a") as log:
                if command[:3] == DAEMON and environment.get("LD_LIBRARY_PATH") == str(SIMULATOR):
                    daemon = Daemon(
                        zygote("nvshared.daemon"), command[3:], stderr=log, env=environment)
                else:
                    daemon = subprocess.Popen(
                        command, cwd=ROOT, stderr=log, text=True, env=environment)
            self.started.append(daemon)
            try:
                while not _says_ready(ready):
                    if daemon.poll() is not None:
                        pytest.fail(f"the daemon ended at its start: {self.log.read_text()}")
            finally:
                address.unlink()
        return daemon

    def hook(self, card: int = 0) -> Hook:
        hook = Hook(str(self.socket), self.uuids[card], version=self.version)
        self.hooks.append(hook)
        return hook

    def allocating(self, size: int, card: int = 0) -> Hook:
        """A client to which the daemon has granted `size` bytes."""
        hook = self.hook(card)
        answer = hook.hello()
        assert answer is not None
        assert answer.type is Type.LIMITS
        assert hook.allocate(size)
        return hook

    def wanting(self, size: int, card: int = 0) -> Hook:
        """A client with `size` granted bytes that wants the card."""
        hook = self.allocating(size, card)
        hook.want()
        return hook

    def holding(self, size: int = 1000 * MIB) -> Hook:
        """A client with `size` granted bytes; it has the turn and its memory when this returns.

        The daemon writes the trace after it has sent RUN, so this waits for the line."""
        traced = (self.folder / "trace").exists()
        before = len(self.lines(report="turn-started")) if traced else 0
        hook = self.wanting(size)
        pump([hook], lambda: hook.running)
        if traced:
            wait_until(lambda: len(self.lines(report="turn-started")) > before)
        return hook

    def client(self, size: int, *options: str) -> Process:
        popen = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.fakehook", str(self.socket),
             self.uuids[0].hex(), str(size), *options],
            env=self.environment, cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.started.append(popen)
        return Process(popen)

    def program(
        self, command: Sequence[object], environment: Mapping[str, str] = MappingProxyType({}),
        **options: Any
    ) -> subprocess.Popen[str]:
        """A program under the library, with pipes unless `options` of Popen say otherwise."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        popen = subprocess.Popen(
            list(map(str, command)), cwd=ROOT, text=True, **pipes | options,
            env={**self.environment, "LD_PRELOAD": str(BUILD / "libnvshare.so"),
                 "NVSHARE_SOCKET": str(self.socket), **environment})
        self.started.append(popen)
        return popen

    def workload(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        return self.program([BUILD / "nvshare-workload", *options], environment)

    def close(self) -> None:
        for hook in self.hooks:
            hook.close()
        for one in self.sockets:
            one.close()
        for process in self.started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def _says_ready(ready: socket.socket) -> bool:
    try:
        return ready.recv(1000) == b"READY=1"
    except TimeoutError:
        return False


Cards = tuple[dict[str, str], list[bytes]]      # environment variables and UUIDs of the cards
NO_RESERVES = "[gpu]\nreserve = 0\ncontext-reserve = 0\n"


def compile_faulty_disk(folder: Path) -> Path:
    """Returns the library of disk.c, which is preloaded before libnvshare.so."""
    library = folder / "disk.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", Path(__file__).with_name("disk.c"), "-o", library], check=True)
    return library


def simulate(folder: Path, number: int = CARDS, memory: int = CARD) -> Cards:
    """Simulated cards whose state lies in a folder."""
    if not (SIMULATOR / "libnvidia-ml.so.1").exists():
        pytest.fail(f"there is no simulated NVML in {SIMULATOR}; make build makes it")
    folder.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(SIMULATOR),
        "NVSHARE_SIM_DIR": str(folder),
        "NVSHARE_SIM_GPUS": str(number),
        "NVSHARE_SIM_MEMORY": str(memory),
        "NVSHARE_SIM_DRIVER": os.environ.get("NVSHARE_SIM_DRIVER", ""),
    }
    return environment, [uuid_of(card) for card in range(number)]


def uuid_of(card: int) -> bytes:
    """The UUID of a simulated card, as shared_uuid() of the simulator computes it."""
    return bytes([0x51 + 37 * card]) + bytes.fromhex(f"3a7c0e9d424b86a15f6e76736861{card:02x}")


@cache
def zygote(module: str) -> Zygote:
    """A process that forks daemons which execute main() of this module."""
    made = Zygote(module, {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(SIMULATOR)})
    atexit.register(made.close)
    return made


@pytest.fixture(scope="session")
def cards() -> Iterator[Cards]:
    with tempfile.TemporaryDirectory(prefix="nvshare-") as name:
        folder = Path(name)             # not pytest's tmp_path, which other users cannot enter
        found = simulate(folder)
        subprocess.run([sys.executable, "-c", OPEN_CARDS], env=found[0], check=True)
        for path in (folder, *folder.iterdir()):
            path.chmod(0o777)
        yield found


@pytest.fixture
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder. The test's name is not in its path: tests search logs, which contain the
    path of the socket, for words that are also in names of tests."""
    return tmp_path_factory.mktemp("site")


def make_site(folder: Path, cards: Cards, gpu: str = NO_RESERVES) -> Iterator[Site]:
    """A site in an empty folder. At the end its processes are killed and the log is printed.

    `gpu`: the section of the daemon's configuration.
    """
    environment, uuids = cards
    site = Site(folder, dict(environment), uuids)       # a copy that the test may change
    (folder / "nvshared.conf").write_text(gpu)
    yield site
    site.close()
    if site.log.exists():
        sys.stderr.write(site.log.read_text())


@pytest.fixture
def site(site_folder: Path, cards: Cards) -> Iterator[Site]:
    yield from make_site(site_folder, cards)


@pytest.fixture
def own_site(site_folder: Path) -> Iterator[Site]:
    """A site with cards that no other test uses. All sites below have such cards, too."""
    yield from make_site(site_folder, simulate(site_folder / "cards"))


@pytest.fixture
def site_of_three(site_folder: Path) -> Iterator[Site]:
    yield from make_site(site_folder, simulate(site_folder / "cards", 3))


@pytest.fixture
def small_site(site_folder: Path) -> Iterator[Site]:
    """A site with small cards, so that moving all memory is quick.

    The daemon keeps a reserve for contexts, because a program may create its second context while
    other programs fill the card.
    """
    yield from make_site(site_folder, simulate(site_folder / "cards", memory=224 * MIB),
                         "[gpu]\nreserve = 0\ncontext-reserve = 10MiB\n")


@pytest.fixture
def tiny_site(site_folder: Path) -> Iterator[Site]:
    yield from make_site(site_folder, simulate(site_folder / "cards", memory=64 * MIB))


@pytest.fixture
def site_with_reserves(site_folder: Path) -> Iterator[Site]:
    """A site with one card of 256 MiB, of which the daemon keeps its default reserves."""
    yield from make_site(site_folder, simulate(site_folder / "cards", 1, 256 * MIB), "")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """An empty folder with a short path: a socket's path has at most 107 characters."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def public_site(short_path: Path, cards: Cards) -> Iterator[Site]:
    """A site in a folder that every user may enter, unlike the folders of pytest."""
    short_path.chmod(0o755)
    yield from make_site(short_path, cards)


def public_build(site: Site) -> Path:
    """A copy of the workload and its libraries that every user can read.

    Other users cannot reach a checkout below /root, for example.
    """
    copy = site.folder / "build"
    if not copy.exists():
        shutil.copytree(BUILD / "simulator", copy / "simulator",
                        ignore=lambda folder, names: [n for n in names if ".so" not in n])
        for name in ("nvshare-workload", "libnvshare.so"):
            shutil.copy(BUILD / name, copy / name)
        subprocess.run(["chmod", "-R", "a+rX", str(copy)], check=True)
    return copy


@pytest.fixture
def node(site: Site, short_path: Path) -> "Iterator[Node]":
    from tests.integration import kubelet_node  # imports gRPC, which may be missing

    with kubelet_node.made(site, short_path) as made:
        yield made


def kill(process: "subprocess.Popen[Any]") -> None:
    process.kill()
    process.wait()


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls a condition; fails after PATIENCE. The pauses (seconds) grow, because a snapshot of the
    daemon takes longer than a short pause."""
    end, pause = time.monotonic() + PATIENCE, 0.01
    while not condition():
        assert time.monotonic() < end, "it never became so"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.1)


@pytest.fixture
def bus() -> Iterator[str]:
    if why := no_bus():
        pytest.skip(why)
    with private_bus() as made:
        yield made.address


Start = Callable[..., Control]


@pytest.fixture
def start(site: Site, bus: str) -> Iterator[Start]:
    opened: list[Control] = []

    def started(*options: str, **changed: str) -> Control:
        site.start("--bus", bus, "--trace", str(site.folder / "trace"), *options, **changed)
        opened.append(Control(bus))
        return opened[-1]

    yield started
    for control in opened:
        control.close()
