# SPDX-License-Identifier: Apache-2.0
"""The dashboard fits terminals of all sizes, needs no colours, and draws the last minutes."""

import re
import threading
from dataclasses import replace
from itertools import product

import pytest

from nvshared import names
from nvshared.control.snapshot import PastTurn, SetTerm, Snapshot, TenantSnapshot
from nvshared.tui import tables
from nvshared.tui.canvas import graph
from nvshared.tui.screen import draw
from nvshared.tui.state import (
    SPAN,
    Past,
    Rates,
    Request,
    RowTarget,
    Screen,
    View,
    with_snapshot,
)
from nvshared.units import GIB, SECOND
from tests.unit import top_scene
from tests.unit.test_dashboard import CARD, HOLDER, LONG, LONGEST, SHARED, WAITER
from tests.unit.top_scene import IDLE, SCENE, lines, programs, prose, scene, seen, strike, text

WIDTHS = (60, 79, 80, 100, 119, 120, 130, 200, 250)
HEIGHTS = (12, 13, 18, 24, 40, 80)
ALICE = TenantSnapshot("unit:lab.service", 1, 4 * GIB, 0, 0, SECOND, ("user:alice",), (
    SetTerm("weight", 200, "unit:*", "/etc/nvshared.conf:12"), SetTerm("weight", 50, "", "")))
TURNS = (PastTurn(SECOND, SECOND, 2 * SECOND, GIB, ""),
         PastTurn(40 * SECOND, 30 * SECOND, 0, 0, "quantum"))


def screens(state: View) -> list[View]:
    details, _ = strike(state, "enter")
    if details.snapshot is not None:
        details = with_snapshot(details, details.snapshot, 2000.0, (ALICE,), TURNS)
    return [
        state, details, strike(state, "?")[0], strike(state, "/", *"gpu0 wait")[0],
        strike(state, "m", *"20GiB")[0], strike(state, "p")[0], strike(state, "s", "tab")[0],
        replace(state, daemon_error="nvshared is not running; start it with: systemctl start it"),
        replace(state, message="python3[4711] is suspended on GPU 0. " * 9)]


STATES = {
    "nothing yet": View(), "one look": seen(), "busy": seen(looks=30),
    "no GPU": seen(SHARED._replace(gpus=(), clients=())),
    "long": seen(SHARED._replace(gpus=(LONG,), clients=(LONGEST,)), 3),
    "100 programs": seen(scene(1, [100], [0])), "8 GPUs": seen(scene(8, [3, 0, 20], [2, 5])),
    "quiet": seen(scene(16, [0])),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.long)])
def test_top_screens_fit_every_terminal(name: str, all_of_them: bool) -> None:
    found = list(product(screens(STATES[name]), WIDTHS, HEIGHTS))
    for one, width, height in found if all_of_them else found[::97]:
        lines(one, width, height)       # lines() checks each line's length


@pytest.mark.parametrize(("width", "height"), [(20, 24), (39, 80), (200, 7), (1, 1)])
def test_top_on_a_too_small_terminal_says_the_needed_size(width: int, height: int) -> None:
    shown = " ".join(text(seen(), width, height).split())
    if width > 1:
        assert shown == f"top needs 40 columns and 8 lines; here are {width} and {height}. q quits."


@pytest.mark.parametrize("width", [80, 140, 250])
def test_top_shows_gpu_holder_and_waiting_programs(width: int) -> None:
    shown = text(seen(looks=3), width)
    for words in (
        "GPU 0 H100 80GB HBM3", "79.0 of 80.0 GiB", "97%", "61C", "412W", "turns · auto · TQ 30s",
        "python3[123456] waits for python3[4711]: 3.9s, about 26s more",
    ):
        assert words in shown
    (holder,) = [line for line in shown.splitlines() if "▶" in line]
    assert " 4711 " in holder
    assert "▒" not in holder
    (waiter,) = [line for line in shown.splitlines() if re.search(r" 123456 .* waiting ", line)]
    assert waiter.count("▒") > waiter.count("█") > 0
    assert "  3.9s   ~26s " in waiter
    (outsider,) = [line for line in shown.splitlines() if "blender" in line]
    for words in (" 99 ", "unshared", "3.0G"):
        assert words in outsider


def test_top_at_80_columns_names_the_user_of_each_program_on_two_gpus() -> None:
    shown = lines(seen(scene(2, [2])), 80)
    (title,) = [line for line in shown if " PID " in line]
    assert "USER" in title


def test_dashboard_replaces_or_omits_figures_of_a_card_that_are_unknown() -> None:
    unknown = CARD._replace(memory_used=None, utilization=None, temperature=None, power=None)
    waits = WAITER._replace(waiting_usec=SECOND, expected_usec=None, state="crowded", position=0)
    shown = text(seen(SHARED._replace(gpus=(unknown,), clients=(HOLDER, waits))))
    ours = 57 * GIB + 22 * GIB          # resident and pinned bytes of both clients
    assert f"{(ours + GIB) / GIB:.1f} of 80.0 GiB" in shown
    assert "None" not in shown
    assert re.search(r" crowded .* 1.0s +\? ", shown)


def test_top_lists_keys_and_shows_a_message_when_no_gpu_program_or_match_exists() -> None:
    state, requests = strike(seen(), "x")
    assert not requests
    assert "x does nothing here. ? lists all keys." in text(state)
    shown = text(strike(seen(), "?")[0], 100, 60)
    for words in ("suspend", "resume", "preempt", "memory limit", "weight", "sorts", "Shift"):
        assert words in shown
    for state, key, request in (
        (seen(), "q", Request.QUIT), (View(), "q", Request.QUIT),
        (seen(), "f10", Request.QUIT), (seen(), "redraw", Request.REDRAW),
    ):
        assert strike(state, key)[1] == [request]
    assert "nvshared manages no GPU." in text(seen(SHARED._replace(gpus=(), clients=())))
    without_programs = SHARED._replace(clients=())
    assert "No program uses a GPU through nvshare." in text(seen(without_programs))
    none, _ = strike(seen(), "/", *"nowhere", "enter")
    assert "No program matches 'nowhere'. Esc removes the filter." in text(none)


@pytest.mark.parametrize("height", [12, 40])
@pytest.mark.parametrize("counts", [[1, 30], [0, 7]])
def test_top_scrolling_reaches_every_program(height: int, counts: list[int]) -> None:
    state = seen(scene(2, counts))
    found: set[int] = set()
    for _ in range(sum(counts)):
        frame = draw(state, 80, height)
        state = replace(state, first=frame.first)
        found |= {hit.target.key[1] for hit in frame.hits if isinstance(hit.target, RowTarget)}
        assert any(line.plain.startswith("›") for line in frame.lines)
        state, _ = strike(state, "down", width=80, height=height)
    assert len(found) == sum(counts)


@pytest.mark.parametrize("each", [0, 3])
@pytest.mark.parametrize("height", [12, 24, 56])
@pytest.mark.parametrize("cards", [1, 3, 16])
def test_top_shows_each_gpu_as_frame_or_line_or_counts_omitted_gpus(
        cards: int, height: int, each: int) -> None:
    shown = lines(seen(scene(cards, [each], [1, 2])), 80, height)
    indices = [int(n) for line in shown for n in re.findall(r"^(?:╭─ )?GPU (\d+) ", line)]
    left_out = [int(n) for line in shown for n in re.findall(r"^and (\d+) more GPUs", line)]
    assert len(indices) == len(set(indices)) == cards - sum(left_out)
    frames = sum(line.startswith("╭") for line in shown)
    assert frames == sum(line.startswith("╰") for line in shown)        # no frame is cut
    assert not left_out or not frames


def test_top_on_a_low_terminal_shows_busy_gpus_first() -> None:
    low = lines(seen(scene(8, [3], [5])), 80, 12)
    assert any(line.startswith("GPU 5 ") for line in low)
    assert any(line.startswith("and ") for line in low)


def test_top_details_show_tenants_terms_and_turns() -> None:
    state, _ = strike(seen(), "down", "down", "enter")
    state = with_snapshot(state, SCENE, 1002.0, (ALICE,), TURNS)
    assert state.screen is Screen.DETAILS
    shown = prose(state, 80)
    for words in (
        "python3[77] on GPU 0", "python3 -m notebook", "unit:lab.service, in user:alice",
        "4.0G in host memory", "weight", "200", "[tenant unit:*] in /etc/nvshared.conf:12",
        "quantum", "not yet", "40s",
    ):
        assert words in shown
    assert "50 set by hand" not in shown        # the value set by hand is not in force
    beside = text(state, 200, 40)
    assert re.search("Memory +Last turns", beside)


def test_top_details_describe_waiting_idle_unshared_and_new_programs() -> None:
    clients = (HOLDER, top_scene.WAITS, IDLE._replace(idle_usec=3 * SECOND))
    scene = seen(SCENE._replace(clients=clients))

    def details(state: View, *keys: str) -> str:
        return prose(strike(state, *keys, "enter")[0])

    assert "waits for python3[4711]; number 1 in the queue; 3.9s, about 26s more" in details(
        scene, "down")
    assert "It uses 3.0G of GPU memory without sharing the GPU." in details(seen(), "end")
    assert "State idle, for 3.0s" in details(scene, "down", "down")
    assert "State running, for" not in details(scene)
    for turns, words in ((0, "The program has had no turn."),
                         (1, "The first turn began before nvshared was started.")):
        shown = details(seen(SCENE._replace(clients=(HOLDER._replace(turns=turns),))))
        assert f"in {turns} turn" in shown
        assert words in shown


def test_top_shows_the_next_program_and_the_number_of_other_waiting_programs() -> None:
    further = programs(1)[0]._replace(state="waiting", waiting_usec=SECOND)
    shown = text(seen(SCENE._replace(clients=(HOLDER, top_scene.WAITS, further))))
    assert re.search(r"3\.9s, about 26s more; 1 more\s", shown)


def test_top_graph_scale_includes_the_present_value() -> None:
    small = SCENE._replace(clients=(HOLDER._replace(resident=4 * GIB),))
    state = seen(small, looks=20)
    large = SCENE._replace(clients=(HOLDER._replace(resident=90 * GIB),))
    state = with_snapshot(state, large, 1020.0)
    shown = lines(state)
    (here,) = [at for at, line in enumerate(shown) if "resident" in line]
    assert shown[here].split()[-2] == shown[here + 1].split()[-2]


def test_top_headings_show_the_sorting_and_do_not_depend_on_the_shown_programs() -> None:
    state = strike(seen(), ">", width=200)[0]
    assert f"{state.sort}▲" in text(state, 200)
    assert f"{state.sort}▼" in text(strike(state, "i", width=200)[0], 200)
    assert "MEM▼" in text(replace(state, sort="MEM"), 200)
    quiet = SCENE._replace(clients=(HOLDER._replace(tenant="user:root"),))
    limited = HOLDER._replace(terms={"memory-limit": GIB, "compute-limit": 50}, idle_usec=SECOND)
    busy = SCENE._replace(clients=(limited, top_scene.WAITS, IDLE))
    for width in (80, 130, 200):
        names = [
            next(line for line in lines(seen(one), width) if "COMMAND" in line).split()
            for one in (quiet, busy)]
        assert names[0] == names[1]


def at(turns: int, gib_in: int = 0, use: float | None = 0.5, waiting: int = 0) -> Snapshot:
    card = CARD._replace(
        turns=turns, bytes_in=gib_in * GIB, bytes_out=0, utilization=use, queue_length=waiting)
    return SHARED._replace(gpus=(card,))


def past(*samples: tuple[float, Snapshot]) -> Past:
    found = Past()
    for moment, snapshot in samples:
        found = found.after(snapshot, moment)
    return found


def test_top_rates_are_computed_from_the_last_seconds_only() -> None:
    assert past().rates(0) is None
    assert past((1, at(7))).rates(0) is None
    assert past((1, at(7)), (3, at(11, 6))).rates(0) == Rates(2, 3 * GIB, 0)
    assert past((1, at(7)), (3, at(11, 6))).rates(1) is None
    long = past((0, at(0)), *((100 + n, at(n, n)) for n in range(40)))
    assert long.rates(0) == Rates(1, GIB, 0)


def test_top_rates_start_from_zero_after_a_daemon_restart() -> None:
    restarted = past((1, at(50, 50)), (2, at(0)), (3, at(3, 3)))
    assert restarted.rates(0) == Rates(3, 3 * GIB, 0)
    assert past((1, at(50)), (2, at(0))).rates(0) is None
    assert restarted.series(0, "bytes_in", 300)[-3:] == [None, None, 3 * GIB]


def test_top_graph_shows_the_mean_of_each_interval_within_its_span() -> None:
    found = past(*((n, at(n, 2 * n, use=n / 10, waiting=n)) for n in range(11)))
    assert found.series(0, "waiting", 300)[-10:] == list(range(1, 11))
    assert found.series(0, "bytes_in", 300)[-10:] == [2 * GIB] * 10
    assert found.series(0, "bytes_out", 300)[-10:] == [0] * 10
    assert found.series(0, "use", 300)[:-10] == [None] * 290
    assert past((0, at(0)), (2, at(0, 4))).series(0, "bytes_in", 300)[-1] == 2 * GIB
    assert found.series(0, "waiting", 60)[-3:] == [2.5, 7, 10]
    assert past((0, at(0, use=None)), (1, at(1, use=None))).series(0, "use", 5) == [None] * 5
    long = past(*((n, at(n)) for n in range(0, 1000, 5)))
    assert long.samples[0].moment >= 995 - SPAN - 5
    # A moment later only the latest interval differs.
    looks = [(7.7 + n, at(n, n % 7)) for n in range(100)]
    before, after = (past(*some).series(0, "bytes_in", 30) for some in (looks, looks[:-1]))
    assert before[-10:-1] in ([*after[-10:-1]], [*after[-9:-1], after[-1]])


def test_top_graph_is_drawn_in_block_characters() -> None:
    assert graph([None, 0, 0.001, 0.5, 1, 2], 1) == [" ▁▂▄██"]
    assert graph([0, 0.5, 0.75, 1], 1, 2) == ["  ▄█", "▁███"]
    assert graph([], 1, 3) == ["", "", ""]
    assert graph([3], 0) == ["▁"]


def test_users_are_shown_by_number_while_the_directory_of_users_is_slow(
        monkeypatch: pytest.MonkeyPatch) -> None:
    replies = threading.Event()

    def late(uid: int) -> str:
        assert replies.wait(600)
        return f"u{uid}"

    monkeypatch.setattr(names, "user", late)
    monkeypatch.setattr(tables, "PATIENCE", 0.01)
    user = tables._Users()
    assert [user(1), user(2), user(1)] == ["1", "2", "1"]
    replies.set()
    for thread in user._asked.values():
        thread.join()
    assert [user(1), user(2)] == ["u1", "u2"]
    monkeypatch.setattr(names, "user", lambda uid: f"v{uid}")
    monkeypatch.setattr(tables, "PATIENCE", 600.0)
    assert tables._Users()(3) == "v3"
