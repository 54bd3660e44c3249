# SPDX-License-Identifier: Apache-2.0
"""Input of terminals as events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.tui.terminal import Click, Event, Key, Keys, Wheel


@pytest.mark.parametrize(("data", "events"), [
    (b"q", [Key("q")]), (b"jk", [Key("j"), Key("k")]), (b"\r", [Key("enter")]),
    (b"\x7f", [Key("backspace")]), ("é".encode(), [Key("é")]), (b"\x00\x01", []),
    (b"\x1b[A\x1b[B", [Key("up"), Key("down")]), (b"\x1bOA", [Key("up")]),
    (b"\x1b[5~\x1b[6~", [Key("pgup"), Key("pgdn")]),
    (b"\x1b[H\x1b[1~\x1bOH", [Key("home")] * 3), (b"\x1b[F\x1b[4~\x1bOF", [Key("end")] * 3),
    (b"\x1bOP\x1b[11~", [Key("f1")] * 2), (b"\x1b[Z", [Key("backtab")]),
    (b"\x1b[1;5A", [Key("up")]),        # Ctrl and the up key
    (b"\x1b[3;2~x", [Key("delete"), Key("x")]),
    (b"\x1b[200~", []),                 # unknown sequences do nothing
    (b"\x1bq", [Key("escape"), Key("q")]),
    (b"\x1b[<0;10;3M", [Click(9, 2)]), (b"\x1b[<0;10;3m", []),      # a released button is no click
    (b"\x1b[<64;1;1M\x1b[<65;1;1M", [Wheel(-1), Wheel(1)]),
    (b"\x1b[<2;10;3M", []),             # a click of the right button does nothing
    (b"\x1b[<0;M", []), (b"\x1b[<0;0;0M", []),     # clicks without a valid position do nothing
    (b"\x1b[<" + b"9" * 500 + b";1;1Mq", [Key("q")]),
])
def test_top_key_sequences_are_decoded_equally_at_once_and_byte_by_byte(
        data: bytes, events: list[Event]) -> None:
    keys = Keys()
    assert keys.feed(data) == events
    assert not keys.incomplete
    piecewise = Keys()
    found = [event for at in range(len(data)) for event in piecewise.feed(data[at:at + 1])]
    assert found == events


def test_top_decodes_a_single_escape_byte_as_the_escape_key_after_a_pause() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert (bool(keys.incomplete), keys.time_out()) == (True, [Key("escape")])
    assert (bool(keys.incomplete), keys.time_out()) == (False, [])


@given(st.binary(max_size=40))
def test_top_decodes_keys_again_after_any_bytes(data: bytes) -> None:
    keys = Keys()
    keys.feed(data)
    keys.time_out()
    assert not keys.incomplete
    assert keys.feed(b"qqqq")[-1:] == [Key("q")]
