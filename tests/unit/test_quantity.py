# SPDX-License-Identifier: Apache-2.0
"""Sizes, times, shares and addresses: parsing, limits, and printing as they were given."""

from collections.abc import Callable
from typing import Any

import pytest

from nvshared import quantity
from nvshared.quantity import LARGEST, LONGEST_TQ, Amount, amount, duration, limit, size
from nvshared.units import GIB, SECOND


@pytest.mark.parametrize(("parse", "text", "value"), [
    *((amount, text, value) for text, value in (
        ("0", Amount(0)), ("512M", Amount(512 << 20)), ("1.5 GiB", Amount(GIB * 3 // 2)),
        ("2GB", Amount(2 * 10**9)), ("1t", Amount(1 << 40)), ("75%", Amount(share=0.75)))),
    *((size, text, value) for text, value in (
        ("1048576", 1 << 20), ("40b", 40), ("16777215TiB", LARGEST + 1 - (1 << 40)))),
    *((duration, text, value) for text, value in (
        ("30", 30_000_000), ("500ms", 500_000), ("2min", 120_000_000), ("0", 0), ("7us", 7))),
    *((quantity.quantum, text, LONGEST_TQ * SECOND) for text in ("86400", "86400s", "24h", "1d")),
])
def test_quantity_is_parsed_in_each_unit_up_to_the_maximum(
        parse: Callable[[str], Any], text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(("parse", "texts", "words"), [
    (duration, ("1193047h", "4294967296s", "999999999999999h"), "at most 4294967295 seconds"),
    (quantity.positive_duration, ("4294967295001ms",), "at most 4294967295 seconds"),
    (quantity.quantum, ("86401", "2d", "86400001ms", "99999999999999"), "a time of at most 1d"),
    *((parse, ("40", " 1", "0.5", "1048575"), "^give a unit, such as ")
      for parse in (size, limit, amount)),
    *((parse, ("16777216TiB",), "18446744073709551615 bytes") for parse in (size, limit, amount)),
    (quantity.endpoint, ("localhost:1", "::1:9402", ":1", "1.2.3:1", "[1.2.3.4]:1", "a"), "^give "),
])
def test_quantity_without_a_unit_or_out_of_range_is_refused_with_advice(
        parse: Callable[[str], Any], texts: tuple[str, ...], words: str) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=words):
            parse(text)


@pytest.mark.parametrize(("text", "value", "shown"), [
    ("9402", ("", 9402), "port 9402"), ("127.0.0.1:80", ("127.0.0.1", 80), "127.0.0.1:80"),
    ("[::1]:9402", ("::1", 9402), "[::1]:9402"),
])
def test_endpoint_with_or_without_address_is_parsed_and_printed(
        text: str, value: tuple[str, int], shown: str) -> None:
    found = quantity.endpoint(text)
    assert (found, str(found)) == (value, shown)


@pytest.mark.parametrize("text", [
    "700MiB", "20GiB", "1536MiB", "1500MB", "3TiB", "1 byte", "4097 bytes", "12kB", "7KiB", "1TB",
])
def test_size_is_printed_as_entered(text: str) -> None:
    assert quantity.sized(size(text.removesuffix("ytes").removesuffix("yte"))) == text
