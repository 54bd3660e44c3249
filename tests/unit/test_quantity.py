# SPDX-License-Identifier: Apache-2.0
"""Maximum quantum, and printing of sizes as they were given."""

import pytest

from nvshared.quantity import (
    LARGEST,
    LONGEST_TQ,
    Amount,
    amount,
    duration,
    limit,
    positive_duration,
    quantum,
    rounded,
    size,
    sized,
)
from nvshared.units import GIB, MIB, SECOND


@pytest.mark.parametrize("text", ["86400", "86400s", "24h", "1d"])
def test_longest_quantum_is_accepted_in_any_unit(text: str) -> None:
    assert quantum(text) == LONGEST_TQ * SECOND


@pytest.mark.parametrize(("text", "value"), [
    ("0", Amount(0)), ("512M", Amount(512 << 20)), ("1.5 GiB", Amount(GIB * 3 // 2)),
    ("2GB", Amount(2 * 10**9)), ("1t", Amount(1 << 40)), ("75%", Amount(share=0.75)),
])
def test_amount_is_parsed_as_bytes_or_percent(text: str, value: Amount) -> None:
    assert amount(text) == value


def test_duration_is_parsed_with_its_unit() -> None:
    assert [*map(duration, ("30", "500ms", "2min", "0", "7us"))] == [
        30_000_000, 500_000, 120_000_000, 0, 7]


@pytest.mark.parametrize("text", [
    "1193047h", "4294967296s", "4294967295001ms", "9999999999h", "999999999999999h",
])
def test_duration_beyond_the_maximum_is_refused_with_the_maximum(text: str) -> None:
    for parse in (duration, positive_duration):
        with pytest.raises(ValueError, match="at most 4294967295 seconds"):
            parse(text)


@pytest.mark.parametrize("text", ["86401", "2d", "86400001ms", "100000000", "99999999999999"])
def test_quantum_beyond_a_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give a time of at most 1d"):
        quantum(text)


@pytest.mark.parametrize("text", ["40", " 1", "0.5", "1048575"])
def test_size_without_a_unit_is_refused_with_advice(text: str) -> None:
    for parse in (size, limit, amount):
        with pytest.raises(ValueError, match=f"give a unit, such as {text.strip()}GiB or"):
            parse(text)
    assert size("1048576") == 1 << 20
    assert size("0") == 0
    assert size("40b") == 40


def test_size_beyond_64_bits_is_refused_with_the_maximum() -> None:
    assert size("16777215TiB") < LARGEST
    for parse in (size, amount, limit):
        with pytest.raises(ValueError, match="18446744073709551615 bytes"):
            parse("16777216TiB")


@pytest.mark.parametrize("text", [
    "700MiB", "20GiB", "1536MiB", "1500MB", "3TiB", "1 byte", "4097 bytes", "12kB", "7KiB", "4GB",
    "1TB", "40GB", "1023MiB",
])
def test_size_is_printed_as_entered(text: str) -> None:
    assert sized(size(text.removesuffix("ytes").removesuffix("yte"))) == text


@pytest.mark.parametrize(("size", "text"), [
    (256 * MIB, "256 MiB"), (2 * MIB, "2 MiB"), (GIB, "1.0 GiB"), (150_109_880_320, "139.8 GiB"),
])
def test_rounded_size_below_a_gibibyte_is_in_mebibytes(size: int, text: str) -> None:
    assert rounded(size) == text
