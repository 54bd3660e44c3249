/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between libnvshare.so (the hook) and nvshared (the daemon). The
 * daemon sends orders. The hook answers orders and reports how much memory the program has.
 *
 * There is one SOCK_SEQPACKET connection per client, that is per process and GPU. One
 * packet is one record: a `struct nvshare_order` from the daemon, a `struct
 * nvshare_report` from the hook. All records have the same size, in every version, and are
 * little-endian. A packet of another size, version or type ends its connection and has no
 * other effect. nvshared/hook/protocol.py mirrors this file; a test compares the two.
 *
 * Words
 *   room       bytes of the card that a client may occupy: resident + pinned. The
 *              daemon sets each client's room; the sum over all clients never exceeds
 *              the capacity. A hook never maps more than its room.
 *   need       allocated + pinned + pending: the room that a client must have before
 *              its gate may open, with all its memory resident.
 *   whole      of a client: all its memory is resident, and its need fits its room.
 *   commit     the size to which allocated + pinned may grow. The daemon grants only as
 *              much as can be evicted to some tier.
 *   pinned     of a client (`pin_reason`): none of its memory is evicted any more. Its
 *              resident memory counts as pinned, its swapped memory still as allocated.
 *              Once the client is whole it runs beside all others, and STOP closes its
 *              gate without a drain.
 *   request    a COMMIT report. Its reply is a LIMITS order with the same number.
 *
 * A client's gate is closed at first. The daemon may send any order at any time. The hook carries
 * orders out in the order received, with one exception: LIMITS, REASON, QUEUED, PUBLISH, WATCH and
 * STORE are carried out during the drain of a STOP. Threads of programs wait for the effect of most
 * of them, and the work that is being drained may depend on those threads.
 *
 * EVICT and LOAD state the client's new room in bytes, not a difference. Therefore a
 * repeated order is harmless, and an order stays correct when the client allocates or
 * frees before it arrives. Until the hook has answered, the daemon counts the old room
 * for an EVICT and the new room for a LOAD.
 *
 * Connections may outlive a daemon. A service manager may keep the daemon's end of each
 * connection and pass it to the next daemon, which knows nothing about the client. That
 * daemon sends INTRODUCE with a new number and gets a HELLO with the same number. Because
 * orders are carried out one after the other, this HELLO comes after all answers to the
 * earlier daemon's orders. The new daemon ignores every report before this HELLO.
 */
#pragma once

#include <stdint.h>

#define NVSHARE_PROTOCOL_VERSION 2
#define NVSHARE_DEFAULT_SOCKET "/run/nvshare/nvshare.sock"

enum nvshare_type {
    /* Orders, daemon to hook. */

    /* `limits` apply from now on. The first LIMITS accepts the client, as the answer to HELLO.
     * A LIMITS that answers a COMMIT has its number, and grants the request if
     * limits.commit >= wanted, or limits.beyond >= memory.beyond if `wanted` was 0. The
     * daemon also sends LIMITS without a request, with number 0. */
    NVSHARE_LIMITS = 1,
    /* Answer to HELLO: the program runs unshared, for the reason in `refusal`. The daemon
     * closes the connection. */
    NVSHARE_REFUSED = 2,
    /* Open the gate, until STOP. These flags control the hook during the turn: NVSHARE_PACE,
     * NVSHARE_REPORT_IDLE, NVSHARE_REPORT_COPIES, NVSHARE_REPORT_BUSY, NVSHARE_STEP. The daemon
     * sends RUN again to a running client when a flag, `idle_window` or `step_pause` changes.
     * The hook opens the gate only while the client is whole (resident + pinned + pending =
     * need <= room). */
    NVSHARE_RUN = 3,
    /* Close the gate, wait for the work in flight, answer STOPPED. */
    NVSHARE_STOP = 4,
    /* Shrink to `room`: evict blocks until resident + pinned <= room. Answered by MOVED.
     * A running client evicts nothing: it gives up only the room that it does not occupy.
     * With NVSHARE_KEEP in flags, only for a client whose gate is closed, this is a writeback:
     * no block is evicted and the room does not change. The hook copies to the host the
     * blocks that would be evicted first, until `writeback` bytes could be evicted without a
     * copy. Then it copies to the host the swapped blocks whose bytes are only on another GPU.
     * `lender` is the GPU that lends memory for swapped blocks, and `loan` the limit in bytes
     * for all swapped blocks there. These bytes count in memory.host, so that host memory
     * can take them back. Without KEEP, swapped blocks beyond the loan are copied from the
     * lender to host memory first. */
    NVSHARE_EVICT = 5,
    /* Grow to `room`: load swapped blocks as far as they fit, then release host memory
     * until the client holds at most `host`. Answered by MOVED. Also sent to a running
     * client to give it more room. */
    NVSHARE_LOAD = 6,
    /* Another client needs the bus: end the EVICT or LOAD with this number, which had
     * NVSHARE_AHEAD, after the copies that are in flight. The MOVED of that order says how
     * much was moved, and has NVSHARE_YIELDED if the order was not completed. If that order was
     * answered already, YIELD has no effect. YIELD has no answer of its own. */
    NVSHARE_YIELD = 7,
    /* A new daemon has taken this connection over. Answered by HELLO with the
     * same number; after that HELLO the hook repeats each COMMIT that has no answer yet. */
    NVSHARE_INTRODUCE = 8,
    /* Answer to WAITING: `waits_for` is the reason why the client waits. `number`: the client's
     * position in the queue, 1 for the next to run; 0 if it does not wait in the queue. */
    NVSHARE_QUEUED = 9,
    /* Sent before a LIMITS that refuses a COMMIT: the limit that is the reason, as a message
     * for the program's user. `text`: UTF-8, ended by a 0 or by its size. A longer text
     * is sent in several REASONs. */
    NVSHARE_REASON = 10,
    /* A background client runs on the card: publish from now on whether work is in flight, in the
     * `struct nvshare_inflight` of a shared page. The order carries the page's descriptor, which
     * is writable. Without a descriptor: stop publishing. */
    NVSHARE_PUBLISH = 11,
    /* To a background client: submit nothing while client `number` has work in flight. The order
     * carries the read-only descriptor of that client's page. Without a descriptor: ignore that
     * client from now on. A new HELLO ends PUBLISH and every WATCH. */
    NVSHARE_WATCH = 12,
    /* Allocate host memory for swapped blocks until the client holds `host` bytes, while the
     * program runs. The next EVICT, LOAD or HELLO ends this. Has no answer: MEMORY reports the
     * bytes held. */
    NVSHARE_PREALLOCATE = 13,
    /* To a client whose gate is closed and which has no resident memory but pinned memory: keep all
     * threads of the program out of the driver, because the process is about to be checkpointed.
     * With NVSHARE_AHEAD: only if no thread wants the GPU. `host`: bytes of host memory that the
     * checkpoint takes, which the HELLO to a later daemon repeats. Answered by PARKED. Once PARKED
     * has reported success, the daemon sends only INTRODUCE, LEAVE and UNPARK, and the hook sends only
     * WAKE, HELLO and, for a thread that waits at the gate, MEMORY. */
    NVSHARE_PARK = 14,
    /* The program's threads may call the driver again. The process now uses the GPU `gpu`. Has no
     * answer; the daemon sends INTRODUCE to get the memory figures, or a HELLO for another GPU.
     * With NVSHARE_DRIVER_ERROR: the process stays checkpointed for ever, because the driver cannot
     * restore it. Each call of the driver must fail from now on. */
    NVSHARE_UNPARK = 15,
    /* Keep at most `file` bytes of the client's blocks in its file. In the background, the hook
     * moves swapped blocks from host memory to the file until the file holds `file` bytes, and
     * releases their host memory. Blocks that are evicted first are moved first; blocks of later
     * EVICTs are moved, too. No other order waits for these writes, and no block is moved to the
     * file during a LOAD. If the file holds more than `file` bytes, moving stops and resident
     * blocks give up their copies in the file; swapped blocks stay there until they are loaded or
     * freed. After a new HELLO `file` is 0. The first STORE of a connection carries the file's
     * descriptor, unless a STORED has reported bytes in a file. The file is regular, unlinked, open
     * for reading and writing, with O_DIRECT if the file system supports it. A hook that has bytes
     * in a file already keeps that file. Answered by STORED with the same number. */
    NVSHARE_STORE = 16,
    /* To a parked client whose process is checkpointed, because CRIU is about to dump it: close the
     * connection. Connect again once the process has been restored from the dump, or if it goes on
     * without that for ten seconds. Has no answer. */
    NVSHARE_LEAVE = 17,

    /* Reports, hook to daemon. */

    /* Introduces the client on a new connection, and answers INTRODUCE: the GPU's `uuid`, the
     * memory that the client holds already, and the `commit` granted so far. NVSHARE_RUNNING in
     * flags: the gate is open (the daemon was restarted). `number`: that of INTRODUCE, else 0. */
    NVSHARE_HELLO = 64,
    /* The memory figures changed. Sent at most every few milliseconds, but at once in two
     * cases: when a thread begins to wait at the closed gate (NVSHARE_WANTS in flags, once per
     * closing of the gate), and when the need of a running client outgrows its room: the hook
     * then closes the gate until a LOAD grants enough room. */
    NVSHARE_MEMORY = 65,
    /* The client runs with NVSHARE_REPORT_IDLE, and for RUN's `idle_window` its program had no
     * work in flight and submitted none. A hint: the gate is still open. With NVSHARE_WANTS in
     * flags: the program, reported as idle before, has submitted work again. If a RUN changes the
     * `idle_window` of an idle program, the hook sends IDLE again, with NVSHARE_WANTS unless the
     * program is idle for the new window. */
    NVSHARE_IDLE = 66,
    /* Answer to STOP: the gate is closed and the work drained. NVSHARE_WANTS in flags: a thread
     * waits at the gate, and no MEMORY will report it. `took`: us from the receipt of STOP to
     * the end of the drain. `used`: us from the opening of the gate to the end of the drain,
     * less the time known to be without work in flight; 0: unknown, as the client is pinned and
     * was not drained. */
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
     * (`answered`), and from then on counts the bytes that the hook reports (`to_pin`).
     * With `wanted` 0 it is a request that memory.beyond may be as large as reported. The daemon
     * counts memory.beyond from now on unless it refuses. Sent only if limits.beyond is not 0. */
    NVSHARE_COMMIT = 70,
    /* The client runs with NVSHARE_REPORT_COPIES, and its program's use of the bus has changed:
     * from now on the program copies to the card (NVSHARE_INWARD in flags), to the host
     * (NVSHARE_OUTWARD), both, or neither. The report is void after the end of the turn and after
     * a RUN without NVSHARE_REPORT_COPIES. */
    NVSHARE_COPIES = 71,
    /* A thread has waited at the gate for long: the hook asks for the reason, to inform the
     * program's user. Answered by QUEUED. NVSHARE_WANTS in flags, unless the client has the
     * turn already. */
    NVSHARE_WAITING = 72,
    /* The program's own name, for display: `text`, UTF-8, ended by a 0 or by its size. Only
     * before HELLO. */
    NVSHARE_NAME = 73,
    /* The client runs with NVSHARE_REPORT_BUSY: its program has had work in flight throughout the
     * last second, or, with NVSHARE_GAPS in flags, it has not. Sent once in each turn and then
     * whenever this changes; never between STOP and the next RUN. */
    NVSHARE_BUSY = 74,
    /* The gang of this client: programs of one user, on several GPUs, that have their turns at
     * the same time. `text`, encoded as that of NAME: the gang's name, a colon, and the number of
     * its processes if known. Only before HELLO.
     * A GANG with an empty text names no gang and carries `terms`. Daemons that know no terms
     * ignore it, but would end the connection at a type that they do not know. */
    NVSHARE_GANG = 75,
    /* `moved` bytes of memory.host are on the GPU `uuid`. `dirty` of these bytes have no copy in
     * host memory, so returning the loan requires a copy. Sent before the next report whenever one
     * of these has changed, and before HELLO if the client has ever borrowed memory. */
    NVSHARE_BORROWED = 76,
    /* Answer to PARK, with its number. `park`: DONE, or the reason why the client is not parked.
     * NVSHARE_WANTS in flags: a thread wants to call the driver, or waits at the gate. */
    NVSHARE_PARKED = 77,
    /* A thread of a parked program wants to call the driver. Sent once after each PARK; a HELLO
     * says the same with NVSHARE_WANTS. */
    NVSHARE_WAKE = 78,
    /* `moved` bytes of the client's blocks are in its file, copies of resident blocks included.
     * They do not count in memory.host. `took`: errno of the last failure to move blocks there,
     * ETIMEDOUT while a write hangs; 0 after the next success. `number`: that of the last STORE
     * received. Sent as the answer to STORE, before the next report whenever one of these has
     * changed, and before HELLO if there is a file. */
    NVSHARE_STORED = 79,
};

enum nvshare_flag {
    /* RUN */
    NVSHARE_PACE = 1 << 0,           /* other clients wait: bound the work in flight, keep no
                                        memory that the program has freed */
    NVSHARE_REPORT_IDLE = 1 << 1,    /* send IDLE after `idle_window` without work */
    NVSHARE_REPORT_COPIES = 1 << 2,  /* send COPIES, as memory may be moved during the turn */
    /* EVICT, LOAD */
    NVSHARE_AHEAD = 1 << 3,          /* speculative, no client waits for the result: copy few
                                        blocks at a time and end at YIELD. PARK: only if no
                                        thread wants the GPU */
    NVSHARE_KEEP = 1 << 4,           /* EVICT: writeback; copied blocks stay resident */
    /* MOVED */
    NVSHARE_YIELDED = 1 << 5,        /* the order was ended early by YIELD */
    NVSHARE_NO_MEMORY = 1 << 6,      /* EVICT: `host` or the host's memory is used up. LOAD: the
                                        driver has less free memory than the room */
    NVSHARE_DRIVER_ERROR = 1 << 7,   /* the driver failed for another reason; UNPARK: to restore */
    /* HELLO, MEMORY, STOPPED */
    NVSHARE_WANTS = 1 << 8,          /* a thread waits at the gate */
    NVSHARE_RUNNING = 1 << 9,        /* HELLO: the gate is open */
    /* COPIES */
    NVSHARE_INWARD = 1 << 10,        /* from host to card */
    NVSHARE_OUTWARD = 1 << 11,       /* from card to host */
    /* RUN */
    NVSHARE_REPORT_BUSY = 1 << 12,   /* send BUSY. With PACE: other clients wait for the turn but
                                        not for memory, so freed memory may be kept */
    /* BUSY */
    NVSHARE_GAPS = 1 << 13,          /* part of the last second was without work in flight */
    /* RUN */
    NVSHARE_STEP = 1 << 14,          /* let launches through one at a time, each `step_pause` us
                                        after the end of the previous one: work on another GPU
                                        depends on some of them */
    /* HELLO */
    NVSHARE_IS_PARKED = 1 << 15,     /* an earlier daemon has parked the client */
};

enum nvshare_park {
    NVSHARE_PARK_DONE = 0,           /* parked: no thread is in the driver, or can enter it */
    NVSHARE_PARK_BUSY = 1,           /* not all threads of the program were asleep in time */
    NVSHARE_PARK_CALLED = 2,         /* a thread wants to call the driver, or waits at the gate */
    NVSHARE_PARK_SEVERAL = 3,        /* the process uses several GPUs */
    NVSHARE_PARK_HOLDS = 4,          /* memory of the client is still on the card, or pinned */
    NVSHARE_PARK_UNSEEN = 5,         /* the program may bypass this library's stubs, or the states
                                        of its threads cannot be read */
};

enum nvshare_refusal {
    NVSHARE_REFUSED_VERSION = 1,
    NVSHARE_REFUSED_NO_SUCH_GPU = 2,
    NVSHARE_REFUSED_TOO_MANY_CLIENTS = 3,
};

enum nvshare_wait {
    NVSHARE_WAITS_MOVES = 0,         /* memory of this or another client is being moved */
    NVSHARE_WAITS_TURN = 1,          /* the client is queued */
    NVSHARE_WAITS_ROOM = 2,          /* even alone, the client would not fit beside the memory of
                                        processes that do not share the card */
    NVSHARE_WAITS_SHARE = 3,         /* the client has used up its share of the time */
    NVSHARE_WAITS_RESUME = 4,        /* the client is suspended */
    NVSHARE_WAITS_GANG = 5,          /* the client's gang needs its turns on several GPUs at once */
};

/* Why a client is pinned: none of its memory is evicted any more. */
enum nvshare_pin_reason {
    NVSHARE_PIN_NONE = 0,           /* not pinned: its memory can be evicted */
    NVSHARE_PIN_UNDRAINED = 1,     /* its work in flight does not end, or cannot be waited for */
    NVSHARE_PIN_UNSEEN = 2,        /* the program may submit work that does not pass the gate */
    NVSHARE_PIN_GIVEN = 3,         /* a device or library may use the memory at any time */
    NVSHARE_PIN_KEPT = 4,          /* the client ignores EVICTs; set by the daemon, never sent */
};

struct nvshare_limits {              /* bytes */
    uint64_t commit;                 /* allocated + pinned may grow to this without a request */
    uint64_t most;                   /* and to this with a request (basis of cuMemGetInfo's free) */
    uint64_t total;                  /* size of the card for this client: cuMemGetInfo's total */
    uint64_t host_slab;              /* host memory is allocated in slabs of this size */
    uint64_t beyond;                 /* memory.beyond may grow to this with a request */
};

/* At the beginning of a shared page. Only the page's client writes it; background clients read it.
 * Work is in flight while the two counters differ. */
struct nvshare_inflight {
    uint64_t begun;                  /* incremented before work is submitted */
    uint64_t done;                   /* value of `begun` when last no work was in flight */
};

/* Daemon to hook. A field that a type does not use is 0. */
struct nvshare_order {
    uint16_t type;                   /* enum nvshare_type */
    uint16_t version;                /* NVSHARE_PROTOCOL_VERSION; stays here, as `type`, in every version */
    union {
        uint32_t flags;              /* enum nvshare_flag */
        uint32_t refusal;            /* REFUSED: enum nvshare_refusal, here in every version */
        uint32_t waits_for;          /* QUEUED: enum nvshare_wait */
    };
    uint64_t number;                 /* pairs an order or a request with its answer; else 0 */
    union {
        struct {
            uint64_t room;           /* EVICT, LOAD: bytes */
            uint64_t host;           /* EVICT, LOAD, PREALLOCATE: bytes of host memory for swapped
                                        blocks, in all; PARK: for the checkpoint */
            union {
                uint64_t writeback;  /* EVICT with KEEP: bytes */
                uint64_t file;       /* STORE: bytes */
            };
            uint64_t step_pause;     /* RUN with STEP: us between two launches */
            uint64_t idle_window;    /* RUN: us; 0: unchanged */
            union {
                struct nvshare_limits limits;    /* LIMITS */
                uint8_t lender[16];  /* EVICT: a GPU's UUID, as cuDeviceGetUuid returns it */
            };
            uint64_t loan;           /* EVICT: bytes */
        };
        char text[88];               /* REASON */
        uint8_t gpu[16];             /* UNPARK: UUID of the GPU that the process uses now */
    };
};

/* The client's memory in bytes, at the time when the report is sent; in every report but NAME and
 * GANG. `allocated`, `resident` and `pinned` count whole blocks. */
struct nvshare_memory {
    uint64_t allocated;              /* can be evicted: resident or swapped */
    uint64_t resident;               /* can be evicted, and is on the card now */
    uint64_t pinned;                 /* on the card, cannot be evicted */
    uint64_t pending;                /* pinned memory that a waiting thread is about to allocate */
    uint64_t room;                   /* as set by the orders carried out so far */
    uint64_t host;                   /* host memory held for swapped blocks */
    uint64_t beyond;                 /* host memory of allocations that do not fit the card */
};

/* The terms with which the program wants to run; 0: not given. The daemon applies each unless the
 * administrator's is stricter. */
struct nvshare_terms {
    uint64_t memory_limit;           /* bytes: allocated + pinned */
    uint64_t compute_limit;          /* percent of the time, 1 to 100 */
    uint64_t weight;                 /* 1 to 1000 */
    uint64_t priority;               /* 1: background, 2: normal, 3: high */
};

/* Hook to daemon. A field that a type does not use is 0. */
struct nvshare_report {
    uint16_t type;                   /* enum nvshare_type */
    uint16_t version;                /* NVSHARE_PROTOCOL_VERSION; stays here, as `type`, in every version */
    uint16_t flags;                  /* enum nvshare_flag */
    uint16_t pin_reason;                  /* enum nvshare_pin_reason */
    uint64_t number;                 /* pairs an order or a request with its answer; else 0 */
    union {
        struct {
            struct nvshare_memory memory;
            union {
                uint8_t uuid[16];    /* HELLO, BORROWED: a GPU's UUID, as cuDeviceGetUuid
                                        returns it */
                struct {             /* all other types */
                    uint64_t answered;    /* COMMITs up to this number are answered, or no thread
                                             waits for their answers any more */
                    uint64_t to_pin; /* bytes that these COMMITs were granted to pin, not yet in
                                        `memory.pinned` and not given up */
                };
            };
            union {
                struct {             /* HELLO, COMMIT; bytes */
                    union {
                        uint64_t commit; /* HELLO: granted so far */
                        uint64_t wanted; /* COMMIT: requested in all */
                    };
                    union {
                        uint64_t pins; /* COMMIT: bytes by which `pinned` may grow */
                        uint64_t context; /* HELLO with IS_PARKED: `host` of the PARK */
                    };
                };
                struct {             /* MOVED, STOPPED, BORROWED, PARKED, STORED */
                    union {
                        uint64_t moved; /* BORROWED, STORED: bytes. MOVED: bytes moved;
                                        with KEEP: bytes that can be evicted without a copy
                                        until the gate opens again */
                        uint64_t used; /* STOPPED: microseconds */
                        uint64_t park; /* PARKED: enum nvshare_park */
                    };
                    union {
                        uint64_t took; /* MOVED, STOPPED: microseconds; STORED: errno */
                        uint64_t dirty; /* BORROWED: bytes */
                    };
                };
            };
        };
        char text[88];               /* NAME, GANG */
        struct {                     /* GANG without text */
            char no_text[8];
            struct nvshare_terms terms;
        };
    };
};

_Static_assert(sizeof(struct nvshare_order) == 104, "the layout is the protocol");
_Static_assert(sizeof(struct nvshare_report) == 104, "the layout is the protocol");
