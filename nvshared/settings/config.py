# SPDX-License-Identifier: Apache-2.0
"""The settings: one table, four places to set them.

Later ones win: the defaults below, /etc/nvshare/nvshared.conf, its drop-ins
nvshared.conf.d/*.conf in the order of their names, environment variables, the
command line. `Config` is that table: the reader of files, the parser of the
command line, --help and the manual page are all made from its fields.

    # /etc/nvshare/nvshared.conf
    [gpu]
    tq = 20
    swap-budget = 64GiB
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nvshared import quantity
from nvshared.names import BUS_VARIABLE, DEFAULT_SOCKET, SOCKET_VARIABLE
from nvshared.quantity import Amount, Endpoint
from nvshared.settings.rules import Rule
from nvshared.units import GIB, MIB, MILLISECOND, SECOND

DEFAULT_FILE = Path("/etc/nvshare/nvshared.conf")
METRICS_PORT = 9402                     # promised by the predecessors

MODES = ("auto", "on", "off")
TIERS = ("neighbour", "host", "disk")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its section, parser, default and help text."""

    name: str                           # as in files, and with two dashes on the command line
    section: str
    parse: Callable[[str], Any]         # raises ValueError, which says what is allowed
    default: str                        # in words, for people
    help: str
    metavar: str = ""                   # "" for a switch
    variable: str = ""                  # environment variable that sets it too
    variable_parse: Callable[[str], Any] | None = None
    variable_words: str = ""            # its values, if they differ from those in files

    @property
    def attribute(self) -> str:
        """The name of its field in Config."""
        return self.name.replace("-", "_")


def _setting(
    section: str, parse: Callable[[str], Any], default: Any, help: str, *, words: str = "",
    **more: Any,
) -> Any:
    """Makes a field of Config with its Option. `words`: the default as in a file."""
    more |= {"section": section, "parse": parse, "help": help, "default": words or str(default)}
    return field(default=default, metadata=more)


def _path(text: str) -> Path:
    if not text.startswith("/"):
        raise ValueError("give an absolute path")
    return Path(text)


def _path_or_none(text: str) -> Path | None:
    return None if text == "none" else _path(text)


def _bus(text: str) -> str:
    if text in ("system", "session", "none") or ":" in text:
        return text
    raise ValueError("give system, session, none, or an address such as unix:path=/run/bus")


def _history(text: str) -> int | None:
    if text == "off":
        return None
    if not 4 * MIB <= (value := quantity.size(text)) <= 64 * GIB:
        raise ValueError("give a size from 4MiB to 64GiB, or off")
    return value


def _mode(text: str) -> str:
    if text not in MODES:
        raise ValueError("give auto, on or off")
    return text


def _card(text: str) -> Amount:
    wanted = Amount(share=1.0) if text == "card" else quantity.amount(text)
    if wanted == Amount(0) or wanted.share == 0:
        raise ValueError("give more than nothing, or card for all of it")
    return wanted


def _quantum(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        return quantity.quantum(text)
    except ValueError as wrong:
        raise ValueError(f"{wrong}, or auto") from None


def _disk(text: str) -> tuple[Path, int]:
    path, comma, size = text.rpartition(",")
    if not comma:
        raise ValueError("give a directory and a size, as in /var/lib/nvshare/swap, 200GiB, or off")
    return _path(path.strip()), quantity.limit(size.strip())


def _tiers(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if found != tuple(tier for tier in TIERS if tier in found) or "host" not in found:
        raise ValueError(
            f"give {', '.join(TIERS)} in this order; neighbour and disk may be missing")
    return found


def _off(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text == "off" else parse(text)


def _auto(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text == "auto" else parse(text)


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting with its value. Times are in microseconds."""

    socket: Path = _setting(
        "nvshared", _path, Path(DEFAULT_SOCKET),
        "where programs find the daemon", metavar="PATH", variable=SOCKET_VARIABLE)
    bus: str = _setting(
        "nvshared", _bus, "system",
        "message bus for nvsharectl: system, session, none or an address",
        metavar="BUS", variable=BUS_VARIABLE)
    state_dir: Path | None = _setting(
        "nvshared", _path_or_none, None,
        "folder that keeps settings changed at run time, and the history, through a restart, or "
        "none",
        metavar="DIR", words="none", variable="STATE_DIRECTORY")
    history: int | None = _setting(
        "nvshared", _history, 64 * MIB,
        "how large the file in state-dir may be that keeps what users and tenants used: a size "
        "from 4MiB to 64GiB, or off", metavar="SIZE", words="64MiB")
    max_clients: int = _setting(
        "nvshared", quantity.positive, 4096, "connections at most, of all users together",
        metavar="N")
    max_clients_per_user: int = _setting(
        "nvshared", quantity.positive, 1024, "connections at most, of any one user but root",
        metavar="N")
    hello_timeout: int = _setting(
        "nvshared", quantity.duration, 10 * SECOND,
        "how long a connection may take to say what it wants", metavar="TIME", words="10s")
    trace: Path | None = _setting(
        "nvshared", _path_or_none, None,
        "file that gets one JSON line for each turn, order and answer, or none",
        metavar="FILE", words="none")
    sample_interval: int = _setting(
        "nvshared", quantity.positive_duration, SECOND,
        "how often NVML is asked while there are clients", metavar="TIME", words="1s")
    metrics: Endpoint | None = _setting(
        "nvshared", quantity.endpoint, None,
        "TCP port of the Prometheus metrics, for all who reach any address of this host; or "
        "ADDRESS:PORT, as in 127.0.0.1:9402; 0 for none",
        metavar="PORT", words="0", variable="NVSHARE_METRICS_ENABLE",
        variable_parse=lambda text: Endpoint("", METRICS_PORT) if quantity.switch(text) else None,
        variable_words=f"1 for port {METRICS_PORT}")
    debug: bool = _setting(
        "nvshared", quantity.switch, False, "log everything that happens", words="off",
        variable="NVSHARE_DEBUG")
    tq: int | None = _setting(
        "gpu", _quantum, 30 * SECOND,
        "how long a program may keep the GPU while others wait, in seconds, or as in 500ms; "
        "auto: as short as keeps moving memory at 5% of the time or less",
        metavar="TIME", words="30")
    longest_tq: int = _setting(
        "gpu", quantity.quantum, 30 * SECOND,
        "the longest quantum, where tq is auto", metavar="TIME", words="30")
    anti_thrash: str = _setting(
        "gpu", _mode, "auto",
        "take turns as needed (auto), always (on), or never (off); auto: those that do not fit "
        "together, and those that do while all of them keep the GPU busy", metavar="MODE")
    capacity: Amount = _setting(
        "gpu", _card, Amount(share=1.0),
        "memory of each card to hand out: a size, a percentage, or card", metavar="SIZE",
        words="card")
    reserve: Amount | None = _setting(
        "gpu", _auto(quantity.amount), None,
        "memory of each card that is never handed out; auto: 256MiB, less on small cards",
        metavar="SIZE", words="auto")
    context_reserve: Amount | None = _setting(
        "gpu", _auto(quantity.amount), None,
        "memory of each card kept free for a program that has just started; auto: 600MiB, less "
        "on small cards",
        metavar="SIZE", words="auto")
    swap_budget: Amount | None = _setting(
        "gpu", _auto(quantity.amount), None,
        "host memory for what does not fit on the cards, of all cards together: each may use "
        "what the others do not need; a size or a percentage of the host's; auto: 80% of what "
        "is free at start and of what programs of an earlier daemon hold",
        metavar="SIZE", words="auto")
    neighbour: str = _setting(
        "gpu", _mode, "auto",
        "swapped memory may lie on other cards of this host, as far as no client there was "
        "promised it: on those linked by NVLink while no other programs use them (auto), on all "
        "that it reaches (on), or on none (off)",
        metavar="MODE")
    tiers: tuple[str, ...] = _setting(
        "gpu", _tiers, TIERS,
        "where swapped memory may lie, the fastest first; neighbour and disk have settings of "
        "their own, which hold only for what is named here",
        metavar="LIST", words=", ".join(TIERS))
    disk: tuple[Path, int] | None = _setting(
        "gpu", _off(_disk), None,
        "directory on a disk of this machine, for files without names, and how much may lie there "
        "of what programs that are idle, or host memory that is short, leave no room for; off: "
        "host memory takes all", metavar="DIR,SIZE", words="off")
    park_after: int = _setting(
        "gpu", quantity.positive_duration, 600 * SECOND,
        "how long a program may be idle before its swapped memory goes on to the disk, if there "
        "is one", metavar="TIME", words="10min")
    step: Amount | None = _setting(
        "gpu", _auto(quantity.amount), None,
        "how much one order moves between card and host; auto: 512MiB, less on small cards",
        metavar="SIZE", words="auto")
    compute_window: int | None = _setting(
        "gpu", _auto(quantity.positive_duration), None,
        "the period in which a program with a compute limit gets its share; auto: 100ms, and 2s "
        "while programs take turns", metavar="TIME",
        words="auto", variable="NVSHARE_COMPUTE_WINDOW_MS", variable_parse=quantity.milliseconds,
        variable_words="in milliseconds")
    quota_sample_interval: int = _setting(
        "gpu", quantity.positive_duration, 50 * MILLISECOND,
        "the shortest turn of a program with a compute limit, but at most a tenth of the window; "
        "with less than that left, it waits for the next one", metavar="TIME", words="50ms",
        variable="NVSHARE_QUOTA_SAMPLE_INTERVAL_MS", variable_parse=quantity.milliseconds,
        variable_words="in milliseconds")
    quota_carryover: int = _setting(
        "gpu", quantity.percentage, 100,
        "how much of what a program has used beyond its compute limit is taken from each of its "
        "next windows; 0% forgives it", metavar="PERCENT", words="100%",
        variable="NVSHARE_QUOTA_CARRYOVER_PERCENT")
    drop_tail_billing: int = _setting(
        "gpu", quantity.percentage, 100,
        "how much of the time that a program takes to stop counts against its compute limit",
        metavar="PERCENT", words="100%", variable="NVSHARE_DROP_TAIL_BILLING_PERCENT")
    gather: int = _setting(
        "gpu", quantity.duration, SECOND,
        "how long to listen to programs after a restart before any decision", metavar="TIME",
        words="1s")
    bus_sharing: bool = _setting(
        "gpu", quantity.switch, True,
        "moves ahead of a program's turn wait while the running program copies between host and "
        "card in the same direction, for half of the time at most; on or off",
        metavar="SWITCH", words="on")
    writeback: bool = _setting(
        "gpu", quantity.switch, True,
        "while nobody waits, copy idle programs' memory to the host, if others may need its "
        "room, so that it can leave at once; and have running programs make host memory for what "
        "will be taken from them; on or off", metavar="SWITCH", words="on")
    prefetch: bool = _setting(
        "gpu", quantity.switch, False,
        "while nobody has a turn or waits, bring in the memory of idle programs that come back "
        "soonest, by their pauses until now, in place of those that come last; for models that "
        "answer requests; on or off", metavar="SWITCH", words="off")
    deep_idle: int | None = _setting(
        "gpu", _off(quantity.positive_duration), None,
        "how long a program may be idle before its context leaves the GPU, too, until it uses "
        "the GPU again; needs driver 570 or later; off: it stays", metavar="TIME", words="off")
    balance: bool = _setting(
        "gpu", quantity.switch, False,
        "move a program that waits to another GPU of the same kind, once its waiting has cost, or "
        "will cost, more than the move; needs driver 570 or later; programs of pods, jobs, "
        "containers and gangs stay; on or off", metavar="SWITCH", words="off")
    drain_patience: int = _setting(
        "gpu", quantity.duration, 2 * SECOND,
        "how long to wait before a program that could not stop is asked again", metavar="TIME",
        words="2s")
    stuck_after: int = _setting(
        "gpu", quantity.positive_duration, 10 * SECOND,
        "how long a program may leave an order unanswered; then it is reported as stuck, and "
        "others no longer wait for it", metavar="TIME",
        words="10s")
    # By setting: FILE:LINE or variable that set it, for error messages. Not a setting itself.
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    rules: tuple[Rule, ...] = ()        # for tenants, in the order of the files


def options() -> Iterator[Option]:
    """All settings, from the fields of Config."""
    for one in fields(Config):
        if not one.metadata:
            continue
        yield Option(name=one.name.replace("_", "-"), **one.metadata)


def waiting(running: Config, read: Config) -> list[str]:
    """Names of settings that have changed in the files but need a restart of the daemon."""
    return [
        option.name for option in options()
        if option.section == "nvshared" and option.name != "debug"
        and getattr(running, option.attribute) != getattr(read, option.attribute)
    ]
