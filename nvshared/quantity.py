# SPDX-License-Identifier: Apache-2.0
"""Parses sizes, shares and times as users write them: 40GiB, 512M, 75%, 30, 500ms.

Each function raises ValueError with a sentence on what is valid; the caller adds the place."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from nvshared.names import PRIORITIES
from nvshared.units import GIB, KIB, MIB, MILLISECOND, SECOND

UNITS = {
    "": 1, "b": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024 * GIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}
TIMES = {
    "": SECOND, "us": 1, "ms": MILLISECOND, "s": SECOND, "min": 60 * SECOND, "h": 3600 * SECOND,
    "d": 86400 * SECOND,
}
TIME_UNITS = ", ".join(filter(None, TIMES))
LONGEST_TQ = 86_400                     # seconds; a longer quantum is probably a wrong unit
LONGEST_TIME = 0xFFFF_FFFF              # seconds; the maximum of D-Bus type u
UNITLESS_LEAST = MIB                    # bytes; a smaller size needs a unit, as it may be in GiB
LARGEST = (1 << 64) - 1                 # bytes; the maximum of D-Bus type t
OFF = 1                                 # bytes; a limit of 1 byte means off, as no block fits
HEAVIEST = 1000                         # the largest weight of a client or tenant
NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-zA-Z%]*)", re.ASCII)


def or_word(word: str, value: Any, parse: Callable[[str], Any],
            hint: str = "") -> Callable[[str], Any]:
    """A parser of `word`, as `value`, and of words that `parse` accepts. Its errors get `hint`."""
    def parsed(text: str) -> Any:
        try:
            return value if text == word else parse(text)
        except ValueError as error:
            raise ValueError(f"{error}{hint}") from None

    return parsed


class Amount(NamedTuple):
    """An absolute number of bytes, or a share of a size that is known later."""

    bytes: int = 0
    share: float | None = None          # 0 to 1

    def of(self, whole: int) -> int:
        return self.bytes if self.share is None else int(self.share * whole)


class Endpoint(NamedTuple):
    address: str                        # IPv4 or IPv6; "": all addresses of both
    port: int

    def __str__(self) -> str:
        if not self.address:
            return f"port {self.port}"
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


def size(text: str) -> int:
    """Parses a size to bytes. K, M, G, T and KiB … are powers of 1024, kB … powers of 1000."""
    number, unit = _split(text)
    if unit not in UNITS:
        raise ValueError("give a size such as 40GiB, 512M or 1073741824")
    return _bytes(number, unit, text)


def amount(text: str) -> Amount:
    """Parses a size, or a percentage of a size."""
    number, unit = _split(text)
    if unit == "%":
        if not 0 <= number <= 100:
            raise ValueError("give a percentage between 0% and 100%")
        return Amount(share=number / 100)
    if unit not in UNITS:
        raise ValueError("give a size such as 40GiB or 512M, or a percentage such as 75%")
    return Amount(_bytes(number, unit, text))


def duration(text: str) -> int:
    """Parses a time to microseconds. Without a unit: seconds."""
    number, unit = _split(text)
    if unit not in TIMES:
        raise ValueError(f"give a time such as 30, 500ms or 2min (units: {TIME_UNITS})")
    return _usec(number, unit)


def positive_duration(text: str) -> int:
    """Parses a time of at least 1 ms to microseconds. Without a unit: seconds."""
    if (value := duration(text)) < 1000:
        raise ValueError("give a time of at least 1ms, such as 500ms or 2s")
    return value


def milliseconds(text: str) -> int:
    """Parses a whole number of milliseconds above zero to microseconds."""
    wrong = "give a positive whole number of milliseconds"
    return whole(text, 1, 0xFFFF_FFFF, wrong) * MILLISECOND


def whole(text: str, least: int, most: int, words: str = "") -> int:
    """Parses a whole number of a range. `words`: the error message, if not the default."""
    # At most 20 digits: int() raises another ValueError for thousands of digits.
    if re.fullmatch(r"\d{1,20}", text, re.ASCII) and least <= int(text) <= most:
        return int(text)
    raise ValueError(words or f"give a whole number from {least} to {most}")


def percentage(text: str) -> int:
    """Parses 0 to 100 percent, with or without a percent sign."""
    return whole(text.removesuffix("%").rstrip(), 0, 100, "give a whole percentage from 0 to 100")


def limit(text: str) -> int:
    """Parses a size of at least one byte to bytes."""
    if (value := size(text)) < 1:
        raise ValueError(f"give 1 to {LARGEST} bytes")
    return value


limit_or_off = or_word("off", OFF, limit, ", or off")           # bytes


def share(text: str) -> int:
    """Parses 1 to 100 percent of the time, with or without a percent sign."""
    return whole(text.removesuffix("%"), 1, 100, "give a percentage of the time from 1 to 100")


weight = partial(whole, least=1, most=HEAVIEST)
# A whole number above zero, of at most 32 bits.
positive = partial(whole, least=1, most=0xFFFF_FFFF, words="give a positive whole number")


def priority(text: str) -> int:
    """The number of a priority, given by name: background (1), normal (2) or high (3)."""
    if text in PRIORITIES:
        return PRIORITIES[text]
    raise ValueError(f"give {', '.join(PRIORITIES)}")


def quantum(text: str) -> int:
    """Parses a quantum, 1 ms to LONGEST_TQ, to microseconds. Without a unit: whole seconds."""
    number, unit = _split(text + "s" if text.isdecimal() and text.isascii() else text)
    if unit not in TIMES or not unit or number * TIMES[unit] < 1000:
        raise ValueError("give whole seconds, such as 30, or a time of at least 1ms, such as 500ms "
                         f"or 2min (units: {TIME_UNITS})")
    if number * TIMES[unit] > LONGEST_TQ * SECOND:
        raise ValueError("give a time of at most 1d")
    return _usec(number, unit)


def endpoint(text: str) -> Endpoint | None:
    """Parses a TCP port, on all addresses, or ADDRESS:PORT; returns None for 0."""
    address, colon, port = text.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 0xFFFF:
        raise ValueError("give a TCP port, 1 to 65535, an ADDRESS:PORT, or 0 for none")
    if colon and not _is_address(address):
        raise ValueError("give an address such as 127.0.0.1:9402 or [::1]:9402")
    return Endpoint(address.strip("[]"), int(port)) if int(port) else None


def switch(text: str) -> bool:
    """Parses on or off, in the spellings that systemd accepts."""
    match text.lower():
        case "1" | "yes" | "y" | "true" | "t" | "on":
            return True
        case "0" | "no" | "n" | "false" | "f" | "off":
            return False
    raise ValueError("give on or off")


def _is_address(text: str) -> bool:
    import ipaddress  # not at the top: only the daemon calls this, and nvsharectl starts faster

    is_bracketed = text[:1] == "[" and text[-1:] == "]"
    try:
        found = ipaddress.ip_address(text[1:-1] if is_bracketed else text)
    except ValueError:
        return False
    return found.version == (6 if is_bracketed else 4)


def _split(text: str) -> tuple[float, str]:
    found = NUMBER.fullmatch(text.strip())
    if found is None:
        return 0.0, "?"
    return float(found.group(1)), found.group(2).lower()


def _bytes(number: float, unit: str, text: str) -> int:
    if not unit and 0 < number < UNITLESS_LEAST:
        raise ValueError(f"give a unit, such as {text.strip()}GiB or {text.strip()}MiB")
    if (value := int(number * UNITS[unit])) > LARGEST:
        raise ValueError(f"give at most {LARGEST} bytes")
    return value


def _usec(number: float, unit: str) -> int:
    if number * TIMES[unit] > LONGEST_TIME * SECOND:
        raise ValueError(f"give a time of at most {LONGEST_TIME} seconds")
    return int(number * TIMES[unit])


def counted(number: int, unit: str) -> str:
    """A number with its unit in singular or plural: 1 byte; 2 bytes."""
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def rounded(size: int) -> str:
    """A size in MiB or GiB, rounded: 256 MiB; 97.3 GiB."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def brief(count: float | None) -> str:
    """Bytes as 0, 512K, 1.5M, 97.3G; "-" when unknown."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count:.0f}"
    for unit in "KMGT":
        count /= 1024
        # 999.5 would be printed as 1000, one digit more than smaller figures.
        if count < 999.5 or unit == "T":
            break
    return f"{count:.1f}{unit}" if count < 99.95 else f"{count:.0f}{unit}"


def timed(usec: int) -> str:
    """A time in the form that `quantum` parses: 30s, 250ms."""
    seconds, rest = divmod(usec, SECOND)
    return f"{usec / MILLISECOND:g}ms" if rest else f"{seconds}s"


def sized(size: int) -> str:
    """An exact size in the unit that gives the smallest whole number: 700MiB; 4097 bytes."""
    units = ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB")
    fitting = [unit for unit in units if size and size % UNITS[unit.lower()] == 0]
    if not fitting:
        return counted(size, "byte")
    best = min(fitting, key=lambda unit: size // UNITS[unit.lower()])
    return f"{size // UNITS[best.lower()]}{best}"
