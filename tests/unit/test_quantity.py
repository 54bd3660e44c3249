# SPDX-License-Identifier: Apache-2.0
"""A quantum is no longer than what can be said of it; a size is said as it is given."""

import pytest

from nvshared.hook import protocol
from nvshared.hook.protocol import OrderRecord, Type
from nvshared.quantity import (
    LARGEST,
    LONGEST_TQ,
    amount,
    duration,
    limit,
    positive_duration,
    quantum,
    size,
    sized,
)


@pytest.mark.parametrize("text", ["4294967295", "4294967295s", "1193046h"])
def test_the_longest_quantum_can_be_told(text: str) -> None:
    value = quantum(text)
    assert value <= LONGEST_TQ * 1_000_000
    assert protocol.decode_order(
        protocol.encode_order(OrderRecord(Type.RUN, quantum=value))).quantum == value


@pytest.mark.parametrize("text", [
    "1193047h", "4294967296s", "4294967295001ms", "9999999999h", "999999999999999h",
])
def test_a_longer_time_is_refused_with_what_there_may_be(text: str) -> None:
    for parse in (quantum, duration, positive_duration):
        with pytest.raises(ValueError, match="at most 4294967295 seconds"):
            parse(text)


def test_more_bytes_than_can_be_told_are_refused() -> None:
    assert size("16777215TiB") < LARGEST
    for parse in (size, amount, limit):
        with pytest.raises(ValueError, match="18446744073709551615 bytes"):
            parse("16777216TiB")


@pytest.mark.parametrize("text", [
    "700MiB", "20GiB", "1536MiB", "1500MB", "3TiB", "1 byte", "4097 bytes", "12kB", "7KiB",
])
def test_a_size_is_said_as_it_is_given(text: str) -> None:
    assert sized(size(text.removesuffix("ytes").removesuffix("yte"))) == text
