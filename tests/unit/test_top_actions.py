# SPDX-License-Identifier: Apache-2.0
"""Keys and mouse on the dashboard: decoded, their effects, and calls to the daemon."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.control.snapshot import SetTerm, TenantSnapshot
from nvshared.tui.screen import draw
from nvshared.tui.state import (
    Command,
    Request,
    RowTarget,
    Screen,
    Sort,
    View,
    act,
    rows,
    with_snapshot,
)
from nvshared.tui.tables import CLIENT, SORTS
from nvshared.tui.terminal import Click, Event, Key, Keys, Wheel
from nvshared.units import GIB
from tests.unit.test_dashboard import HOLDER
from tests.unit.top_scene import IDLE, SCENE, WAITS, scene, seen, strike, text, typed


def selected(state: View) -> int:
    assert state.selected is not None
    return state.selected[1]


@pytest.mark.parametrize(("keys", "pid"), [
    ([], 4711), (["j", "j"], 77), (["down", "up"], 4711), (["end", "down"], 99), (["pgdn"], 99),
    (["end", "pgup"], 4711), (["end", "home"], 4711), (["k", "k", "j"], 123456),
])
def test_top_arrow_page_and_vi_keys_move_the_selection(keys: list[str], pid: int) -> None:
    assert selected(strike(seen(), *keys)[0]) == pid


def test_top_selection_follows_the_selected_program_and_moves_up_when_the_program_ends() -> None:
    state, _ = strike(seen(), "down")
    turned = with_snapshot(state, SCENE._replace(clients=(WAITS, HOLDER, IDLE)), 1001.0)
    assert selected(turned) == 123456
    gone = with_snapshot(turned, SCENE._replace(clients=(HOLDER, IDLE)), 1002.0)
    assert selected(gone) == 77
    none = with_snapshot(gone, SCENE._replace(clients=(), gpus=()), 1003.0)
    assert none.selected is None
    struck, _ = strike(none, "down", "up", "end", "enter", "m", "s")
    assert struck.message == "No program is selected."


def test_top_keeps_selection_sorting_and_filter_over_a_restart() -> None:
    state, _ = strike(seen(), "down", ">", "/", *"python", "enter")
    gone = replace(state, daemon_error="nvshared is not running")
    assert "nvshared is not running" in text(gone)
    assert "123456" in text(gone)       # programs of the last snapshot stay visible
    again = tuple(one._replace(id=one.id + 10) for one in SCENE.clients)
    back = with_snapshot(gone, SCENE._replace(clients=again), 1060.0)
    assert "not running" not in text(back)
    assert (back.selected, back.sort, back.filter) == (state.selected, "PID", "python")


@pytest.mark.parametrize(("words", "pids"), [
    ("wait", [123456]), ("gpu:1", []), ("GPU0 Notebook", [77]), ("unit:lab", [77]),
    ("user:root", [4711, 123456, 77, 99]), ("unshared", [99]), ("[4711]", [4711]),
])
def test_top_filter_shows_matching_programs_while_typing(words: str, pids: list[int]) -> None:
    state, _ = strike(seen(), "/", *words)
    assert [one.pid for one in rows(state)] == pids     # the list changes while the filter is typed
    state, _ = strike(state, "enter")
    assert [one.pid for one in rows(state)] == pids
    assert state.prompt is None
    assert len(rows(strike(state, "escape")[0])) == 4
    assert len(rows(strike(seen(), "/", *words, "escape")[0])) == 4
    again, requests = strike(seen(), "/", *words, "q", "backspace", "up", "f1")
    assert (again.filter, requests) == (words, [])
    assert strike(again, "clear")[0].filter == ""


def test_top_sort_key_steps_through_columns_and_sorts_memory_in_descending_order() -> None:
    assert [one.pid for one in rows(replace(seen(), sort="MEM"))] == [4711, 123456, 77, 99]
    for column in SORTS:
        compare, around = CLIENT[column].sort, strike(replace(seen(), sort=column), "i")[0]
        assert compare is not None
        values = [compare(one) for one in rows(around)]
        assert values == sorted(values, reverse=not CLIENT[column].descending)
    state, _ = strike(seen(), ">")
    assert state.sort == SORTS[1]
    assert strike(state, "<")[0].sort == "GPU"
    assert strike(seen(), "<")[0].sort == SORTS[-1]
    assert strike(replace(state, reverse=True), ">")[0].reverse is False


def test_top_click_selects_sorts_or_opens_help_and_wheel_and_page_keys_scroll() -> None:
    state = seen()
    frame = draw(state, 130, 40)
    for hit in frame.hits:
        state, request = act(seen(), Click(hit.start, hit.line), frame)
        words = frame.lines[hit.line].plain[hit.start:hit.end].split()
        match hit.target:
            case RowTarget(clicked):
                assert str(clicked[1]) in words
                assert (state.selected, state.screen, request) == (
                    (clicked, Screen.MAIN, None) if clicked != seen().selected else
                    (clicked, Screen.DETAILS, Request.SNAPSHOT))
            case Sort(column):
                assert " ".join(words).rstrip("▼▲") == state.sort == column
                assert state.reverse is (column == "GPU")       # the list was sorted by GPU
    assert act(seen(), Click(0, 39), frame)[0].screen is Screen.HELP    # a click on "? help"
    assert act(seen(), Click(129, 38), frame) == (seen(), None)
    many = seen(scene(1, [100]))
    page, _ = strike(many, "pgdn", width=80, height=24)
    assert page.at == draw(many, 80, 24).page - 1 > 4
    assert strike(page, "pgup", width=80, height=24)[0].at == 0
    down, _ = act(many, Wheel(2), draw(many, 80, 24))
    assert down.at == 6
    assert act(down, Wheel(-1), draw(down, 80, 24))[0].at == 3


def test_top_help_and_details_scroll_and_return_to_the_previous_screen() -> None:
    state, requests = strike(seen(), "enter", width=80, height=12)
    assert requests == [Request.SNAPSHOT]
    state, _ = strike(state, "down", "down", width=80, height=12)
    assert state.scroll == 2
    inner, _ = strike(state, "?", "end", "q", width=80, height=12)
    assert inner.scroll == draw(inner, 80, 12).last > 0
    assert draw(inner, 80, 100).first == 0      # a higher terminal shows the whole help
    details, _ = strike(inner, "escape", width=80, height=12)
    back, _ = strike(details, "escape", width=80, height=12)
    assert [one.screen for one in (details, back)] == [Screen.DETAILS, Screen.MAIN]
    assert strike(seen(), "?", "?")[0].screen is Screen.MAIN


@pytest.mark.parametrize(("key", "typing", "verb", "value", "asked"), [
    ("m", "20GiB", "memory", 20 * GIB, "to 20GiB of memory?"),
    ("m", "none", "memory", 0, "any amount"),
    ("c", "50%", "compute", 50, "at most 50 % of the time?"),
    ("c", "none", "compute", 100, "that other programs leave?"),
    ("w", "200", "weight", 200, "the weight 200"), ("w", "none", "weight", 100, "weight 100"),
    ("s", "", "suspend", 0, "Suspend python3[4711]?"),
    ("p", "", "preempt", 0, "End the present turns on GPU 0 at once"),
])
def test_top_asks_for_confirmation_before_a_change_of_a_term_or_a_preemption(
        key: str, typing: str, verb: str, value: int, asked: str) -> None:
    state, _ = strike(seen(), key)
    if typing:
        assert "python3[4711] (Tab: user:root): " in text(state)
        state, requests = typed(state, typing)
        assert requests == []
    assert asked in text(state)
    assert "y/n" in text(state)
    for no in ("n", "escape", "enter", "q"):
        refused, requests = strike(state, no)
        assert (requests, refused.unconfirmed) == ([], None)
        assert refused.message == "Nothing was changed."
    # other keys do not answer the question
    assert strike(state, "x", "down")[0].unconfirmed is not None
    state, requests = strike(state, "y")
    assert requests == [Command(verb, HOLDER, value)]
    assert state.unconfirmed is None


@pytest.mark.parametrize(("key", "typing", "verb", "value", "asked"), [
    ("m", "20GiB", "memory", 20 * GIB,
     "Limit all programs of unit:lab.service together to 20GiB of memory on each GPU? y/n"),
    ("c", "none", "compute", 0, "Remove the time limit"),
    ("w", "200", "weight", 200, "Give unit:lab.service the weight 200 on each GPU? y/n"),
    ("s", "", "suspend", 0, "Suspend all programs of unit:lab.service?"),
])
def test_top_tab_key_turns_a_command_for_a_program_into_a_command_for_the_tenant(
        key: str, typing: str, verb: str, value: int, asked: str) -> None:
    state, _ = strike(seen(), "down", "down", key, "tab")
    assert "(Tab: python3[77])" in text(state)
    if typing:
        state, _ = typed(state, typing)
        assert "Tab" not in text(state).splitlines()[-1]
    assert asked in text(state)
    # The tenant still exists after the program has ended.
    gone = with_snapshot(state, SCENE._replace(clients=(HOLDER, WAITS)), 1001.0)
    _, requests = strike(gone, "y")
    assert requests == [Command(verb, IDLE, value, "unit:lab.service")]
    assert strike(strike(seen(), key, "tab", "tab")[0], "tab")[0] == strike(seen(), key, "tab")[0]


def test_top_tab_in_details_steps_through_enclosing_tenants() -> None:
    own = TenantSnapshot("unit:lab.service", 1, 0, 0, 0, 0, ("user:alice",), ())
    around = TenantSnapshot("user:alice", 1, 0, 0, 0, 0, (), (SetTerm("suspended", 1, "", ""),))
    stopped = SCENE._replace(clients=(IDLE._replace(state="suspended"),))
    state = with_snapshot(strike(seen(stopped), "enter")[0], stopped, 1001.0, (own, around))
    targets: list[str] = []
    for _ in range(4):
        state, _ = strike(state, "tab" if targets else "w")
        assert state.prompt is not None
        targets.append(state.prompt.tenant)
    assert targets == ["", "unit:lab.service", "user:alice", ""]
    # Only the program's tenant is suspended, so resume applies to the tenant.
    asked, _ = strike(strike(state, "escape")[0], "r")
    assert "Resume all programs of user:alice?" in text(asked)
    assert strike(asked, "y")[1] == [Command("resume", stopped.clients[0], 0, "user:alice")]
    assert strike(seen(), "p", "tab")[0].unconfirmed == Command("preempt", HOLDER)


@pytest.mark.parametrize(("key", "typing", "words"), [
    ("m", "much", "'much' is invalid: give a size"), ("w", "5000", "'5000' is invalid"),
    ("c", "101", "'101' is invalid: give a percentage"),
])
def test_top_refuses_invalid_input_and_keeps_the_text(key: str, typing: str, words: str) -> None:
    state, requests = typed(strike(seen(), key)[0], typing)
    assert state.message.startswith(words)
    assert requests == []
    assert state.prompt is not None
    assert state.prompt.text == typing
    assert words[:30] in text(state, 80)
    assert typed(strike(seen(), key)[0], "")[0].message == "Nothing was changed."


def test_top_says_why_a_command_does_not_apply() -> None:
    assert strike(seen(), "r")[0].message == "python3[4711] is not suspended."
    suspended = seen(SCENE._replace(clients=(HOLDER._replace(terms={"suspended": 1}),)))
    assert strike(suspended, "s")[0].message == "python3[4711] is suspended already: r resumes it."
    assert strike(suspended, "r")[0].unconfirmed is not None
    outsider, _ = strike(seen(), "end")
    for key in "mcwsr":
        assert "blender[99] does not share the GPU" in strike(outsider, key)[0].message


def test_top_shows_an_ended_program_and_refuses_commands() -> None:
    without = SCENE._replace(clients=(WAITS, IDLE))
    opened, _ = strike(seen(), "enter")
    gone = with_snapshot(opened, without, 1001.0)
    assert "The program has ended. These are its last known figures." in text(gone)
    assert "train.py" in text(gone)
    assert strike(gone, "s")[0].message == "python3[4711] has ended."
    assert strike(gone, "escape")[0].screen is Screen.MAIN
    typing, _ = strike(seen(), "m", *"1GiB")
    state, requests = strike(with_snapshot(typing, without, 1001.0), "enter")
    assert (state.message, state.unconfirmed, requests) == ("python3[4711] has ended.", None, [])
    asked, _ = strike(seen(), "s")
    state, requests = strike(with_snapshot(asked, without, 1001.0), "y")
    assert (state.message, requests) == ("python3[4711] has ended.", [])


def test_action_confirmed_after_a_daemon_restart_reaches_the_same_program() -> None:
    asked, _ = strike(seen(), "s")
    others = (WAITS._replace(id=1), HOLDER._replace(id=2))
    _, (request,) = strike(with_snapshot(asked, SCENE._replace(clients=others), 1001.0), "y")
    assert isinstance(request, Command)
    assert (request.client.id, request.client.pid) == (2, 4711)
    lost, requests = strike(replace(asked, daemon_error="nvshared is not running"), "y")
    assert (lost.message, requests) == ("Nothing was changed: nvshared is not running.", [])


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
    (b"\x1b[M *#\x1b[M#*#y", [Click(9, 2), Key("y")]),        # without SGR 1006: press and release
    (b"\x1b[M sy\x1b[M`!!\x1b[Ma!!", [Click(82, 88), Wheel(-1), Wheel(1)]),
    (b"\x1b[M\x00\x1b\x1bq", [Key("q")]),
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
def test_top_decodes_keys_again_after_arbitrary_bytes(data: bytes) -> None:
    keys = Keys()
    keys.feed(data)
    keys.time_out()
    assert not keys.incomplete
    assert keys.feed(b"qqqq")[-1:] == [Key("q")]
