# SPDX-License-Identifier: Apache-2.0
"""Tables, bars and quantities fit the terminal and need no colours."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nvshared.control.snapshot import ClientSnapshot, GPUSnapshot, Snapshot, Unshared
from nvshared.quantity import timed
from nvshared.tui import tables
from nvshared.tui.canvas import table
from nvshared.tui.screen import waiting_for
from nvshared.tui.tables import CLIENTS, Bar, Part, chosen, fitted, gpu_columns, plain, size
from nvshared.units import GIB

CARD = GPUSnapshot(index=0, uuid="GPU-0", name="NVIDIA H100 80GB HBM3", pci_bus_id="0:17:00.0",
                   memory_total=80 * GIB, tq=30, tq_usec=30_000_000, tq_auto=False,
                   anti_thrash="auto", policy="fair", state="turns", holders=(1,), queue_length=1,
                   capacity=78 * GIB, free=0, lent=0, outside=GIB, memory_used=79 * GIB,
                   utilization=0.97, temperature=61.0, power=412.4, turns=7, bytes_in=70 * GIB,
                   bytes_out=60 * GIB, unshared=())
HOLDER = ClientSnapshot(
    id=1, gpu=0, pid=4711, uid=0, name="python3", command="/usr/bin/python3 train.py",
    tenant="user:root", gang="", state="running", pin_reason="", terms={},
    allocated=56 * GIB, resident=56 * GIB, swapped=0, borrowed=0, pinned=GIB,
    held_usec=4_200_000, waited_usec=0, waiting_usec=0, idle_usec=0, expected_usec=0,
    position=0, turns=4, bytes_in=0, bytes_out=0)
WAITER = HOLDER._replace(id=2, pid=123456, uid=4_000_000, state="waiting", resident=21 * GIB,
                         swapped=35 * GIB, waited_usec=3_900_000_000)
SHARED = Snapshot("1.0", 30, 30_000_000, False, "auto", (CARD,), (HOLDER, WAITER))


@pytest.mark.parametrize(("changes", "column", "text"), [
    ({"tiers": {"neighbour": 3 * GIB}}, "BORROWED", "3.0G"),
    ({"tiers": {"disk": 18 * GIB}}, "ON DISK", "18.0G"),
    ({"idle_usec": 2_000_000}, "IDLE", "2.0s"), ({"gang": "job:7"}, "GANG", "job:7"),
    ({"pin_reason": "undrained"}, "PIN-REASON", "undrained"),
    ({"terms": {"memory-limit": 20 * GIB}}, "LIMITS", "20.0G"),
    ({"terms": {"compute-limit": 50}}, "LIMITS", "50%"),
    ({"terms": {"memory-limit": 1 << 20, "weight": 200}}, "LIMITS", "1.0M,w200"),
    *(({"tenant": tenant}, "TENANT", shown) for tenant, shown in (
        ("unit:alice/notes.service", "unit:alice/notes.service"),
        ("container:alice/" + "9f1c" * 16, "container:alice/9f1c9f1c9f1c"),
        ("pod:01234567-89ab-cdef-0123-456789abcdef", "pod:01234567-89a"),
        ("job:42", "job:42"))),
])
def test_clients_table_has_an_optional_column_only_while_a_client_has_a_value(
        changes: dict[str, object], column: str, text: str) -> None:
    one = HOLDER._replace(**changes)    # type: ignore[arg-type]
    lines = plain(CLIENTS, [one, HOLDER]).splitlines()
    start = lines[0].index(column)
    end = start + len(column)
    assert text in lines[1].split()
    assert lines[2][min(start, end - 4):].split()[0] in ("-", "0")
    assert column not in plain(CLIENTS, [HOLDER])
    assert "Lent" not in plain(gpu_columns(SHARED), [CARD])
    assert "4.0G" in plain(gpu_columns(SHARED), [CARD._replace(lent=4 * GIB)])


def test_client_that_loads_from_disk_shows_loaded_and_total_bytes() -> None:
    loads = WAITER._replace(
        state="loading", tiers={"disk": 18 * GIB}, loading=18 * GIB, swapped=14 * GIB,
        waiting_usec=1)
    assert waiting_for(SHARED, loads) == "for its memory, loading from disk: 4.0G of 18.0G"
    assert waiting_for(SHARED, loads._replace(tiers={})) == "for its memory to be loaded"


def test_reason_of_waiting_on_a_vanished_gpu_names_no_other_programs() -> None:
    client = SHARED.clients[0]._replace(gpu=77)
    assert waiting_for(SHARED, client._replace(state="waiting")) == "for its turn"
    assert "do not share the GPU" in waiting_for(SHARED, client._replace(state="crowded"))
    assert waiting_for(SHARED, client._replace(state="running", waiting_usec=0)) == ""


@pytest.mark.parametrize(("state", "words"), [
    ("limited", "until its time limit permits a turn"), ("suspended", "to be resumed"),
    ("crowded", "for memory of programs that do not share the GPU (blender[99] has 3.0G)"),
])
def test_reason_of_waiting_depends_on_the_state_of_the_client(state: str, words: str) -> None:
    card = CARD._replace(unshared=(Unshared(99, 0, "blender", 3 * GIB),))
    assert waiting_for(SHARED._replace(gpus=(card,)), WAITER._replace(state=state)) == words


COLUMNS = chosen(CLIENTS, [HOLDER._replace(terms={"weight": 7})])


@given(st.lists(st.integers(1, 200), min_size=len(COLUMNS), max_size=len(COLUMNS)),
       st.integers(1, 400), st.integers(1, 2))
def test_table_wider_than_the_terminal_drops_the_least_important_columns_first(
        natural: list[int], width: int, gap: int) -> None:
    widths = fitted(COLUMNS, natural, width, gap)
    for column, wide, wanted in zip(COLUMNS, widths, natural, strict=True):
        assert (
            wide == wanted or (column.drop_rank and not wide)
            or (column.shrinks_to is not None and column.shrinks_to <= wide < wanted))
    there = [at for at, wide in enumerate(widths) if wide]
    gone = [at for at, wide in enumerate(widths) if not wide]
    if sum(natural) + gap * (len(COLUMNS) - 1) <= width:
        assert widths == natural
    if any(COLUMNS[at].drop_rank for at in there):
        assert sum(widths) + gap * (len(there) - 1) <= width
    if gone:                            # omitted columns are less important than all shown columns
        least = min(COLUMNS[at].drop_rank for at in gone)
        assert all(COLUMNS[at].drop_rank < least for at in there)


@given(st.integers(0, 100), st.lists(st.integers(0, 150), max_size=4), st.integers(0, 60))
def test_memory_bar_is_never_longer_than_the_given_width(whole: int, amounts: list[int],
                                                         width: int) -> None:
    parts = tuple(Part(amount, "x", "") for amount in amounts)
    bar = Bar(1000, (Part(1, "a", ""), Part(0, "b", ""), Part(1, "c", "")))
    assert bar.characters(10) == [1, 0, 1]
    counts = Bar(whole, parts).characters(width)
    assert all(count >= 0 for count in counts)
    assert sum(counts) <= width


@pytest.mark.parametrize(("shown", "value", "text"), [
    *((size, count, text) for count, text in (
        (None, "-"), (0, "0"), (1023, "1023"), (1024, "1.0K"), (99.9 * 1024, "99.9K"),
        (99.97 * 1024, "100K"), (999.7 * 1024, "1.0M"), (GIB, "1.0G"), (139.8 * GIB, "140G"),
        (5000 * GIB, "4.9T"), (5000 * 1024 * GIB, "5000T"))),
    *((tables.duration, int(seconds * 1e6), text) for seconds, text in (
        (0, "0s"), (0.04, "0.0s"), (4.2, "4.2s"), (9.96, "9s"), (60, "1m00s"),
        (3599.9, "59m59s"), (86399, "23h59m"), (273600, "3d04h"))),
    *((timed, microseconds, text) for microseconds, text in (
        (30_000_000, "30s"), (250_000, "250ms"), (1_500_000, "1500ms"), (1_000, "1ms"))),
])
def test_size_duration_and_quantum_are_shown_in_a_short_form(
        shown: Callable[[Any], str], value: float | None, text: str) -> None:
    assert shown(value) == text
    for usec, words in ((994_999, "auto (994ms)"), (1_234_567, "auto (1.2s)")):
        assert tables.quantum_of(CARD._replace(tq_usec=usec, tq_auto=True)) == words
    assert tables.quantum_of(CARD._replace(state="shared", tq_auto=True)) == "auto"


@pytest.mark.parametrize(("name", "command", "shown"), [
    ("python3", "/usr/bin/python3 /home/a/train.py", "python3 /home/a/train.py"),
    ("org/model 7", "org/model 7", "org/model 7"),
    ("org/model", "org/model: python3 train.py", "org/model: python3 train.py"),
    ("", "/opt/a/b", "b"),
])
def test_command_is_shown_without_its_folder_and_with_the_whole_name_of_the_program(
        name: str, command: str, shown: str) -> None:
    assert tables.command(HOLDER._replace(name=name, command=command)) == shown


@pytest.mark.parametrize(("text", "width", "short"), [
    ("python3[4711]", 13, "python3[4711]"), ("nvshare-workloa[1234567]", 18, "nvshare-…[1234567]"),
    ("python[1234567]", 11, "p…[1234567]"), ("python[1234567]", 9, "python[1…"),
    ("python3 train.py", 9, "python3 …"), ("3 programs", 4, "3 p…"),
    ("a model [lr=0.001][4711]", 18, "a model [lr…[4711]"),
    ("日本語モデル[4711]", 18, "日本語モデル[4711]"), ("日本語モデル[4711]", 12, "日本 …[4711]"),
    ("日本語モデル", 5, "日本…"), ("modèle[4711]", 12, "modèle[4711]"),
])
def test_program_name_cut_to_a_width_keeps_the_process_id_if_the_id_fits(
        text: str, width: int, short: str) -> None:
    assert tables.shortened(text, width) == short
    assert cell_len(short) <= width


LONG = CARD._replace(name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
                     memory_total=288 * GIB, memory_used=287 * GIB, power=1234.5, tq=86400,
                     tq_usec=86_400_000_000)
LONGEST = HOLDER._replace(pid=4194304, uid=4_294_967_294, name="a-name-of-15-ch",
                          command="/opt/" + "x y" * 200, state="suspended", allocated=288 * GIB,
                          resident=200 * GIB, swapped=88 * GIB, terms={
                              "memory-limit": 250 * GIB, "compute-limit": 99, "weight": 1000},
                          held_usec=3_599_000_000,
                          waited_usec=86_399_000_000)


@pytest.mark.parametrize("width", [80, 100])
def test_tables_with_longest_values_fit_and_cut_no_figure(width: int) -> None:
    one = Snapshot("1.0", 30, 30_000_000, False, "auto", (LONG,), (LONGEST,))
    gpus = table(gpu_columns(one), one.gpus, width).plain.splitlines()
    clients = table(CLIENTS, one.clients, width).plain.splitlines()
    assert all(len(line) <= width for line in gpus + clients)
    for words in ("61C", "1234W", "287.0/288.0G", "97%", "86400s", "auto", "[4194304]"):
        assert words in gpus[2]
    for words in ("4194304", "289G", "201G", "suspended", "59m59s", "250G,99%,w1000"):
        assert words in clients[2].split()
    assert [words in clients[0].split() for words in ("SWAPPED", "COMMAND")] == [width > 80, True]
    assert ("GPU-Util" in gpus[0].split()) is (width > 80)
