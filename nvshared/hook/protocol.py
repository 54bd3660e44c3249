# SPDX-License-Identifier: Apache-2.0
"""The messages between libnvshare.so (the hook) and the daemon, as one table.

Each message is a member of Type, and each of its fields a row of OrderRecord or ReportRecord. From
these are made the layouts of packets (packets.py), libhook/include/nvshare/messages.h and the
tables of docs/internals/connections.md; `make -C libhook protocol` writes the last two.
libhook/include/nvshare/protocol.h has the rules and words. ARCHITECTURE.md says how to add a field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

from nvshared.scheduler.events import Memory, PinReason

VERSION = 3
OLDEST = 2                              # libraries that were loaded before an upgrade speak it


class _Named(IntEnum):
    """A value of the protocol, with its meaning."""

    text: str

    def __new__(cls, code: int, text: str = "") -> "_Named":
        one = int.__new__(cls, code)
        one._value_, one.text = code, text
        return one


class Type(_Named):
    """The messages: below HELLO orders, daemon to hook; from HELLO on reports, hook to daemon."""

    LIMITS = 1, (
        "`limits` apply from now on. The first LIMITS accepts the client, as the answer to HELLO. "
        "A LIMITS that answers a COMMIT has its number, and grants the request if it has GRANTED. "
        "In version 2 it grants the request if limits.commit >= wanted, or limits.beyond >= "
        "memory.beyond if `wanted` was 0. The daemon also sends LIMITS without a request, with "
        "number 0.")
    REFUSED = 2, (
        "Answer to HELLO: the program runs unshared, for the reason in `refusal`. The daemon "
        "closes the connection. Always in the layout of version 2.")
    RUN = 3, (
        "Open the gate, until STOP. These flags control the hook during the turn: PACE, "
        "REPORT_IDLE, REPORT_COPIES, REPORT_BUSY, STEP. The daemon sends RUN again to a running "
        "client when a flag, `idle_window` or `step_pause` changes. The hook opens the gate only "
        "while the client is whole (resident + pinned + pending = need <= room).")
    STOP = 4, "Close the gate, wait for the work in flight, answer STOPPED."
    EVICT = 5, (
        "Shrink to `room`: evict blocks until resident + pinned <= room. Answered by MOVED. A "
        "running client evicts nothing: it gives up only the room that it does not occupy. With "
        "KEEP in flags, only for a client whose gate is closed, this is a writeback: no block is "
        "evicted and the room does not change. The hook copies to the host the blocks that would "
        "be evicted first, until `writeback` bytes could be evicted without a copy. Then it "
        "copies to the host the swapped blocks whose bytes are only on another GPU. `lender` is "
        "the GPU that lends memory for swapped blocks, and `loan` the limit in bytes for all "
        "swapped blocks there. These bytes count in memory.host, so that host memory can take "
        "them back. Without KEEP, swapped blocks beyond the loan are copied from the lender to "
        "host memory first.")
    LOAD = 6, (
        "Grow to `room`: load swapped blocks as far as they fit, then release host memory until "
        "the client holds at most `host`. Answered by MOVED. Also sent to a running client to "
        "give it more room.")
    YIELD = 7, (
        "Another client needs the bus: end the EVICT or LOAD with this number, which had AHEAD, "
        "after the copies that are in flight. The MOVED of that order says how much was moved, "
        "and has YIELDED if the order was not completed. If that order was answered already, "
        "YIELD has no effect. YIELD has no answer of its own.")
    INTRODUCE = 8, (
        "A new daemon has taken this connection over. Answered by HELLO with the same number; "
        "after that HELLO the hook repeats each COMMIT that has no answer yet. Always in the "
        "layout of version 2, as the new daemon does not know what the hook speaks.")
    QUEUED = 9, (
        "Answer to WAITING: `waits_for` is the reason why the client waits. `number`: the "
        "client's position in the queue, 1 for the next to run; 0 if it does not wait in the "
        "queue.")
    REASON = 10, (
        "Sent before a LIMITS that refuses a COMMIT: the limit that is the reason, as a message "
        "for the program's user. `text`: UTF-8, ended by a 0 or by its size. A longer text is "
        "sent in several REASONs.")
    PUBLISH = 11, (
        "A background client runs on the card: publish from now on whether work is in flight, in "
        "the `struct nvshare_inflight` of a shared page. The order carries the page's descriptor, "
        "which is writable. Without a descriptor: stop publishing.")
    WATCH = 12, (
        "To a background client: submit nothing while client `number` has work in flight. The "
        "order carries the read-only descriptor of that client's page. Without a descriptor: "
        "ignore that client from now on. A new HELLO ends PUBLISH and every WATCH.")
    PREALLOCATE = 13, (
        "Allocate host memory for swapped blocks until the client holds `host` bytes, while the "
        "program runs. The next EVICT, LOAD or HELLO ends this. Has no answer: MEMORY reports the "
        "bytes held.")
    PARK = 14, (
        "To a client whose gate is closed and which has no resident memory but pinned memory: "
        "keep all threads of the program out of the driver, because the process is about to be "
        "checkpointed. With AHEAD: only if no thread wants the GPU. `host`: bytes of host memory "
        "that the checkpoint takes, which the HELLO to a later daemon repeats. Answered by "
        "PARKED. Once PARKED has reported success, the daemon sends only INTRODUCE, LEAVE and "
        "UNPARK, and the hook sends only WAKE, HELLO and, for a thread that waits at the gate, "
        "MEMORY.")
    UNPARK = 15, (
        "The program's threads may call the driver again. The process now uses the GPU `gpu`. Has "
        "no answer; the daemon sends INTRODUCE to get the memory figures, or a HELLO for another "
        "GPU. With DRIVER_ERROR: the process stays checkpointed for ever, because the driver "
        "cannot restore it. Each call of the driver must fail from now on.")
    STORE = 16, (
        "Keep at most `file` bytes of the client's blocks in its file. In the background, the "
        "hook moves swapped blocks from host memory to the file until the file holds `file` "
        "bytes, and releases their host memory. Blocks that are evicted first are moved first; "
        "blocks of later EVICTs are moved, too. No other order waits for these writes, and no "
        "block is moved to the file during a LOAD. If the file holds more than `file` bytes, "
        "moving stops and resident blocks give up their copies in the file; swapped blocks stay "
        "there until they are loaded or freed. After a new HELLO `file` is 0. The first STORE of "
        "a connection carries the file's descriptor, unless a STORED has reported bytes in a "
        "file. The file is regular, unlinked, open for reading and writing, with O_DIRECT if the "
        "file system supports it. A hook that has bytes in a file already keeps that file. "
        "Answered by STORED with the same number.")
    LEAVE = 17, (
        "To a parked client whose process is checkpointed, because CRIU is about to dump it: "
        "close the connection. Connect again once the process has been restored from the dump, or "
        "if it goes on without that for ten seconds. Has no answer.")
    HELLO = 64, (
        "Introduces the client on a new connection, and answers INTRODUCE: the GPU's `uuid`, the "
        "memory that the client holds already, and the `commit` granted so far. RUNNING in flags: "
        "the gate is open (the daemon was restarted). `number`: that of INTRODUCE, else 0.")
    MEMORY = 65, (
        "The memory figures changed. Sent at most every few milliseconds, but at once in two "
        "cases: when a thread begins to wait at the closed gate (WANTS in flags, once per closing "
        "of the gate), and when the need of a running client outgrows its room: the hook then "
        "closes the gate until a LOAD grants enough room.")
    IDLE = 66, (
        "The client runs with REPORT_IDLE, and for RUN's `idle_window` its program had no work in "
        "flight and submitted none. With PACE, the hook sends it earlier if the program's own "
        "pauses are shorter. A hint: the gate is still open. With WANTS in flags: the program, "
        "reported as idle before, has submitted work again. If a RUN changes the `idle_window` of "
        "an idle program, the hook sends IDLE again, with WANTS unless the program is idle for the "
        "new window.")
    STOPPED = 67, (
        "Answer to STOP: the gate is closed and the work drained. WANTS in flags: a thread waits "
        "at the gate, and no MEMORY will report it. `took`: us from the receipt of STOP to the "
        "end of the drain. `used`: us from the opening of the gate to the end of the drain, less "
        "the time known to be without work in flight; 0: unknown, as the client is pinned and was "
        "not drained.")
    REOPENED = 68, (
        "Answer to STOP instead of STOPPED: the drain has failed, so the gate is open again. The "
        "work in flight may depend on work that a thread at the gate would submit. The daemon "
        "should repeat STOP later.")
    MOVED = 69, "Answer to EVICT and LOAD, with the number of the order."
    COMMIT = 70, (
        "Requests that allocated + pinned may grow to `wanted`, and pinned memory by `pins` "
        "bytes. Answered by LIMITS with the same number; if it refuses, the program's call "
        "returns CUDA_ERROR_OUT_OF_MEMORY. Memory to be pinned needs a request every time, "
        "because no other client can ever use its room again and each of them must still fit "
        "beside it. The daemon counts the granted `pins` as pinned until a report shows that the "
        "hook has read the answer (`answered`), and from then on counts the bytes that the hook "
        "reports (`to_pin`). With `wanted` 0 it is a request that memory.beyond may be as large "
        "as reported. The daemon counts memory.beyond from now on unless it refuses. Sent only if "
        "limits.beyond is not 0.")
    COPIES = 71, (
        "The client runs with REPORT_COPIES, and its program's use of the bus has changed: from "
        "now on the program copies to the card (INWARD in flags), to the host (OUTWARD), both, or "
        "neither. The report is void after the end of the turn and after a RUN without "
        "REPORT_COPIES.")
    WAITING = 72, (
        "A thread has waited at the gate for long: the hook asks for the reason, to inform the "
        "program's user. Answered by QUEUED. WANTS in flags, unless the client has the turn "
        "already.")
    NAME = 73, (
        "The program's own name, for display: `text`, UTF-8, ended by a 0 or by its size. Only "
        "before HELLO.")
    BUSY = 74, (
        "The client runs with REPORT_BUSY: its program has had work in flight throughout the last "
        "second, or, with GAPS in flags, it has not. Sent once in each turn and then whenever "
        "this changes; never between STOP and the next RUN.")
    GANG = 75, (
        "The gang of this client: programs of one user, on several GPUs, that have their turns at "
        "the same time. `text`, encoded as that of NAME: the gang's name, a colon, and the number "
        "of its processes if known. Only before HELLO. A GANG with an empty text names no gang. "
        "In version 2 only such a GANG carries `terms`, in the place of the text.")
    BORROWED = 76, (
        "`moved` bytes of memory.host are on the GPU `uuid`. `dirty` of these bytes have no copy "
        "in host memory, so returning the loan requires a copy. Sent before the next report "
        "whenever one of these has changed, and before HELLO if the client has ever borrowed "
        "memory.")
    PARKED = 77, (
        "Answer to PARK, with its number. `park`: DONE, or the reason why the client is not "
        "parked. WANTS in flags: a thread wants to call the driver, or waits at the gate, or "
        "for the answer to a COMMIT.")
    WAKE = 78, (
        "A thread of a parked program wants the GPU, as WANTS says in PARKED. Sent once after each "
        "PARK; a HELLO says the same with WANTS.")
    STORED = 79, (
        "`moved` bytes of the client's blocks are in its file, copies of resident blocks "
        "included. They do not count in memory.host. `error`: errno of the last failure to move "
        "blocks there, ETIMEDOUT while a write hangs; 0 after the next success. `number`: that of "
        "the last STORE received. Sent as the answer to STORE, before the next report whenever "
        "one of these has changed, and before HELLO if there is a file.")

    @property
    def is_order(self) -> bool:
        return self < Type.HELLO


class Flag(IntFlag):
    """The field `flags` of all messages but REFUSED and QUEUED."""

    text: str

    def __new__(cls, code: int, text: str = "") -> "Flag":
        one = int.__new__(cls, code)
        one._value_, one.text = code, text
        return one

    PACE = 1 << 0, (
        "RUN: other clients wait: bound the work in flight, keep no memory that the program has "
        "freed")
    REPORT_IDLE = 1 << 1, "RUN: send IDLE after `idle_window` without work"
    REPORT_COPIES = 1 << 2, "RUN: send COPIES, as memory may be moved during the turn"
    AHEAD = 1 << 3, (
        "EVICT, LOAD: speculative, no client waits for the result: copy few blocks at a time and "
        "end at YIELD. PARK: only if no thread wants the GPU")
    KEEP = 1 << 4, "EVICT: writeback; copied blocks stay resident"
    YIELDED = 1 << 5, "MOVED: the order was ended early by YIELD, or a loan's return by a LOAD"
    NO_MEMORY = 1 << 6, (
        "MOVED to EVICT: `host` or the host's memory is used up. LOAD: the driver has less free "
        "memory than the room")
    DRIVER_ERROR = 1 << 7, "MOVED: the driver failed for another reason; UNPARK: to restore"
    WANTS = 1 << 8, "HELLO, MEMORY, STOPPED and others: a thread waits at the gate"
    RUNNING = 1 << 9, "HELLO: the gate is open"
    INWARD = 1 << 10, "COPIES: from host to card"
    OUTWARD = 1 << 11, "COPIES: from card to host"
    REPORT_BUSY = 1 << 12, (
        "RUN: send BUSY. With PACE: other clients wait for the turn but not for memory, so freed "
        "memory may be kept")
    GAPS = 1 << 13, "BUSY: part of the last second was without work in flight"
    STEP = 1 << 14, (
        "RUN: let launches through one at a time, each `step_pause` us after the end of the "
        "previous one: work on another GPU depends on some of them")
    IS_PARKED = 1 << 15, "HELLO: an earlier daemon has parked the client"
    GRANTED = 1 << 16, "LIMITS: the COMMIT with this number is granted; not in version 2"


class Refusal(_Named):
    VERSION = 1, "the daemon does not speak this version"
    NO_SUCH_GPU = 2, "the daemon does not manage this GPU"
    TOO_MANY_CLIENTS = 3, "the daemon has too many clients"


class Wait(_Named):
    """Why a client waits."""

    MOVES = 0, "memory of this or another client is being moved"
    TURN = 1, "the client is queued"
    ROOM = 2, (
        "even alone, the client would not fit beside the memory of processes that do not share "
        "the card")
    SHARE = 3, "the client has used up its share of the time"
    RESUME = 4, "the client is suspended"
    GANG = 5, "the client's gang needs its turns on several GPUs at once"


class Park(_Named):
    """The answer to PARK."""

    DONE = 0, "parked: no thread is in the driver, or can enter it"
    BUSY = 1, "not all threads of the program were asleep in time"
    CALLED = 2, "a thread wants to call the driver, or waits at the gate"
    SEVERAL = 3, "the process uses several GPUs"
    HOLDS = 4, "memory of the client is still on the card, or pinned"
    UNSEEN = 5, (
        "the program may bypass this library's stubs, or the states of its threads cannot be read")


class FieldKind(NamedTuple):
    """The types of a field in C, in a packet and in Python."""

    c: str
    size: int                           # bytes in a packet
    none: Any                           # the value of a field that is not given


NUMBER = FieldKind("uint64_t {}", 8, 0)
UUID = FieldKind("uint8_t {}[16]", 16, bytes(16))        # of a GPU, as cuDeviceGetUuid returns it
TEXT = FieldKind("char {}[88]", 88, "")      # UTF-8, ended by a 0 or by its size
NO_UUID = UUID.none


class Row(NamedTuple):
    """A field of messages."""

    where: str                          # the names of these messages, with places in version 2
    unit: str
    text: str
    kind: FieldKind = NUMBER
    group: str = ""                     # the struct in C of which it is a member
    name: str = ""                      # the attribute in Python, with that of its object

    @property
    def places(self) -> Mapping["Type", tuple[int, int] | None]:
        """By message: the field's offset and size in version 2; None: version 2 lacks it."""
        found: dict[Type, tuple[int, int] | None] = {}
        for one in self.where.split():
            message, *place = one.split(":")
            offset, size = (*map(int, place), self.kind.size)[:2] if place else (0, 0)
            found[Type[message]] = (offset, size) if place else None
        return found

    @property
    def member(self) -> str:
        """The field's path in the record of C."""
        name = self.name.rpartition(".")[2]
        return f"{self.group}.{name}" if self.group else name


def row(where: str, unit: str, text: str, kind: FieldKind = NUMBER, group: str = "") -> Any:
    """A row: a field of the messages `where`. "EVICT:32" is at byte 32 in version 2, "QUEUED:4:4"
    has 4 bytes there; "EVICT": version 2 lacks it. New rows come last: the order is the layout."""
    return field(default=kind.none, metadata={"rows": (Row(where, unit, text, kind, group),)})


def rows(record: type[Any]) -> list[Row]:
    """The rows of OrderRecord or ReportRecord, in their order."""
    found = []
    for one in fields(record):
        for each in one.metadata.get("rows", ()):
            found.append(each._replace(name=f"{one.name}.{each.name}" if each.name else one.name))
    return found


@dataclass(frozen=True, slots=True)
class OrderRecord:
    """An order: struct nvshare_order. The fields that its message has not are 0."""

    type: Type
    flags: int = 0                      # of Flag
    number: int = 0                     # pairs an order or a request with its answer
    room: int = row("EVICT:16 LOAD:16", "bytes", "room of the client from now on")
    host: int = row(
        "EVICT:24 LOAD:24 PREALLOCATE:24 PARK:24", "bytes",
        "host memory for swapped blocks, in all; PARK: for the checkpoint")
    writeback: int = row("EVICT:32", "bytes", "with KEEP: as much can be evicted without a copy")
    file: int = row("STORE:32", "bytes", "limit of the client's blocks in its file")
    step_pause: int = row("RUN:40", "us", "with STEP: time between two launches")
    idle_window: int = row("RUN:48", "us", "most time without work until IDLE; 0: unchanged")
    commit: int = row("LIMITS:56", "bytes", "allocated + pinned may grow to this without a request",
                      group="limits")
    most: int = row(
        "LIMITS:64", "bytes", "and to this with a request (basis of cuMemGetInfo's free)",
        group="limits")
    total: int = row(
        "LIMITS:72", "bytes", "size of the card for this client: cuMemGetInfo's total",
        group="limits")
    host_slab: int = row(
        "LIMITS:80", "bytes", "host memory is allocated in slabs of this size", group="limits")
    beyond: int = row(
        "LIMITS:88", "bytes", "memory.beyond may grow to this with a request", group="limits")
    lender: bytes = row("EVICT:56", "UUID", "the GPU that lends memory for swapped blocks", UUID)
    loan: int = row("EVICT:96", "bytes", "limit of all swapped blocks on the lender")
    refusal: int = row("REFUSED:4:4", "enum nvshare_refusal", "why the client is refused")
    waits_for: int = row("QUEUED:4:4", "enum nvshare_wait", "why the client waits")
    gpu: bytes = row("UNPARK:16", "UUID", "the GPU that the process uses now", UUID)
    text: str = row("REASON:16", "UTF-8", "the limit that is the reason", TEXT)


def _in_figures(offset: int, size: int = 8, *, but: str = "NAME GANG") -> str:
    place = f":{offset}" if size == 8 else f":{offset}:{size}"
    return " ".join(f"{one.name}{place}" for one in Type
                    if not one.is_order and one.name not in but.split())


def _figure(name: str, text: str, where: str, unit: str = "bytes", group: str = "memory") -> Row:
    return Row(where, unit, text, group=group, name=name)


WITHOUT_ANSWERS = "NAME GANG HELLO BORROWED"
# Attributes of Memory. `allocated`, `resident` and `pinned` count whole blocks. A new figure here
# would move the fields behind it: it is a row of ReportRecord with the group "memory".
FIGURES = (
    _figure("allocated", "can be evicted: resident or swapped", _in_figures(16)),
    _figure("resident", "can be evicted, and is on the card now", _in_figures(24)),
    _figure("pinned", "on the card, cannot be evicted", _in_figures(32)),
    _figure("pending", "pinned memory that a waiting thread is about to allocate", _in_figures(40)),
    _figure("room", "as set by the orders carried out so far", _in_figures(48)),
    _figure("host", "host memory held for swapped blocks", _in_figures(56)),
    _figure("beyond", "host memory of allocations that do not fit the card", _in_figures(64)),
    _figure("answered", "COMMITs up to this number are answered, or no thread waits for their "
            "answers any more", _in_figures(72, but=WITHOUT_ANSWERS), "number", ""),
    _figure("to_pin", "bytes that these COMMITs were granted to pin, not yet in `pinned` and not "
            "given up", _in_figures(80, but=WITHOUT_ANSWERS), group=""),
    _figure("pin_reason", "why the client is pinned", _in_figures(6, 2), "enum nvshare_pin_reason",
            ""),
)


@dataclass(slots=True)                  # not frozen, as decoding would take a quarter longer
class ReportRecord:
    """A report: struct nvshare_report. The fields that its message has not are 0."""

    type: Type
    flags: int = 0                      # of Flag
    number: int = 0                     # pairs an order or a request with its answer
    memory: Memory = field(default=Memory(), metadata={"rows": FIGURES})    # when it is sent
    uuid: bytes = row("HELLO:72 BORROWED:72", "UUID", "the client's GPU; BORROWED: the lender",
                      UUID)
    commit: int = row("HELLO:88", "bytes", "granted so far")
    wanted: int = row("COMMIT:88", "bytes", "requested in all; 0: a request for memory.beyond")
    pins: int = row("COMMIT:96", "bytes", "by which `pinned` may grow")
    context: int = row("HELLO:96", "bytes", "with IS_PARKED: `host` of the PARK")
    moved: int = row(
        "MOVED:88 BORROWED:88 STORED:88", "bytes", "moved, or with KEEP: that can be evicted "
        "without a copy until the gate opens again; BORROWED: on the lender; STORED: in the file")
    used: int = row("STOPPED:88", "us", "of the turn with work in flight; 0: unknown")
    took: int = row("MOVED:96 STOPPED:96", "us", "from the receipt of the order to its end")
    dirty: int = row("BORROWED:96", "bytes", "on the lender without a copy in host memory")
    error: int = row("STORED:96", "errno", "of the last failure to write to the file")
    park: int = row("PARKED:88", "enum nvshare_park", "whether the client is parked")
    text: str = row("NAME:16 GANG:16", "UTF-8", "the name; GANG: with a colon and the number of "
                    "its processes if known", TEXT)
    # Terms with which the program wants to run; 0: not given. The daemon applies each unless the
    # administrator's is stricter. Named as the fields of nvshared/terms.py.
    memory_limit: int = row("GANG:24", "bytes", "allocated + pinned", group="terms")
    compute_limit: int = row("GANG:32", "percent", "of the time, 1 to 100", group="terms")
    weight: int = row("GANG:40", "", "1 to 1000", group="terms")
    priority: int = row("GANG:48", "", "1: background, 2: normal, 3: high", group="terms")
    version: int = VERSION              # of the packet

    def has(self, flag: Flag) -> bool:
        """Whether the record has this flag."""
        return bool(self.flags & flag)


REASONS = {int(one): one for one in PinReason if one is not PinReason.KEPT}    # sent by hooks
