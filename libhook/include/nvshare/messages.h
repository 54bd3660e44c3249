/* SPDX-License-Identifier: Apache-2.0 */
/* Made from nvshared/hook/protocol.py by `make -C libhook protocol`: do not edit. */
#pragma once

#include <stdint.h>

#define NVSHARE_PROTOCOL_VERSION 3
#define NVSHARE_PROTOCOL_OLDEST 2

#define NVSHARE_PACKET_OLDEST 104        /* bytes of a packet of version 2 */
#define NVSHARE_PACKET_LONGEST 512
#define NVSHARE_PACKET_SPARE 16          /* bytes after the last field */

/* At the beginning of each packet. `type` and `version` are there in every version. */
struct nvshare_head {
    uint16_t type;
    uint16_t version;
    uint32_t flags;
    uint64_t number;
    uint32_t length;                 /* of the packet, in bytes */
    uint32_t spare;
};

enum nvshare_type {
    /* `limits` apply from now on. The first LIMITS accepts the client, as the answer to HELLO. A
     * LIMITS that answers a COMMIT has its number, and grants the request if it has GRANTED. In
     * version 2 it grants the request if limits.commit >= wanted, or limits.beyond >=
     * memory.beyond if `wanted` was 0. The daemon also sends LIMITS without a request, with
     * number 0. */
    NVSHARE_LIMITS = 1,
    /* Answer to HELLO: the program runs unshared, for the reason in `refusal`. The daemon closes
     * the connection. Always in the layout of version 2. */
    NVSHARE_REFUSED = 2,
    /* Open the gate, until STOP. These flags control the hook during the turn: PACE,
     * REPORT_IDLE, REPORT_COPIES, REPORT_BUSY, STEP. The daemon sends RUN again to a running
     * client when a flag, `idle_window` or `step_pause` changes. The hook opens the gate only
     * while the client is whole (resident + pinned + pending = need <= room). */
    NVSHARE_RUN = 3,
    /* Close the gate, wait for the work in flight, answer STOPPED. */
    NVSHARE_STOP = 4,
    /* Shrink to `room`: evict blocks until resident + pinned <= room. Answered by MOVED. A
     * running client evicts nothing: it gives up only the room that it does not occupy. With
     * KEEP in flags, only for a client whose gate is closed, this is a writeback: no block is
     * evicted and the room does not change. The hook copies to the host the blocks that would be
     * evicted first, until `writeback` bytes could be evicted without a copy. Then it copies to
     * the host the swapped blocks whose bytes are only on another GPU. `lender` is the GPU that
     * lends memory for swapped blocks, and `loan` the limit in bytes for all swapped blocks
     * there. These bytes count in memory.host, so that host memory can take them back. Without
     * KEEP, swapped blocks beyond the loan are copied from the lender to host memory first. */
    NVSHARE_EVICT = 5,
    /* Grow to `room`: load swapped blocks as far as they fit, then release host memory until the
     * client holds at most `host`. Answered by MOVED. Also sent to a running client to give it
     * more room. */
    NVSHARE_LOAD = 6,
    /* Another client needs the bus: end the EVICT or LOAD with this number, which had AHEAD,
     * after the copies that are in flight. The MOVED of that order says how much was moved, and
     * has YIELDED if the order was not completed. If that order was answered already, YIELD has
     * no effect. YIELD has no answer of its own. */
    NVSHARE_YIELD = 7,
    /* A new daemon has taken this connection over. Answered by HELLO with the same number; after
     * that HELLO the hook repeats each COMMIT that has no answer yet. Always in the layout of
     * version 2, as the new daemon does not know what the hook speaks. */
    NVSHARE_INTRODUCE = 8,
    /* Answer to WAITING: `waits_for` is the reason why the client waits. `number`: the client's
     * position in the queue, 1 for the next to run; 0 if it does not wait in the queue. */
    NVSHARE_QUEUED = 9,
    /* Sent before a LIMITS that refuses a COMMIT: the limit that is the reason, as a message for
     * the program's user. `text`: UTF-8, ended by a 0 or by its size. A longer text is sent in
     * several REASONs. */
    NVSHARE_REASON = 10,
    /* A background client runs on the card: publish from now on whether work is in flight, in
     * the `struct nvshare_inflight` of a shared page. The order carries the page's descriptor,
     * which is writable. Without a descriptor: stop publishing. */
    NVSHARE_PUBLISH = 11,
    /* To a background client: submit nothing while client `number` has work in flight. The order
     * carries the read-only descriptor of that client's page. Without a descriptor: ignore that
     * client from now on. A new HELLO ends PUBLISH and every WATCH. */
    NVSHARE_WATCH = 12,
    /* Allocate host memory for swapped blocks until the client holds `host` bytes, while the
     * program runs. The next EVICT, LOAD or HELLO ends this. Has no answer: MEMORY reports the
     * bytes held. */
    NVSHARE_PREALLOCATE = 13,
    /* To a client whose gate is closed and which has no resident memory but pinned memory: keep
     * all threads of the program out of the driver, because the process is about to be
     * checkpointed. With AHEAD: only if no thread wants the GPU. `host`: bytes of host memory
     * that the checkpoint takes, which the HELLO to a later daemon repeats. Answered by PARKED.
     * Once PARKED has reported success, the daemon sends only INTRODUCE, LEAVE and UNPARK, and
     * the hook sends only WAKE, HELLO and, for a thread that waits at the gate, MEMORY. */
    NVSHARE_PARK = 14,
    /* The program's threads may call the driver again. The process now uses the GPU `gpu`. Has
     * no answer; the daemon sends INTRODUCE to get the memory figures, or a HELLO for another
     * GPU. With DRIVER_ERROR: the process stays checkpointed for ever, because the driver cannot
     * restore it. Each call of the driver must fail from now on. */
    NVSHARE_UNPARK = 15,
    /* Keep at most `file` bytes of the client's blocks in its file. In the background, the hook
     * moves swapped blocks from host memory to the file until the file holds `file` bytes, and
     * releases their host memory. Blocks that are evicted first are moved first; blocks of later
     * EVICTs are moved, too. No other order waits for these writes, and no block is moved to the
     * file during a LOAD. If the file holds more than `file` bytes, moving stops and resident
     * blocks give up their copies in the file; swapped blocks stay there until they are loaded
     * or freed. After a new HELLO `file` is 0. The first STORE of a connection carries the
     * file's descriptor, unless a STORED has reported bytes in a file. The file is regular,
     * unlinked, open for reading and writing, with O_DIRECT if the file system supports it. A
     * hook that has bytes in a file already keeps that file. Answered by STORED with the same
     * number. */
    NVSHARE_STORE = 16,
    /* To a parked client whose process is checkpointed, because CRIU is about to dump it: close
     * the connection. Connect again once the process has been restored from the dump, or if it
     * goes on without that for ten seconds. Has no answer. */
    NVSHARE_LEAVE = 17,
    /* Introduces the client on a new connection, and answers INTRODUCE: the GPU's `uuid`, the
     * memory that the client holds already, and the `commit` granted so far. RUNNING in flags:
     * the gate is open (the daemon was restarted). `number`: that of INTRODUCE, else 0. */
    NVSHARE_HELLO = 64,
    /* The memory figures changed. Sent at most every few milliseconds, but at once in two cases:
     * when a thread begins to wait at the closed gate (WANTS in flags, once per closing of the
     * gate), and when the need of a running client outgrows its room: the hook then closes the
     * gate until a LOAD grants enough room. */
    NVSHARE_MEMORY = 65,
    /* The client runs with REPORT_IDLE, and for RUN's `idle_window` its program had no work in
     * flight and submitted none. With PACE, the hook sends it earlier if the program's own
     * pauses are shorter. A hint: the gate is still open. With WANTS in flags: the program,
     * reported as idle before, has submitted work again. If a RUN changes the `idle_window` of
     * an idle program, the hook sends IDLE again, with WANTS unless the program is idle for the
     * new window. */
    NVSHARE_IDLE = 66,
    /* Answer to STOP: the gate is closed and the work drained. WANTS in flags: a thread waits at
     * the gate, and no MEMORY will report it. `took`: us from the receipt of STOP to the end of
     * the drain. `used`: us from the opening of the gate to the end of the drain, less the time
     * known to be without work in flight; 0: unknown, as the client is pinned and was not
     * drained. */
    NVSHARE_STOPPED = 67,
    /* Answer to STOP instead of STOPPED: the drain has failed, so the gate is open again. The
     * work in flight may depend on work that a thread at the gate would submit. The daemon
     * should repeat STOP later. */
    NVSHARE_REOPENED = 68,
    /* Answer to EVICT and LOAD, with the number of the order. */
    NVSHARE_MOVED = 69,
    /* Requests that allocated + pinned may grow to `wanted`, and pinned memory by `pins` bytes.
     * Answered by LIMITS with the same number; if it refuses, the program's call returns
     * CUDA_ERROR_OUT_OF_MEMORY. Memory to be pinned needs a request every time, because no other
     * client can ever use its room again and each of them must still fit beside it. The daemon
     * counts the granted `pins` as pinned until a report shows that the hook has read the answer
     * (`answered`), and from then on counts the bytes that the hook reports (`to_pin`). With
     * `wanted` 0 it is a request that memory.beyond may be as large as reported. The daemon
     * counts memory.beyond from now on unless it refuses. Sent only if limits.beyond is not 0. */
    NVSHARE_COMMIT = 70,
    /* The client runs with REPORT_COPIES, and its program's use of the bus has changed: from now
     * on the program copies to the card (INWARD in flags), to the host (OUTWARD), both, or
     * neither. The report is void after the end of the turn and after a RUN without
     * REPORT_COPIES. */
    NVSHARE_COPIES = 71,
    /* A thread has waited at the gate for long: the hook asks for the reason, to inform the
     * program's user. Answered by QUEUED. WANTS in flags, unless the client has the turn
     * already. */
    NVSHARE_WAITING = 72,
    /* The program's own name, for display: `text`, UTF-8, ended by a 0 or by its size. Only
     * before HELLO. */
    NVSHARE_NAME = 73,
    /* The client runs with REPORT_BUSY: its program has had work in flight throughout the last
     * second, or, with GAPS in flags, it has not. Sent once in each turn and then whenever this
     * changes; never between STOP and the next RUN. */
    NVSHARE_BUSY = 74,
    /* The gang of this client: programs of one user, on several GPUs, that have their turns at
     * the same time. `text`, encoded as that of NAME: the gang's name, a colon, and the number
     * of its processes if known. Only before HELLO. A GANG with an empty text names no gang. In
     * version 2 only such a GANG carries `terms`, in the place of the text. */
    NVSHARE_GANG = 75,
    /* `moved` bytes of memory.host are on the GPU `uuid`. `dirty` of these bytes have no copy in
     * host memory, so returning the loan requires a copy. Sent before the next report whenever
     * one of these has changed, and before HELLO if the client has ever borrowed memory. */
    NVSHARE_BORROWED = 76,
    /* Answer to PARK, with its number. `park`: DONE, or the reason why the client is not parked.
     * WANTS in flags: a thread wants to call the driver, or waits at the gate, or for the answer
     * to a COMMIT. */
    NVSHARE_PARKED = 77,
    /* A thread of a parked program wants the GPU, as WANTS says in PARKED. Sent once after each
     * PARK; a HELLO says the same with WANTS. */
    NVSHARE_WAKE = 78,
    /* `moved` bytes of the client's blocks are in its file, copies of resident blocks included.
     * They do not count in memory.host. `error`: errno of the last failure to move blocks there,
     * ETIMEDOUT while a write hangs; 0 after the next success. `number`: that of the last STORE
     * received. Sent as the answer to STORE, before the next report whenever one of these has
     * changed, and before HELLO if there is a file. */
    NVSHARE_STORED = 79,
};

enum nvshare_flag {
    /* RUN: other clients wait: bound the work in flight, keep no memory that the program has
     * freed */
    NVSHARE_PACE = 1 << 0,
    /* RUN: send IDLE after `idle_window` without work */
    NVSHARE_REPORT_IDLE = 1 << 1,
    /* RUN: send COPIES, as memory may be moved during the turn */
    NVSHARE_REPORT_COPIES = 1 << 2,
    /* EVICT, LOAD: speculative, no client waits for the result: copy few blocks at a time and
     * end at YIELD. PARK: only if no thread wants the GPU */
    NVSHARE_AHEAD = 1 << 3,
    /* EVICT: writeback; copied blocks stay resident */
    NVSHARE_KEEP = 1 << 4,
    /* MOVED: the order was ended early by YIELD, or a loan's return by a LOAD */
    NVSHARE_YIELDED = 1 << 5,
    /* MOVED to EVICT: `host` or the host's memory is used up. LOAD: the driver has less free
     * memory than the room */
    NVSHARE_NO_MEMORY = 1 << 6,
    /* MOVED: the driver failed for another reason; UNPARK: to restore */
    NVSHARE_DRIVER_ERROR = 1 << 7,
    /* HELLO, MEMORY, STOPPED and others: a thread waits at the gate */
    NVSHARE_WANTS = 1 << 8,
    /* HELLO: the gate is open */
    NVSHARE_RUNNING = 1 << 9,
    /* COPIES: from host to card */
    NVSHARE_INWARD = 1 << 10,
    /* COPIES: from card to host */
    NVSHARE_OUTWARD = 1 << 11,
    /* RUN: send BUSY. With PACE: other clients wait for the turn but not for memory, so freed
     * memory may be kept */
    NVSHARE_REPORT_BUSY = 1 << 12,
    /* BUSY: part of the last second was without work in flight */
    NVSHARE_GAPS = 1 << 13,
    /* RUN: let launches through one at a time, each `step_pause` us after the end of the
     * previous one: work on another GPU depends on some of them */
    NVSHARE_STEP = 1 << 14,
    /* HELLO: an earlier daemon has parked the client */
    NVSHARE_IS_PARKED = 1 << 15,
    /* LIMITS: the COMMIT with this number is granted; not in version 2 */
    NVSHARE_GRANTED = 1 << 16,
};

enum nvshare_refusal {
    /* the daemon does not speak this version */
    NVSHARE_REFUSED_VERSION = 1,
    /* the daemon does not manage this GPU */
    NVSHARE_REFUSED_NO_SUCH_GPU = 2,
    /* the daemon has too many clients */
    NVSHARE_REFUSED_TOO_MANY_CLIENTS = 3,
};

enum nvshare_wait {
    /* memory of this or another client is being moved */
    NVSHARE_WAITS_MOVES = 0,
    /* the client is queued */
    NVSHARE_WAITS_TURN = 1,
    /* even alone, the client would not fit beside the memory of processes that do not share the
     * card */
    NVSHARE_WAITS_ROOM = 2,
    /* the client has used up its share of the time */
    NVSHARE_WAITS_SHARE = 3,
    /* the client is suspended */
    NVSHARE_WAITS_RESUME = 4,
    /* the client's gang needs its turns on several GPUs at once */
    NVSHARE_WAITS_GANG = 5,
};

enum nvshare_park {
    /* parked: no thread is in the driver, or can enter it */
    NVSHARE_PARK_DONE = 0,
    /* not all threads of the program were asleep in time */
    NVSHARE_PARK_BUSY = 1,
    /* a thread wants to call the driver, or waits at the gate */
    NVSHARE_PARK_CALLED = 2,
    /* the process uses several GPUs */
    NVSHARE_PARK_SEVERAL = 3,
    /* memory of the client is still on the card, or pinned */
    NVSHARE_PARK_HOLDS = 4,
    /* the program may bypass this library's stubs, or the states of its threads cannot be read */
    NVSHARE_PARK_UNSEEN = 5,
};

enum nvshare_pin_reason {
    /*  */
    NVSHARE_PIN_NONE = 0,
    /* its work does not end, or cannot be waited for */
    NVSHARE_PIN_UNDRAINED = 1,
    /* it may submit work that its library does not see */
    NVSHARE_PIN_UNSEEN = 2,
    /* it gave memory to a device or library that may use it at any time */
    NVSHARE_PIN_GIVEN = 3,
    /* it frees nothing when it is told to */
    NVSHARE_PIN_KEPT = 4,
};

/* bytes */
struct nvshare_limits {
    /* allocated + pinned may grow to this without a request (bytes) */
    uint64_t commit;
    /* and to this with a request (basis of cuMemGetInfo's free) (bytes) */
    uint64_t most;
    /* size of the card for this client: cuMemGetInfo's total (bytes) */
    uint64_t total;
    /* host memory is allocated in slabs of this size (bytes) */
    uint64_t host_slab;
    /* memory.beyond may grow to this with a request (bytes) */
    uint64_t beyond;
};

/* Daemon to hook. A field that the message has not is 0. */
struct nvshare_order {
    uint16_t type;                   /* enum nvshare_type */
    uint16_t version;                /* of the packet */
    uint32_t flags;                  /* enum nvshare_flag */
    uint64_t number;                 /* pairs an order or a request with its answer */
    /* EVICT, LOAD: room of the client from now on (bytes) */
    uint64_t room;
    /* EVICT, LOAD, PREALLOCATE, PARK: host memory for swapped blocks, in all; PARK: for the
     * checkpoint (bytes) */
    uint64_t host;
    /* EVICT: with KEEP: as much can be evicted without a copy (bytes) */
    uint64_t writeback;
    /* STORE: limit of the client's blocks in its file (bytes) */
    uint64_t file;
    /* RUN: with STEP: time between two launches (us) */
    uint64_t step_pause;
    /* RUN: most time without work until IDLE; 0: unchanged (us) */
    uint64_t idle_window;
    struct nvshare_limits limits;
    /* EVICT: the GPU that lends memory for swapped blocks */
    uint8_t lender[16];
    /* EVICT: limit of all swapped blocks on the lender (bytes) */
    uint64_t loan;
    /* REFUSED: why the client is refused (enum nvshare_refusal) */
    uint64_t refusal;
    /* QUEUED: why the client waits (enum nvshare_wait) */
    uint64_t waits_for;
    /* UNPARK: the GPU that the process uses now */
    uint8_t gpu[16];
    /* REASON: the limit that is the reason */
    char text[88];
};

/* the client's memory in bytes when the report is sent; whole blocks count in `allocated`,
 * `resident` and `pinned` */
struct nvshare_memory {
    /* can be evicted: resident or swapped (bytes) */
    uint64_t allocated;
    /* can be evicted, and is on the card now (bytes) */
    uint64_t resident;
    /* on the card, cannot be evicted (bytes) */
    uint64_t pinned;
    /* pinned memory that a waiting thread is about to allocate (bytes) */
    uint64_t pending;
    /* as set by the orders carried out so far (bytes) */
    uint64_t room;
    /* host memory held for swapped blocks (bytes) */
    uint64_t host;
    /* host memory of allocations that do not fit the card (bytes) */
    uint64_t beyond;
};

/* the terms with which the program wants to run; 0: not given. The daemon applies each unless
 * the administrator's is stricter */
struct nvshare_terms {
    /* allocated + pinned (bytes) */
    uint64_t memory_limit;
    /* of the time, 1 to 100 (percent) */
    uint64_t compute_limit;
    /* 1 to 1000 */
    uint64_t weight;
    /* 1: background, 2: normal, 3: high */
    uint64_t priority;
};

/* Hook to daemon. A field that the message has not is 0. */
struct nvshare_report {
    uint16_t type;                   /* enum nvshare_type */
    uint16_t version;                /* of the packet */
    uint32_t flags;                  /* enum nvshare_flag */
    uint64_t number;                 /* pairs an order or a request with its answer */
    struct nvshare_memory memory;
    /* all but HELLO and NAME and GANG and BORROWED: COMMITs up to this number are answered, or
     * no thread waits for their answers any more (number) */
    uint64_t answered;
    /* all but HELLO and NAME and GANG and BORROWED: bytes that these COMMITs were granted to
     * pin, not yet in `pinned` and not given up (bytes) */
    uint64_t to_pin;
    /* all but NAME and GANG: why the client is pinned (enum nvshare_pin_reason) */
    uint64_t pin_reason;
    /* HELLO, BORROWED: the client's GPU; BORROWED: the lender */
    uint8_t uuid[16];
    /* HELLO: granted so far (bytes) */
    uint64_t commit;
    /* COMMIT: requested in all; 0: a request for memory.beyond (bytes) */
    uint64_t wanted;
    /* COMMIT: by which `pinned` may grow (bytes) */
    uint64_t pins;
    /* HELLO: with IS_PARKED: `host` of the PARK (bytes) */
    uint64_t context;
    /* MOVED, BORROWED, STORED: moved, or with KEEP: that can be evicted without a copy until the
     * gate opens again; BORROWED: on the lender; STORED: in the file (bytes) */
    uint64_t moved;
    /* STOPPED: of the turn with work in flight; 0: unknown (us) */
    uint64_t used;
    /* MOVED, STOPPED: from the receipt of the order to its end (us) */
    uint64_t took;
    /* BORROWED: on the lender without a copy in host memory (bytes) */
    uint64_t dirty;
    /* STORED: of the last failure to write to the file (errno) */
    uint64_t error;
    /* PARKED: whether the client is parked (enum nvshare_park) */
    uint64_t park;
    /* NAME, GANG: the name; GANG: with a colon and the number of its processes if known */
    char text[88];
    struct nvshare_terms terms;
};

/* FIELD(message, member, offset in a packet of the newest version, then offset and
 * bytes in version 2; 0 bytes: not there). */
#define NVSHARE_ORDER_FIELDS(FIELD) \
    FIELD(LIMITS, flags, 4, 4, 4) \
    FIELD(LIMITS, number, 8, 8, 8) \
    FIELD(LIMITS, limits.commit, 24, 56, 8) \
    FIELD(LIMITS, limits.most, 32, 64, 8) \
    FIELD(LIMITS, limits.total, 40, 72, 8) \
    FIELD(LIMITS, limits.host_slab, 48, 80, 8) \
    FIELD(LIMITS, limits.beyond, 56, 88, 8) \
    FIELD(REFUSED, flags, 4, 0, 0) \
    FIELD(REFUSED, number, 8, 8, 8) \
    FIELD(REFUSED, refusal, 24, 4, 4) \
    FIELD(RUN, flags, 4, 4, 4) \
    FIELD(RUN, number, 8, 8, 8) \
    FIELD(RUN, step_pause, 24, 40, 8) \
    FIELD(RUN, idle_window, 32, 48, 8) \
    FIELD(STOP, flags, 4, 4, 4) \
    FIELD(STOP, number, 8, 8, 8) \
    FIELD(EVICT, flags, 4, 4, 4) \
    FIELD(EVICT, number, 8, 8, 8) \
    FIELD(EVICT, room, 24, 16, 8) \
    FIELD(EVICT, host, 32, 24, 8) \
    FIELD(EVICT, writeback, 40, 32, 8) \
    FIELD(EVICT, lender, 48, 56, 16) \
    FIELD(EVICT, loan, 64, 96, 8) \
    FIELD(LOAD, flags, 4, 4, 4) \
    FIELD(LOAD, number, 8, 8, 8) \
    FIELD(LOAD, room, 24, 16, 8) \
    FIELD(LOAD, host, 32, 24, 8) \
    FIELD(YIELD, flags, 4, 4, 4) \
    FIELD(YIELD, number, 8, 8, 8) \
    FIELD(INTRODUCE, flags, 4, 4, 4) \
    FIELD(INTRODUCE, number, 8, 8, 8) \
    FIELD(QUEUED, flags, 4, 0, 0) \
    FIELD(QUEUED, number, 8, 8, 8) \
    FIELD(QUEUED, waits_for, 24, 4, 4) \
    FIELD(REASON, flags, 4, 4, 4) \
    FIELD(REASON, number, 8, 8, 8) \
    FIELD(REASON, text, 24, 16, 88) \
    FIELD(PUBLISH, flags, 4, 4, 4) \
    FIELD(PUBLISH, number, 8, 8, 8) \
    FIELD(WATCH, flags, 4, 4, 4) \
    FIELD(WATCH, number, 8, 8, 8) \
    FIELD(PREALLOCATE, flags, 4, 4, 4) \
    FIELD(PREALLOCATE, number, 8, 8, 8) \
    FIELD(PREALLOCATE, host, 24, 24, 8) \
    FIELD(PARK, flags, 4, 4, 4) \
    FIELD(PARK, number, 8, 8, 8) \
    FIELD(PARK, host, 24, 24, 8) \
    FIELD(UNPARK, flags, 4, 4, 4) \
    FIELD(UNPARK, number, 8, 8, 8) \
    FIELD(UNPARK, gpu, 24, 16, 16) \
    FIELD(STORE, flags, 4, 4, 4) \
    FIELD(STORE, number, 8, 8, 8) \
    FIELD(STORE, file, 24, 32, 8) \
    FIELD(LEAVE, flags, 4, 4, 4) \
    FIELD(LEAVE, number, 8, 8, 8)

#define NVSHARE_REPORT_FIELDS(FIELD) \
    FIELD(HELLO, flags, 4, 4, 2) \
    FIELD(HELLO, number, 8, 8, 8) \
    FIELD(HELLO, memory.allocated, 24, 16, 8) \
    FIELD(HELLO, memory.resident, 32, 24, 8) \
    FIELD(HELLO, memory.pinned, 40, 32, 8) \
    FIELD(HELLO, memory.pending, 48, 40, 8) \
    FIELD(HELLO, memory.room, 56, 48, 8) \
    FIELD(HELLO, memory.host, 64, 56, 8) \
    FIELD(HELLO, memory.beyond, 72, 64, 8) \
    FIELD(HELLO, pin_reason, 80, 6, 2) \
    FIELD(HELLO, uuid, 88, 72, 16) \
    FIELD(HELLO, commit, 104, 88, 8) \
    FIELD(HELLO, context, 112, 96, 8) \
    FIELD(MEMORY, flags, 4, 4, 2) \
    FIELD(MEMORY, number, 8, 8, 8) \
    FIELD(MEMORY, memory.allocated, 24, 16, 8) \
    FIELD(MEMORY, memory.resident, 32, 24, 8) \
    FIELD(MEMORY, memory.pinned, 40, 32, 8) \
    FIELD(MEMORY, memory.pending, 48, 40, 8) \
    FIELD(MEMORY, memory.room, 56, 48, 8) \
    FIELD(MEMORY, memory.host, 64, 56, 8) \
    FIELD(MEMORY, memory.beyond, 72, 64, 8) \
    FIELD(MEMORY, answered, 80, 72, 8) \
    FIELD(MEMORY, to_pin, 88, 80, 8) \
    FIELD(MEMORY, pin_reason, 96, 6, 2) \
    FIELD(IDLE, flags, 4, 4, 2) \
    FIELD(IDLE, number, 8, 8, 8) \
    FIELD(IDLE, memory.allocated, 24, 16, 8) \
    FIELD(IDLE, memory.resident, 32, 24, 8) \
    FIELD(IDLE, memory.pinned, 40, 32, 8) \
    FIELD(IDLE, memory.pending, 48, 40, 8) \
    FIELD(IDLE, memory.room, 56, 48, 8) \
    FIELD(IDLE, memory.host, 64, 56, 8) \
    FIELD(IDLE, memory.beyond, 72, 64, 8) \
    FIELD(IDLE, answered, 80, 72, 8) \
    FIELD(IDLE, to_pin, 88, 80, 8) \
    FIELD(IDLE, pin_reason, 96, 6, 2) \
    FIELD(STOPPED, flags, 4, 4, 2) \
    FIELD(STOPPED, number, 8, 8, 8) \
    FIELD(STOPPED, memory.allocated, 24, 16, 8) \
    FIELD(STOPPED, memory.resident, 32, 24, 8) \
    FIELD(STOPPED, memory.pinned, 40, 32, 8) \
    FIELD(STOPPED, memory.pending, 48, 40, 8) \
    FIELD(STOPPED, memory.room, 56, 48, 8) \
    FIELD(STOPPED, memory.host, 64, 56, 8) \
    FIELD(STOPPED, memory.beyond, 72, 64, 8) \
    FIELD(STOPPED, answered, 80, 72, 8) \
    FIELD(STOPPED, to_pin, 88, 80, 8) \
    FIELD(STOPPED, pin_reason, 96, 6, 2) \
    FIELD(STOPPED, used, 104, 88, 8) \
    FIELD(STOPPED, took, 112, 96, 8) \
    FIELD(REOPENED, flags, 4, 4, 2) \
    FIELD(REOPENED, number, 8, 8, 8) \
    FIELD(REOPENED, memory.allocated, 24, 16, 8) \
    FIELD(REOPENED, memory.resident, 32, 24, 8) \
    FIELD(REOPENED, memory.pinned, 40, 32, 8) \
    FIELD(REOPENED, memory.pending, 48, 40, 8) \
    FIELD(REOPENED, memory.room, 56, 48, 8) \
    FIELD(REOPENED, memory.host, 64, 56, 8) \
    FIELD(REOPENED, memory.beyond, 72, 64, 8) \
    FIELD(REOPENED, answered, 80, 72, 8) \
    FIELD(REOPENED, to_pin, 88, 80, 8) \
    FIELD(REOPENED, pin_reason, 96, 6, 2) \
    FIELD(MOVED, flags, 4, 4, 2) \
    FIELD(MOVED, number, 8, 8, 8) \
    FIELD(MOVED, memory.allocated, 24, 16, 8) \
    FIELD(MOVED, memory.resident, 32, 24, 8) \
    FIELD(MOVED, memory.pinned, 40, 32, 8) \
    FIELD(MOVED, memory.pending, 48, 40, 8) \
    FIELD(MOVED, memory.room, 56, 48, 8) \
    FIELD(MOVED, memory.host, 64, 56, 8) \
    FIELD(MOVED, memory.beyond, 72, 64, 8) \
    FIELD(MOVED, answered, 80, 72, 8) \
    FIELD(MOVED, to_pin, 88, 80, 8) \
    FIELD(MOVED, pin_reason, 96, 6, 2) \
    FIELD(MOVED, moved, 104, 88, 8) \
    FIELD(MOVED, took, 112, 96, 8) \
    FIELD(COMMIT, flags, 4, 4, 2) \
    FIELD(COMMIT, number, 8, 8, 8) \
    FIELD(COMMIT, memory.allocated, 24, 16, 8) \
    FIELD(COMMIT, memory.resident, 32, 24, 8) \
    FIELD(COMMIT, memory.pinned, 40, 32, 8) \
    FIELD(COMMIT, memory.pending, 48, 40, 8) \
    FIELD(COMMIT, memory.room, 56, 48, 8) \
    FIELD(COMMIT, memory.host, 64, 56, 8) \
    FIELD(COMMIT, memory.beyond, 72, 64, 8) \
    FIELD(COMMIT, answered, 80, 72, 8) \
    FIELD(COMMIT, to_pin, 88, 80, 8) \
    FIELD(COMMIT, pin_reason, 96, 6, 2) \
    FIELD(COMMIT, wanted, 104, 88, 8) \
    FIELD(COMMIT, pins, 112, 96, 8) \
    FIELD(COPIES, flags, 4, 4, 2) \
    FIELD(COPIES, number, 8, 8, 8) \
    FIELD(COPIES, memory.allocated, 24, 16, 8) \
    FIELD(COPIES, memory.resident, 32, 24, 8) \
    FIELD(COPIES, memory.pinned, 40, 32, 8) \
    FIELD(COPIES, memory.pending, 48, 40, 8) \
    FIELD(COPIES, memory.room, 56, 48, 8) \
    FIELD(COPIES, memory.host, 64, 56, 8) \
    FIELD(COPIES, memory.beyond, 72, 64, 8) \
    FIELD(COPIES, answered, 80, 72, 8) \
    FIELD(COPIES, to_pin, 88, 80, 8) \
    FIELD(COPIES, pin_reason, 96, 6, 2) \
    FIELD(WAITING, flags, 4, 4, 2) \
    FIELD(WAITING, number, 8, 8, 8) \
    FIELD(WAITING, memory.allocated, 24, 16, 8) \
    FIELD(WAITING, memory.resident, 32, 24, 8) \
    FIELD(WAITING, memory.pinned, 40, 32, 8) \
    FIELD(WAITING, memory.pending, 48, 40, 8) \
    FIELD(WAITING, memory.room, 56, 48, 8) \
    FIELD(WAITING, memory.host, 64, 56, 8) \
    FIELD(WAITING, memory.beyond, 72, 64, 8) \
    FIELD(WAITING, answered, 80, 72, 8) \
    FIELD(WAITING, to_pin, 88, 80, 8) \
    FIELD(WAITING, pin_reason, 96, 6, 2) \
    FIELD(NAME, flags, 4, 4, 2) \
    FIELD(NAME, number, 8, 8, 8) \
    FIELD(NAME, text, 24, 16, 88) \
    FIELD(BUSY, flags, 4, 4, 2) \
    FIELD(BUSY, number, 8, 8, 8) \
    FIELD(BUSY, memory.allocated, 24, 16, 8) \
    FIELD(BUSY, memory.resident, 32, 24, 8) \
    FIELD(BUSY, memory.pinned, 40, 32, 8) \
    FIELD(BUSY, memory.pending, 48, 40, 8) \
    FIELD(BUSY, memory.room, 56, 48, 8) \
    FIELD(BUSY, memory.host, 64, 56, 8) \
    FIELD(BUSY, memory.beyond, 72, 64, 8) \
    FIELD(BUSY, answered, 80, 72, 8) \
    FIELD(BUSY, to_pin, 88, 80, 8) \
    FIELD(BUSY, pin_reason, 96, 6, 2) \
    FIELD(GANG, flags, 4, 4, 2) \
    FIELD(GANG, number, 8, 8, 8) \
    FIELD(GANG, text, 24, 16, 88) \
    FIELD(GANG, terms.memory_limit, 112, 24, 8) \
    FIELD(GANG, terms.compute_limit, 120, 32, 8) \
    FIELD(GANG, terms.weight, 128, 40, 8) \
    FIELD(GANG, terms.priority, 136, 48, 8) \
    FIELD(BORROWED, flags, 4, 4, 2) \
    FIELD(BORROWED, number, 8, 8, 8) \
    FIELD(BORROWED, memory.allocated, 24, 16, 8) \
    FIELD(BORROWED, memory.resident, 32, 24, 8) \
    FIELD(BORROWED, memory.pinned, 40, 32, 8) \
    FIELD(BORROWED, memory.pending, 48, 40, 8) \
    FIELD(BORROWED, memory.room, 56, 48, 8) \
    FIELD(BORROWED, memory.host, 64, 56, 8) \
    FIELD(BORROWED, memory.beyond, 72, 64, 8) \
    FIELD(BORROWED, pin_reason, 80, 6, 2) \
    FIELD(BORROWED, uuid, 88, 72, 16) \
    FIELD(BORROWED, moved, 104, 88, 8) \
    FIELD(BORROWED, dirty, 112, 96, 8) \
    FIELD(PARKED, flags, 4, 4, 2) \
    FIELD(PARKED, number, 8, 8, 8) \
    FIELD(PARKED, memory.allocated, 24, 16, 8) \
    FIELD(PARKED, memory.resident, 32, 24, 8) \
    FIELD(PARKED, memory.pinned, 40, 32, 8) \
    FIELD(PARKED, memory.pending, 48, 40, 8) \
    FIELD(PARKED, memory.room, 56, 48, 8) \
    FIELD(PARKED, memory.host, 64, 56, 8) \
    FIELD(PARKED, memory.beyond, 72, 64, 8) \
    FIELD(PARKED, answered, 80, 72, 8) \
    FIELD(PARKED, to_pin, 88, 80, 8) \
    FIELD(PARKED, pin_reason, 96, 6, 2) \
    FIELD(PARKED, park, 104, 88, 8) \
    FIELD(WAKE, flags, 4, 4, 2) \
    FIELD(WAKE, number, 8, 8, 8) \
    FIELD(WAKE, memory.allocated, 24, 16, 8) \
    FIELD(WAKE, memory.resident, 32, 24, 8) \
    FIELD(WAKE, memory.pinned, 40, 32, 8) \
    FIELD(WAKE, memory.pending, 48, 40, 8) \
    FIELD(WAKE, memory.room, 56, 48, 8) \
    FIELD(WAKE, memory.host, 64, 56, 8) \
    FIELD(WAKE, memory.beyond, 72, 64, 8) \
    FIELD(WAKE, answered, 80, 72, 8) \
    FIELD(WAKE, to_pin, 88, 80, 8) \
    FIELD(WAKE, pin_reason, 96, 6, 2) \
    FIELD(STORED, flags, 4, 4, 2) \
    FIELD(STORED, number, 8, 8, 8) \
    FIELD(STORED, memory.allocated, 24, 16, 8) \
    FIELD(STORED, memory.resident, 32, 24, 8) \
    FIELD(STORED, memory.pinned, 40, 32, 8) \
    FIELD(STORED, memory.pending, 48, 40, 8) \
    FIELD(STORED, memory.room, 56, 48, 8) \
    FIELD(STORED, memory.host, 64, 56, 8) \
    FIELD(STORED, memory.beyond, 72, 64, 8) \
    FIELD(STORED, answered, 80, 72, 8) \
    FIELD(STORED, to_pin, 88, 80, 8) \
    FIELD(STORED, pin_reason, 96, 6, 2) \
    FIELD(STORED, moved, 104, 88, 8) \
    FIELD(STORED, error, 112, 96, 8)
