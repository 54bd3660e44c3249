# SPDX-License-Identifier: Apache-2.0
"""The settings: one table, the command line made from the table, and the reader of all sources.

Each source overrides earlier sources: defaults, nvshared.conf, its drop-ins by name, environment
variables, the command line. --help and the manual page are made from the fields of `Config`, too.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nvshared import __version__, quantity
from nvshared.errors import ConfigError, InvalidArgs
from nvshared.kept import read_regular
from nvshared.names import BUS_VARIABLE, DEFAULT_SOCKET, MODES, POLICIES, SOCKET_VARIABLE
from nvshared.parser import PATHS, Parser, absolute
from nvshared.quantity import Amount, Endpoint, or_word
from nvshared.settings import rules
from nvshared.settings.rules import PARSERS, Rule
from nvshared.tiers import TIERS
from nvshared.units import GIB, MIB

DEFAULT_FILE = Path("/etc/nvshare/nvshared.conf")
LONGEST = 1 << 20                       # bytes of a settings file
LINE_LONGEST = 4096                     # characters of a line, which messages quote
WRONG_MOST = 20                         # messages about wrong lines
CAPACITY_LEAST = 32 * MIB               # bytes; a smaller capacity probably lacks its unit
METRICS_PORT = 9402                     # port for NVSHARE_METRICS_ENABLE=1, as in nvshare

SECTIONS = "{} [gpu], [nvshared] or [tenant PATTERN]"
CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f]")


class Option(NamedTuple):
    attribute: str                      # the name of the option's field in Config
    name: str                           # name in files; on the command line after two dashes
    section: str
    parse: Callable[[str], Any]         # raises ValueError with a message that names valid values
    default: str                        # default value, as text in a file
    help: str
    metavar: str = ""                   # "" for a switch
    variable: str = ""                  # environment variable that sets the option; "": none
    variable_parse: Callable[[str], Any] | None = None
    variable_words: str = ""            # help on the variable's values, if not as in files

def _setting(
    section: str, metavar: str, parse: Callable[[str], Any], default: str, help: str, **more: Any
) -> Any:
    more |= {"section": section, "metavar": metavar, "parse": parse, "help": help}
    return field(default=parse(default), metadata=more | {"default": default})


def _path(text: str) -> Path:
    if not text.startswith("/"):
        raise ValueError("give an absolute path")
    return Path(text)


def _bus(text: str) -> str:
    if text in ("system", "session", "none") or ":" in text:
        return text
    raise ValueError("give system, session, none, or an address such as unix:path=/run/bus")


def _history(text: str) -> int:
    if not 4 * MIB <= (value := quantity.size(text)) <= 64 * GIB:
        raise ValueError("give a size from 4MiB to 64GiB, or off")
    return value


def _mode(text: str) -> str:
    if text not in MODES:
        raise ValueError("give auto, on or off")
    return text


def _policy(text: str) -> str:
    if text not in POLICIES:
        *most, last = POLICIES
        raise ValueError(f"give {', '.join(most)} or {last}")
    return text


def _card(text: str) -> Amount:
    wanted = Amount(share=1.0) if text == "card" else quantity.amount(text)
    if wanted.share == 0 or (wanted.share is None and wanted.bytes < CAPACITY_LEAST):
        raise ValueError(f"give at least {quantity.sized(CAPACITY_LEAST)}, a percentage above 0%, "
                         "or card for all of it")
    return wanted


def _disk(text: str) -> tuple[Path, int]:
    path, comma, size = text.rpartition(",")
    if not comma:
        raise ValueError("give a directory and a size, as in /var/lib/nvshare/swap, 200GiB, or off")
    return _path(path.strip()), quantity.limit(size.strip())


def _tiers(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    names = [tier.name for tier in TIERS]
    required = {tier.name for tier in TIERS if tier.required}
    if found != tuple(name for name in names if name in found) or required - set(found):
        others = [name for name in names if name not in required]
        raise ValueError(
            f"give {', '.join(names)} in this order; {' and '.join(others)} may be missing")
    return found


_off, _auto, _none = (partial(or_word, word, None) for word in ("off", "auto", "none"))
_daemon, _gpu = partial(_setting, "nvshared"), partial(_setting, "gpu")
_count = partial(_daemon, "N", quantity.positive)
_amount = partial(_gpu, "SIZE", _auto(quantity.amount), "auto")
_switch = partial(_gpu, "SWITCH", quantity.switch)


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting with its value. Times are in microseconds."""

    socket: Path = _daemon(
        "PATH", _path, DEFAULT_SOCKET, "where programs find the daemon", variable=SOCKET_VARIABLE)
    bus: str = _daemon(
        "BUS", _bus, "system", "message bus for nvsharectl: system, session, none or an address",
        variable=BUS_VARIABLE)
    state_dir: Path | None = _daemon(
        "DIR", _none(_path), "none", "folder that keeps settings changed at run time, and the "
        "history, through a restart, or none", variable="STATE_DIRECTORY")
    history: int | None = _daemon(
        "SIZE", _off(_history), "64MiB", "size at most of the file in state-dir with the usage of "
        "users and tenants: from 4MiB to 64GiB, or off")
    max_clients: int = _count("4096", "connections at most, of all users together")
    max_clients_per_user: int = _count("1024", "connections at most, of any one user but root")
    trace: Path | None = _daemon("FILE", _none(_path), "none", "file that gets one JSON line for "
                                 "each turn, order and answer, or none")
    metrics: Endpoint | None = _daemon(
        "PORT", quantity.endpoint, "0", "TCP port of the Prometheus metrics, open to every machine "
        "that reaches an address of this host; or ADDRESS:PORT, as in 127.0.0.1:9402; 0 for none",
        variable="NVSHARE_METRICS_ENABLE", variable_words=f"1 for port {METRICS_PORT}",
        variable_parse=lambda text: Endpoint("", METRICS_PORT) if quantity.switch(text) else None)
    debug: bool = _daemon(
        "", quantity.switch, "off", "log everything that happens", variable="NVSHARE_DEBUG")
    tq: int | None = _gpu("TIME", _auto(quantity.quantum, ", or auto"), "30", "how long a program "
                          "may keep the GPU while others wait, in seconds, or as in 500ms; auto: "
                          "as short as keeps moving memory at 5% of the time or less")
    anti_thrash: str = _gpu(
        "MODE", _mode, "auto", "take turns as needed (auto), always (on), or never (off); auto: "
        "programs that do not fit together, and programs that all keep the GPU busy")
    policy: str = _gpu(
        "NAME", _policy, "fair", "which waiting program goes next; "
        + "; ".join(f"{name}: {words}" for name, words in POLICIES.items()))
    capacity: Amount = _gpu(
        "SIZE", _card, "card", "memory of each card to hand out: a size, a percentage, or card")
    reserve: Amount | None = _amount(
        "memory of each card that is never handed out; auto: 256MiB, less on small cards")
    context_reserve: Amount | None = _amount(
        "memory of each card kept free for a program that has just started; auto: 600MiB, less on "
        "small cards")
    swap_budget: Amount | None = _amount(
        "host memory for swapped memory and contexts of parked programs, of all cards together: "
        "each card may use the part that the others do not need; a size or a percentage of the "
        "host's; auto: 80% of the memory that is free at start and of the memory that programs of "
        "an earlier daemon hold")
    neighbour: str = _gpu(
        "MODE", _mode, "auto", "swapped memory may lie on other cards of this host, as far as no "
        "client there was promised it: on cards linked by NVLink while no other programs use them "
        "(auto), on all cards that the GPU can access (on), or on none (off)")
    tiers: tuple[str, ...] = _gpu(
        "LIST", _tiers, ", ".join(tier.name for tier in TIERS), "where swapped memory may "
        "lie, the fastest first; neighbour and disk have settings of their own, which hold only "
        "for tiers in this list")
    disk: tuple[Path, int] | None = _gpu(
        "DIR,SIZE", _off(_disk), "off", "directory on a disk of this machine for unnamed files "
        "with swapped memory, and their size at most, together; for idle programs, and while host "
        "memory is short; off: swapped memory stays in host memory")
    park_after: int = _gpu("TIME", quantity.positive_duration, "10min", "how long a program may be "
                           "idle before its swapped memory moves to the disk, if there is one")
    compute_window: int | None = _gpu(
        "TIME", _auto(quantity.positive_duration), "auto", "the period in which a program with a "
        "compute limit gets its share; auto: 100ms, and 2s while programs take turns",
        variable="NVSHARE_COMPUTE_WINDOW_MS", variable_parse=quantity.milliseconds,
        variable_words="in milliseconds")
    quota_sample_interval: int = _gpu(
        "TIME", quantity.positive_duration, "50ms", "the shortest turn of a program with a compute "
        "limit, but at most a tenth of the window; with less time left, the program waits for the "
        "next window", variable="NVSHARE_QUOTA_SAMPLE_INTERVAL_MS",
        variable_parse=quantity.milliseconds, variable_words="in milliseconds")
    quota_carryover: int = _gpu(
        "PERCENT", quantity.percentage, "100%", "part of the time beyond a program's compute limit "
        "that is subtracted from each of its next windows; 0%: no time is subtracted",
        variable="NVSHARE_QUOTA_CARRYOVER_PERCENT")
    drop_tail_billing: int = _gpu(
        "PERCENT", quantity.percentage, "100%", "part of the time in which a program drains that "
        "counts against its compute limit", variable="NVSHARE_DROP_TAIL_BILLING_PERCENT")
    bus_sharing: bool = _switch("on", "moves ahead of a program's turn wait while the running "
                                "program copies between host and card in the same direction, for "
                                "half of the time at most; on or off")
    writeback: bool = _switch(
        "on", "while no program waits, copy memory of idle programs to the host, if other programs "
        "may need its room, so that it need not be copied when it is evicted; and let running "
        "programs allocate host memory for their next eviction; on or off")
    prefetch: bool = _switch(
        "off", "while no program has a turn or waits, load memory of the idle programs that will "
        "probably want the GPU soonest, by their pauses until now, in place of those that will "
        "want it last; for models that answer requests; on or off")
    deep_idle: int | None = _gpu(
        "TIME", _off(quantity.positive_duration), "off", "how long a program may be idle before "
        "its context leaves the GPU, too, until the program uses the GPU again; needs driver 570 "
        "or later; off: contexts stay")
    balance: bool = _switch(
        "off", "move a program that waits to another GPU of the same kind, once its waiting has "
        "cost, or will cost, more than the move; needs driver 570 or later; programs of pods, "
        "jobs, containers and gangs stay; on or off")
    stuck_after: int = _gpu(
        "TIME", quantity.positive_duration, "10s", "how long a program may leave an order "
        "unanswered; then the program is reported as stuck, and others no longer wait for it")
    # By setting: the FILE:LINE or the variable that set it, for error messages.
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    rules: tuple[Rule, ...] = ()        # for tenants, in the order of the files


def options() -> Iterator[Option]:
    for one in fields(Config):
        if one.metadata:
            yield Option(one.name, one.name.replace("_", "-"), **one.metadata)


def waiting(running: Config, read: Config) -> list[str]:
    """Names of settings in which `running` and `read` differ and that need a restart to change."""
    return [
        option.name for option in options()
        if option.section == "nvshared" and option.name != "debug"
        and getattr(running, option.attribute) != getattr(read, option.attribute)]


def load(file: Path | None, environment: Mapping[str, str], given: Mapping[str, str]) -> Config:
    """Reads all settings. `given`: options of the command line, by name; `file` None: DEFAULT_FILE.

    Raises ConfigError with all errors of files or variables, InvalidArgs for the command line."""
    path = file or DEFAULT_FILE
    files = _Files()
    for one in (path, *drop_ins(path)):
        files.read(one, is_optional=file is None and one == path)
    wrong = [*files.wrong, *rules.contradictions(files.rules)]
    if wrong:
        raise wrong[0] if len(wrong) == 1 else ConfigError("\n".join(map(str, wrong)))
    values, places = files.values, files.places
    for option in options():
        text = environment.get(option.variable, "") if option.variable else ""
        if text:
            place = places[option.name] = f"the variable {option.variable}"
            parse = option.variable_parse or option.parse
            values[option.name] = _parse(parse, text, place, ConfigError)
        if option.name in given:
            places.pop(option.name, None)       # so that error messages name the option
            values[option.name] = _parse(
                option.parse, given[option.name], f"--{option.name}", InvalidArgs)
    named = {name.replace("-", "_"): value for name, value in values.items()}
    return Config(**named, places=places, rules=tuple(files.rules))


def drop_ins(path: Path) -> list[Path]:
    """The drop-ins of a settings file, in the order of reading. Raises ConfigError."""
    folder = path.with_name(path.name + ".d")
    try:
        return sorted(one for one in folder.iterdir() if one.name.endswith(".conf"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from None


class _Files:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.rules: list[Rule] = []
        self.wrong: list[ConfigError] = []
        self._known = {(option.section, option.name): option for option in options()}

    def read(self, path: Path, *, is_optional: bool) -> None:
        """Reads one more file, which overrides earlier files; appends errors to `wrong`."""
        try:
            lines = read_regular(path, LONGEST).decode("utf-8-sig").splitlines()
        except OSError as error:
            if not is_optional or not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                self.wrong.append(
                    ConfigError(f"{path} cannot be read: {error.strerror or error}"))
            return
        except UnicodeDecodeError as error:
            self.wrong.append(ConfigError(f"{path} is not text: {error}"))
            return
        section: str | None = ""        # None: in an invalid section; its lines are skipped
        for number, line in enumerate(map(str.strip, lines), 1):
            if not line or line[0] in "#;":
                continue
            place = f"{path}:{number}"
            if len(self.wrong) >= WRONG_MOST:
                self.wrong.append(ConfigError(f"{place}: this line and further ones were not read"))
                return
            try:
                if len(line) > LINE_LONGEST:
                    raise ConfigError(f"{place}: the line has more than {LINE_LONGEST} characters")
                if CONTROL.search(line):
                    raise ConfigError(f"{place}: {line!r} has a character that no setting may have")
                if line.startswith("["):
                    section = None
                    section = self._section(line, place)
                elif section is not None:
                    self._set(section, line, place)
            except ConfigError as wrong:
                self.wrong.append(wrong)

    def _section(self, line: str, place: str) -> str:
        section = line[1:-1].strip()
        if line[-1] != "]":
            raise ConfigError(f"{place}: {line!r} is no section", SECTIONS.format("write"))
        known = sorted({section for section, _ in self._known})
        if section not in known and not rules.pattern(section, place):
            raise ConfigError(f"{place}: there is no section {line}",
                              _hint(section, [*known, f"{rules.SECTION} PATTERN"]))
        return section

    def _set(self, section: str, line: str, place: str) -> None:
        name, equals, text = (part.strip() for part in line.partition("="))
        if not equals:
            raise ConfigError(f"{place}: {line!r} is no setting", "write NAME = VALUE")
        if not section:
            raise ConfigError(
                f"{place}: {name!r} stands in no section", SECTIONS.format("put it below"))
        pattern = rules.pattern(section, place)
        option = self._known.get((section, name))
        parse = PARSERS.get(name) if pattern else option and option.parse
        if parse is None:
            names = [name for where, name in self._known if where == section] or list(PARSERS)
            there = [where for where, known in self._known if known == name]
            raise ConfigError(f"{place}: [{section}] has no setting {name!r}",
                              f"it belongs under [{there[0]}]" if there else _hint(name, names))
        value = _parse(parse, text, f"{place}: {name}", ConfigError)
        if pattern:
            self.rules.append(Rule(pattern, name, value, place))
        else:
            self.values[name], self.places[name] = value, place


def _parse(parse: Callable[[str], Any], text: str, place: str, error: type[InvalidArgs]) -> Any:
    try:
        return parse(text)
    except ValueError as wrong:
        raise error(f"{place} cannot be {text!r}", str(wrong)) from None


def _hint(text: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(text, known, 1)
    return f"did you mean {close[0]}?" if close else "there are " + ", ".join(known)


DESCRIPTION = """\
Lets several programs share the machine's NVIDIA GPUs, each as if it were alone.
Programs that do not fit together take turns. Memory that does not fit waits on
the host.
"""

EPILOG = f"""\
Usually systemd runs it:       systemctl enable --now nvshared
To try it without root:        nvshared --bus session --socket /tmp/nvshare.sock
and then, in another terminal:
  NVSHARE_SOCKET=/tmp/nvshare.sock nvsharectl run -- python train.py
and to see the programs:       nvsharectl --bus session status

Each setting can also stand in {DEFAULT_FILE} or in
{DEFAULT_FILE}.d/*.conf; the last one wins. When a file has changed,
and at SIGHUP, all are read again; settings of [gpu] and debug hold at once.
Rules for users, units, pods, jobs and containers stand there too, in sections
[tenant PATTERN].
"""


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="nvshared", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
                  formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--version", action="version", version=f"nvshared {__version__}")
    made.add_argument(
        "--config", metavar="FILE", type=Path, help=f"the settings' file (default: {DEFAULT_FILE})")
    made.add_argument("--check", action="store_true",
                      help="report mistakes in the settings, and whether the driver was upgraded "
                      "so that no daemon starts before a reboot, and end; start nothing")
    groups = {
        "nvshared": made.add_argument_group("the daemon ([nvshared] in the file)"),
        "gpu": made.add_argument_group("the cards ([gpu] in the file)")}
    for option in options():
        words = f"{option.help} (default: {option.default}"
        if option.variable:
            takes = f", {option.variable_words}" if option.variable_words else ""
            words += f"; environment: {option.variable}{takes}"
        kind: dict[str, Any] = {"action": "store_const", "const": "on"}
        if option.metavar:
            kind = {"metavar": option.metavar, "type": _file if option.metavar in PATHS else str}
        groups[option.section].add_argument(
            f"--{option.name}", help=words.replace("%", "%%") + ")", **kind)
    return made


def _file(text: str) -> str:
    """Makes a path absolute: on the command line it may be relative to the working directory."""
    return text if text == "none" else str(absolute(text))


def parse(arguments: Sequence[str] | None) -> tuple[Path | None, dict[str, str], bool]:
    """Returns --config, the given options by name, and whether --check was given.

    Raises InvalidArgs."""
    given = vars(parser().parse_args(arguments))
    file, check = given.pop("config"), given.pop("check")
    found = {name.replace("_", "-"): text for name, text in given.items() if text is not None}
    return file, found, check
