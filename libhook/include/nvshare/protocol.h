/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conversation between libnvshare.so (the hook) and nvshared (the daemon). The
 * daemon sends orders, the hook answers them and reports how much memory it has.
 *
 * There is one SOCK_SEQPACKET connection per client, that is per process and GPU. One
 * packet is one record: a `struct nvshare_order` from the daemon, a `struct
 * nvshare_report` from the hook. All have the same size, in every version, and are
 * little-endian. A packet of another size, version or type ends that connection and
 * nothing else. nvshared/hook/protocol.py mirrors this file and a test compares the two.
 *
 * Words
 *   room       bytes of the card that a client may occupy: resident + pinned. The
 *              daemon hands room out. The sum over all clients never exceeds the
 *              capacity. A hook never maps beyond its room.
 *   need       allocated + pinned + pending: the room a client must have, all
 *              of it filled, before its gate may open.
 *   commit     how far allocated + pinned may grow. The daemon grants it, so that
 *              everything allocated can be swapped out somewhere.
 *   stays      nothing of a client leaves the card any more. What lies there counts as
 *              pinned, and only what is away still as allocated. Once it is whole it runs
 *              beside all others, and STOP only shuts its gate.
 *
 * A client's gate is closed at first. The daemon may send any order at any time; the hook carries
 * orders out in the order received. But LIMITS, REASON, QUEUED, PUBLISH and WATCH may overtake a STOP
 * whose drain lasts: threads of programs wait for them, and work in flight may wait for those
 * threads.
 *
 * Room is said in absolute figures. EVICT and LOAD name the room the client has from
 * now on, not a difference. So they are harmless when repeated, and right when the
 * client allocates or frees meanwhile. While an EVICT is on its way the daemon counts
 * the old room, while a LOAD is on its way the new one.
 *
 * Connections may outlive a daemon. A service manager may keep the daemon's end of each
 * connection and hand it to the next daemon, which knows nothing of it but that it is
 * there. That daemon asks for a new HELLO with INTRODUCE and a number of its own making.
 * Orders are carried out one after the other. So the HELLO with that number comes after
 * all answers to the earlier daemon's orders, and everything before it is ignored.
 */
#pragma once

#include <stdint.h>

#define NVSHARE_PROTOCOL_VERSION 2
#define NVSHARE_DEFAULT_SOCKET "/run/nvshare/nvshare.sock"

enum nvshare_type {
    /* Orders, daemon to hook. */

    /* `limits` apply from now on. The first one answers HELLO: the client is known.
     * As the answer to COMMIT it has its number, and what was asked is granted if
     * limits.commit >= commit, or limits.beyond >= memory.beyond. Unasked: number 0. */
    NVSHARE_LIMITS = 1,
    /* Answer to HELLO: the program runs unshared, for the reason in `refusal`. The daemon
     * closes the connection. */
    NVSHARE_REFUSED = 2,
    /* Open the gate for a turn of `quantum`. The flags name what to do meanwhile:
     * NVSHARE_PACE, NVSHARE_REPORT_IDLE, NVSHARE_REPORT_COPIES, NVSHARE_REPORT_BUSY,
     * NVSHARE_STEP, with which `quantum` is a pause. Sent
     * again to a running client when any of that changes. The hook opens only if the client is whole
     * (resident + pinned + pending = need <= room). */
    NVSHARE_RUN = 3,
    /* Close the gate, wait for the work in flight, answer STOPPED. */
    NVSHARE_STOP = 4,
    /* Have at most `room`: move blocks out until resident + pinned fits. Answered by
     * MOVED. A running client moves nothing: it gives up only the room it does not fill.
     * NVSHARE_KEEP in flags, to one whose gate is closed: nothing leaves and the room
     * stays. Instead copy to the host what would leave first, until `writeback` bytes
     * could leave without a copy, and then what lies on another GPU alone.
     * `loan`, `lender`: how many of the bytes that are away may lie on another GPU, in all, and
     * on which. They count in memory.host, so that host memory can take them back; without KEEP,
     * what lies there beyond the loan goes to host memory first. */
    NVSHARE_EVICT = 5,
    /* Have `room`: bring in what is missing as far as that goes, then give host memory
     * back until at most `host` is held. Answered by MOVED. Also sent to a running
     * client to give it more room. */
    NVSHARE_LOAD = 6,
    /* Somebody else needs the bus: end the EVICT or LOAD with this number, which had
     * NVSHARE_AHEAD, after the blocks that are being copied. It is answered with
     * what it did and NVSHARE_YIELDED, if anything was left to do. Where it was
     * answered already this means nothing. Has no answer of its own. */
    NVSHARE_YIELD = 7,
    /* A new daemon has taken this connection over. Answered by HELLO with the
     * same number; questions without an answer are asked again after it. */
    NVSHARE_INTRODUCE = 8,
    /* Answer to WAITING: `waits_for` says for what. `number`: its place in the queue, 1 for who
     * is next; 0 where it waits for something else. */
    NVSHARE_QUEUED = 9,
    /* Which limit it is for that the LIMITS after it refuse what COMMIT asked for, for the
     * program's user to read: `text`, UTF-8, ended by a 0 or by its size. What is longer
     * comes in several. */
    NVSHARE_REASON = 10,
    /* A background client runs on the card: publish work in flight from now on, in the counters of
     * `struct nvshare_inflight`. With the descriptor of a page that may be written; without one:
     * stop. */
    NVSHARE_PUBLISH = 11,
    /* To a background client: submit nothing while client `number` has work in flight. With the
     * descriptor of its page, which may be read; without one: watch it no longer. A new HELLO ends
     * all. */
    NVSHARE_WATCH = 12,
    /* Make host memory until `host` is held, while the program goes on. The next EVICT or LOAD ends
     * that, and so does a new HELLO. Has no answer: MEMORY says what is held. */
    NVSHARE_PREALLOCATE = 13,
    /* To a client whose gate is closed and of which nothing is on the card but what is pinned: keep
     * all threads of the program out of the driver, as its process is about to be checkpointed. With
     * NVSHARE_AHEAD only if no thread wants the GPU. Answered by PARKED. If that says that the client
     * is parked, no order but INTRODUCE and UNPARK may follow, and the hook sends only WAKE, HELLO
     * and, for a thread at the gate, MEMORY. */
    NVSHARE_PARK = 14,
    /* The driver may be called again, and the GPU that the process has now is `gpu`. Figures and
     * the HELLO for another GPU are asked for with INTRODUCE. Has no answer. */
    NVSHARE_UNPARK = 15,
    /* Keep up to `file` bytes of the client's blocks in its file, in all: move swapped blocks on
     * from host memory to the file in the background until it holds so many, and give back the host
     * memory that they fill. Those evicted first go first; blocks that a later EVICT swaps follow.
     * No other order waits for that, and none is moved while a LOAD is carried out. If the file
     * holds more, moving ends, and copies of resident blocks in the file are given up; swapped
     * blocks stay there until they are loaded or freed. After a new HELLO `file` is 0.
     * The file's descriptor comes with the first STORE of a connection of which no STORED said that
     * there are bytes in a file: open for reading and writing, regular, unlinked, O_DIRECT if the
     * file system allows that. A hook that has bytes in a file already keeps that one. Answered by
     * STORED with the same number. */
    NVSHARE_STORE = 16,

    /* Reports, hook to daemon. */

    /* First record, and the answer to INTRODUCE: `uuid` of the GPU, memory as held
     * already, the `commit` it holds. NVSHARE_RUNNING in flags: the gate is open (the daemon was
     * restarted). `number`: INTRODUCE's, else 0. */
    NVSHARE_HELLO = 64,
    /* The memory figures changed. Sent at most every few milliseconds; but at once when a
     * thread comes to stand at the closed gate (NVSHARE_WANTS in flags, once per closing
     * of the gate), and when the need of a running client outgrows its room, so that
     * its gate is shut until a LOAD gives it enough. */
    NVSHARE_MEMORY = 65,
    /* A running client that was told NVSHARE_REPORT_IDLE has drained and submitted nothing
     * for as long as RUN said. A hint: the gate is still open. */
    NVSHARE_IDLE = 66,
    /* Answer to STOP: closed and drained. NVSHARE_WANTS in flags: a thread
     * stands at the gate, and no MEMORY follows that says so. `took`: from receiving STOP
     * to drained. `used`: from the gate's opening to that, less the time in which nothing
     * was in flight, as far as known; 0: unknown, as work may still be in flight. */
    NVSHARE_STOPPED = 67,
    /* Answer to STOP instead of STOPPED: the work in flight did not end while
     * a thread stood at the gate, so the gate is open again; it may depend
     * on what that thread submits. Ask again later. */
    NVSHARE_REOPENED = 68,
    /* Answer to EVICT and LOAD, with the number of the order. */
    NVSHARE_MOVED = 69,
    /* May allocated + pinned grow to `commit`, and pinned by `pins`? Answered by
     * LIMITS with the same number; a refused program sees CUDA_ERROR_OUT_OF_MEMORY. What
     * is to be pinned is always asked for: it is lost to all others for good, and each
     * must still fit beside it. What was granted counts as pinned until a record shows
     * that it was heard (`answered`), and then for as long as the hook says so (`to_pin`).
     * `commit` 0 asks for another thing: may memory.beyond be what it is, which counts
     * from now on unless it is refused? Asked only where limits.beyond was not 0 before. */
    NVSHARE_COMMIT = 70,
    /* A running client that was told NVSHARE_REPORT_COPIES: its program loads the bus
     * from now on with copies to the card (NVSHARE_INWARD in flags), to the host
     * (NVSHARE_OUTWARD), both, or none any more. Only when that changes, and
     * forgotten with the end of the turn, or a RUN without NVSHARE_REPORT_COPIES. */
    NVSHARE_COPIES = 71,
    /* A thread has stood at the gate for long, and the program's user wants to know what for.
     * Answered by QUEUED. WANTS in flags, unless it holds a turn already. */
    NVSHARE_WAITING = 72,
    /* What the program calls itself, for people: `text`, UTF-8, ended by a 0 or by its size.
     * Only before HELLO. */
    NVSHARE_NAME = 73,
    /* A running client that was told NVSHARE_REPORT_BUSY: its program has had work in flight at
     * all times for a second, or, with NVSHARE_GAPS in flags, it has not. Said once in each
     * turn, and when it changes; nothing of it after STOP. */
    NVSHARE_BUSY = 74,
    /* Which of its user's programs this one is to get its turns with, on several GPUs: `text`, as
     * NAME's: a name, a colon, and how many processes they are, if that is known. Only before
     * HELLO. */
    NVSHARE_GANG = 75,
    /* `moved` bytes of memory.host lie on the GPU `uuid`, and to return `dirty` of them takes a copy.
     * Before the next record, whenever that has changed; and before HELLO, if there ever were any. */
    NVSHARE_BORROWED = 76,
    /* Answer to PARK, with its number. `park`: whether the client is parked now. NVSHARE_WANTS in
     * flags: a thread wants the driver, or stands at the gate. */
    NVSHARE_PARKED = 77,
    /* A thread of a parked program waits before the driver. Said once for each PARK, and in each
     * HELLO by NVSHARE_WANTS. */
    NVSHARE_WAKE = 78,
    /* `moved` bytes of the client's blocks lie in its file, copies of resident blocks included.
     * They are not counted in memory.host. `took`: errno of the last failure to move blocks there,
     * ETIMEDOUT while a write has not ended for long; 0 after the next success. `number`: of the
     * last STORE that was heard. Answer to STORE, and sent before the next record whenever any of
     * that has changed; and before HELLO, if there is a file. */
    NVSHARE_STORED = 79,
};

enum nvshare_flag {
    /* RUN */
    NVSHARE_PACE = 1 << 0,           /* others wait: bound the work in flight, keep no spare memory */
    NVSHARE_REPORT_IDLE = 1 << 1,    /* say IDLE after `idle_window` without work */
    NVSHARE_REPORT_COPIES = 1 << 2,  /* say COPIES, as memory may be moved meanwhile */
    /* EVICT, LOAD */
    NVSHARE_AHEAD = 1 << 3,          /* nobody waits for it: copy few blocks at a time, look for YIELD;
                                        PARK as well */
    NVSHARE_KEEP = 1 << 4,           /* EVICT: copy to the host, and leave on the card */
    /* MOVED */
    NVSHARE_YIELDED = 1 << 5,        /* cut short by YIELD */
    NVSHARE_NO_MEMORY = 1 << 6,      /* where it was to go there was too little: by EVICT, allowance
                                        or host memory ran out; by LOAD, the driver had less than
                                        the room says */
    NVSHARE_DRIVER_ERROR = 1 << 7,   /* the driver failed otherwise */
    /* HELLO, MEMORY, STOPPED */
    NVSHARE_WANTS = 1 << 8,          /* a thread stands at the gate */
    NVSHARE_RUNNING = 1 << 9,        /* HELLO: the gate is open */
    /* COPIES */
    NVSHARE_INWARD = 1 << 10,        /* from host to card */
    NVSHARE_OUTWARD = 1 << 11,       /* from card to host */
    /* RUN */
    NVSHARE_REPORT_BUSY = 1 << 12,   /* say BUSY; with PACE: others wait for the turn only, so
                                        spare memory may be kept */
    /* BUSY */
    NVSHARE_GAPS = 1 << 13,          /* it is not */
    /* RUN */
    NVSHARE_STEP = 1 << 14,          /* let one launch at a time through, each `quantum` after the end
                                        of the one before: on another GPU work waits for some of it */
    /* HELLO */
    NVSHARE_IS_PARKED = 1 << 15,     /* and it is parked, for an earlier daemon */
};

enum nvshare_park {
    NVSHARE_PARK_DONE = 0,           /* no thread is within the driver, and none will be */
    NVSHARE_PARK_BUSY = 1,           /* a thread is never seen to rest */
    NVSHARE_PARK_CALLED = 2,         /* a thread wants the driver, or stands at the gate */
    NVSHARE_PARK_SEVERAL = 3,        /* the process uses several GPUs */
    NVSHARE_PARK_HOLDS = 4,          /* memory of it cannot leave the card, or has not left */
    NVSHARE_PARK_UNSEEN = 5,         /* it may call the driver past this library, or its threads
                                        cannot be looked at */
};

enum nvshare_refusal {
    NVSHARE_REFUSED_VERSION = 1,
    NVSHARE_REFUSED_NO_SUCH_GPU = 2,
    NVSHARE_REFUSED_TOO_MANY_CLIENTS = 3,
};

enum nvshare_wait {
    NVSHARE_WAITS_MOVES = 0,         /* memory, its own or another's, is on its way */
    NVSHARE_WAITS_TURN = 1,          /* it stands in the queue */
    NVSHARE_WAITS_ROOM = 2,          /* even alone it would not fit beside what others hold, who
                                        do not share */
    NVSHARE_WAITS_SHARE = 3,         /* it has had its share of the time */
    NVSHARE_WAITS_RESUME = 4,        /* it is suspended */
    NVSHARE_WAITS_GANG = 5,          /* it gets its turn on several GPUs at once */
};

/* Why nothing of a client leaves the card any more. */
enum nvshare_pin_reason {
    NVSHARE_PIN_NONE = 0,           /* it does leave */
    NVSHARE_PIN_UNDRAINED = 1,     /* its work in flight does not end, or cannot be waited for */
    NVSHARE_PIN_UNSEEN = 2,        /* it may submit work that does not pass the gate */
    NVSHARE_PIN_GIVEN = 3,         /* memory was given to a device or library that uses it at any time */
    NVSHARE_PIN_KEPT = 4,          /* it frees nothing when told to; found out by the daemon */
};

struct nvshare_limits {              /* bytes */
    uint64_t commit;                 /* allocated + pinned may grow to this without asking */
    uint64_t most;                   /* and could grow to this if asked: cuMemGetInfo's free */
    uint64_t total;                  /* the card as this client sees it: cuMemGetInfo's total */
    uint64_t host_slab;              /* grain in which to take host memory */
    uint64_t beyond;                 /* what it holds beyond the card could be this if it asked */
};

/* At the beginning of a page that its client alone writes, and background clients read. Work is in
 * flight while the two differ. */
struct nvshare_inflight {
    uint64_t begun;                  /* grows when work begins, before it is submitted */
    uint64_t done;                   /* what `begun` was when nothing was left in flight */
};

/* Daemon to hook. A field that a type does not use is 0. */
struct nvshare_order {
    uint16_t type;                   /* enum nvshare_type */
    uint16_t version;                /* NVSHARE_PROTOCOL_VERSION; these two lie here in every version */
    union {
        uint32_t flags;              /* enum nvshare_flag */
        uint32_t refusal;            /* REFUSED: enum nvshare_refusal, here in every version */
        uint32_t waits_for;          /* QUEUED: enum nvshare_wait */
    };
    uint64_t number;                 /* pairs an order or a question with its answer; else 0 */
    union {
        struct {
            uint64_t room;           /* EVICT, LOAD: bytes */
            uint64_t host;           /* EVICT, LOAD, PREALLOCATE: bytes of host memory for swapped
                                        blocks, in all */
            union {
                uint64_t writeback;  /* EVICT with KEEP: bytes */
                uint64_t file;       /* STORE: bytes */
            };
            uint64_t quantum;        /* RUN: microseconds; 0: no end is planned; with STEP: a pause */
            uint64_t idle_window;    /* RUN: microseconds; 0: as before */
            union {
                struct nvshare_limits limits;    /* LIMITS */
                uint8_t lender[16];  /* EVICT: a GPU, as cuDeviceGetUuid says */
            };
            uint64_t loan;           /* EVICT: bytes */
        };
        char text[88];               /* REASON */
        uint8_t gpu[16];             /* UNPARK: its UUID */
    };
};

/* Every report carries the figures as they are when it is sent, so the daemon always
 * knows the latest. Bytes, and allocated, resident and pinned in whole blocks. */
struct nvshare_memory {
    uint64_t allocated;              /* swappable, on the card or not */
    uint64_t resident;               /* swappable and on the card now */
    uint64_t pinned;                 /* on the card and not swappable */
    uint64_t pending;                /* pinned memory that a waiting thread will take */
    uint64_t room;                   /* as last ordered and carried out */
    uint64_t host;                   /* host memory held for swapped blocks */
    uint64_t beyond;                 /* and for good, for what does not fit the card */
};

/* Hook to daemon. A field that a type does not use is 0. */
struct nvshare_report {
    uint16_t type;                   /* enum nvshare_type */
    uint16_t version;                /* NVSHARE_PROTOCOL_VERSION; these two lie here in every version */
    uint16_t flags;                  /* enum nvshare_flag */
    uint16_t pin_reason;                  /* enum nvshare_pin_reason */
    uint64_t number;                 /* pairs an order or a question with its answer; else 0 */
    union {
        struct {
            struct nvshare_memory memory;
            union {
                uint8_t uuid[16];    /* HELLO, BORROWED: the GPU, as cuDeviceGetUuid says */
                struct {             /* all others */
                    uint64_t answered;    /* questions up to this number are, or nobody awaits it
                                             any more */
                    uint64_t to_pin; /* bytes that these were granted to pin, which are neither in
                                        the figures yet nor given up */
                };
            };
            union {
                struct {             /* HELLO, COMMIT; bytes */
                    uint64_t commit; /* what it holds; what it asks for */
                    uint64_t pins;   /* COMMIT: how much of that is to be pinned */
                };
                struct {             /* MOVED, STOPPED */
                    union {
                        uint64_t moved; /* BORROWED, STORED: bytes. MOVED: bytes that this order moved, 0 copied for blocks
                                        that never held anything; with KEEP: that could leave
                                        without a copy now, until the gate opens again */
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
    };
};

_Static_assert(sizeof(struct nvshare_order) == 104, "the layout is the protocol");
_Static_assert(sizeof(struct nvshare_report) == 104, "the layout is the protocol");
