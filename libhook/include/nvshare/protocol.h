/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conversation between libnvshare.so (the hook) and nvshared (the daemon).
 *
 * One SOCK_SEQPACKET connection per client, that is per process and GPU. One
 * packet is one `struct nvshare_record`, little-endian, of a fixed size; a
 * packet of another size, version or type ends that connection and nothing
 * else. nvshared/hook/protocol.py mirrors this file and a test compares the two.
 *
 * Words
 *   room       bytes of the card a client may occupy: resident + pinned. The
 *              daemon hands room out, and the sum over all clients never
 *              exceeds the capacity. A hook never maps beyond its room.
 *   resident   bytes of swappable memory that are on the card now.
 *   pinned     bytes of memory on the card that cannot be swapped.
 *   allocated  bytes of swappable memory the program has allocated, resident
 *              or not, counted in whole blocks as they are mapped.
 *   need       allocated + pinned + pending: the room a client must have, all
 *              of it filled, before its gate may open. `pending` is what a
 *              thread that waits for pinned memory will take.
 *   commit     how far allocated + pinned may grow. Handed out by the daemon
 *              so that everything allocated can be swapped out somewhere.
 *   host       bytes of host memory a client holds for swapped blocks.
 *   beyond     bytes of host memory that a client holds for good, for what it has
 *              beyond the card. They are none of the above.
 *
 * A client's gate is closed at first. The daemon may send any order at any
 * time; the hook carries orders out in the order received.
 *
 * Every record from the hook carries its memory figures as they are when it
 * is sent, which answers it has heard, and what it was granted there to pin and
 * has not begun to; so the daemon always knows the latest.
 *
 * Room in absolute figures. EVICT and LOAD name the room the client has from
 * now on, not a difference, so that they are harmless when repeated and right
 * when the client allocates or frees meanwhile. While an EVICT is on its way
 * the daemon counts the old room, while a LOAD is on its way the new one.
 *
 * Connections that outlive a daemon. A service manager may keep the daemon's
 * end of each connection and hand it to the next daemon, which knows nothing
 * of it but that it is there. That one asks for a new HELLO with INTRODUCE and
 * a number of its own making. Orders are carried out one after the other, so
 * the HELLO with that number comes after all answers to the earlier daemon's
 * orders, and everything before it is ignored.
 */
#ifndef NVSHARE_PROTOCOL_H
#define NVSHARE_PROTOCOL_H

#include <stdint.h>

#define NVSHARE_PROTOCOL_VERSION 1
#define NVSHARE_DEFAULT_SOCKET "/run/nvshare/nvshare.sock"

enum nvshare_type {
    /* Daemon to hook. */

    /* Answer to HELLO: the client is known. `limits` as in LIMITS. */
    NVSHARE_WELCOME = 1,
    /* Answer to HELLO: the program runs unshared. `flags` says why
     * (enum nvshare_refusal). The daemon closes the connection. */
    NVSHARE_REFUSED = 2,
    /* Open the gate for a turn of `bytes` microseconds (0: no end is planned).
     * NVSHARE_CONTENDED in flags: others wait, so report IDLE after
     * `microseconds` without work (0: as before). NVSHARE_WATCHED: memory may be
     * moved meanwhile, so report COPYING. NVSHARE_COVETED: nobody waits,
     * but somebody may come for its memory, so report IDLE all the same. Sent again
     * to a running client when quantum, contention or any of that change. The hook opens only
     * if the client is whole (resident + pinned + pending = need <= room);
     * otherwise it answers ROOM and stays closed. */
    NVSHARE_RUN = 3,
    /* Close the gate, wait for the work in flight, answer STOPPED. */
    NVSHARE_STOP = 4,
    /* Have at most `bytes` of room: move blocks out until resident + pinned
     * fits, taking at most `host` bytes of host memory in all. Answered by
     * EVICTED with the same number. A running client moves nothing: it gives
     * up only the room it does not fill. NVSHARE_AHEAD in flags: nobody waits
     * for it, and YIELD may follow, so few blocks are copied at a time. */
    NVSHARE_EVICT = 5,
    /* Have `bytes` of room: bring in what is missing as far as that goes,
     * then keep at most `host` bytes of host memory (blocks brought in give
     * theirs back until that is so). Answered by LOADED. Also sent to a
     * running client to give it more room. NVSHARE_AHEAD as for EVICT. */
    NVSHARE_LOAD = 6,
    /* `limits` apply from now on. Unasked: number 0. As the answer to COMMIT:
     * its number; the request is granted if limits.commit >= what it asked. */
    NVSHARE_LIMITS = 7,
    /* A new daemon has taken this connection over. Answered by HELLO with the
     * same number; questions without an answer are asked again after it. */
    NVSHARE_INTRODUCE = 8,
    /* Somebody else needs the bus: end the EVICT, LOAD or SAVE before, which had
     * NVSHARE_AHEAD, after the blocks that are being copied. It is answered with
     * what it did and NVSHARE_YIELDED, if anything was left to do. Where it was
     * answered already this means nothing. Has no answer of its own. */
    NVSHARE_YIELD = 9,
    /* To one whose gate is closed: copy to the host what would leave first, until
     * `bytes` could leave without a copy, taking at most `host` bytes of host memory
     * in all; it all stays on the card. Always with NVSHARE_AHEAD. Answered by
     * SAVED with the same number. */
    NVSHARE_SAVE = 10,

    /* Hook to daemon. */

    /* First record, and the answer to INTRODUCE: `version`
     * (NVSHARE_PROTOCOL_VERSION), `uuid` of the GPU, memory as held already.
     * NVSHARE_RUNNING in flags: the gate is open (the daemon was restarted).
     * `bytes`: the commit it holds. `number`: INTRODUCE's, else 0. */
    NVSHARE_HELLO = 64,
    /* A thread stands at the closed gate. Once per closing of the gate. */
    NVSHARE_WANT = 65,
    /* A running client that is contended or coveted has drained and submitted nothing for a
     * while. A hint: the gate is still open. */
    NVSHARE_IDLE = 66,
    /* Answer to STOP: closed and drained. NVSHARE_WANTS in flags: a thread
     * stands at the gate (no WANT follows). `bytes`: microseconds from
     * receiving STOP to drained. */
    NVSHARE_STOPPED = 67,
    /* Answer to STOP instead of STOPPED: the work in flight did not end while
     * a thread stood at the gate, so the gate is open again; it may depend
     * on what that thread submits. Ask again later. */
    NVSHARE_REOPENED = 68,
    /* Answer to EVICT. `bytes`: moved out by this order (0 copied for blocks
     * that never held anything), `host` held now; `microseconds`: how long. */
    NVSHARE_EVICTED = 69,
    /* Answer to LOAD. `bytes`: brought in by this order. */
    NVSHARE_LOADED = 70,
    /* The memory figures changed. Sent at most every few milliseconds. */
    NVSHARE_MEMORY = 71,
    /* This client's need has outgrown its room, its gate is shut on its own
     * accord until LOAD gives it `bytes` of room. No answer but LOAD (and RUN
     * if it was stopped meanwhile). */
    NVSHARE_ROOM = 72,
    /* May allocated + pinned grow to `bytes`, and pinned by `host`? Answered by
     * LIMITS with the same number; a refused program sees
     * CUDA_ERROR_OUT_OF_MEMORY. What is to be pinned is always asked for: it is
     * lost to all others for good, and each must still fit beside it. What was
     * granted counts as pinned until a record shows that it was heard (`answered`),
     * and then for as long as the hook says so (`to_pin`). */
    NVSHARE_COMMIT = 73,
    /* May what it holds beyond the card be `host`, which counts from now on unless
     * it is refused? Answered by LIMITS with the same number; it may if
     * limits.beyond >= `host`. Asked only where limits.beyond was not 0 before. */
    NVSHARE_BEYOND = 74,
    /* A running client that was told NVSHARE_WATCHED: its program loads the bus
     * from now on with copies to the card (NVSHARE_INWARD in flags), to the host
     * (NVSHARE_OUTWARD), both, or none any more. Only when that changes, and
     * forgotten with the end of the turn, or a RUN without NVSHARE_WATCHED. */
    NVSHARE_COPYING = 75,
    /* Answer to SAVE. `bytes`: what could leave without a copy, as far as is known,
     * until the gate opens again; `microseconds`: how long it took. */
    NVSHARE_SAVED = 76,
};

enum nvshare_flag {
    NVSHARE_CONTENDED = 1 << 0,      /* RUN */
    NVSHARE_RUNNING = 1 << 1,        /* HELLO */
    NVSHARE_WANTS = 1 << 2,          /* STOPPED, HELLO, MEMORY: a thread stands at the gate */
    NVSHARE_NO_DEVICE_MEMORY = 1 << 3, /* LOADED: the driver had less than the room says */
    NVSHARE_NO_HOST_MEMORY = 1 << 4, /* EVICTED, SAVED: allowance or host memory ran out */
    NVSHARE_DRIVER_ERROR = 1 << 5,   /* EVICTED, LOADED, SAVED: the driver failed otherwise */
    NVSHARE_WATCHED = 1 << 6,        /* RUN: report COPYING */
    NVSHARE_AHEAD = 1 << 7,          /* EVICT, LOAD, SAVE: nobody waits for it yet */
    NVSHARE_YIELDED = 1 << 8,        /* EVICTED, LOADED, SAVED: cut short by YIELD */
    NVSHARE_INWARD = 1 << 9,         /* COPYING: from host to card */
    NVSHARE_OUTWARD = 1 << 10,       /* COPYING: from card to host */
    NVSHARE_COVETED = 1 << 11,       /* RUN: report IDLE although nobody waits */
};

enum nvshare_refusal {
    NVSHARE_REFUSED_VERSION = 1,
    NVSHARE_REFUSED_NO_SUCH_GPU = 2,
    NVSHARE_REFUSED_TOO_MANY_CLIENTS = 3,
};

struct nvshare_memory {              /* every record from the hook; bytes */
    uint64_t allocated;
    uint64_t resident;
    uint64_t pinned;
    uint64_t pending;
    uint64_t room;                   /* as last ordered and carried out */
    uint64_t host;
};

struct nvshare_limits {              /* WELCOME and LIMITS; bytes */
    uint64_t commit;                 /* allocated + pinned may grow to this without asking */
    uint64_t most;                   /* and could grow to this if asked: cuMemGetInfo's free */
    uint64_t total;                  /* the card as this client sees it: cuMemGetInfo's total */
    uint64_t host_slab;              /* grain in which to take host memory */
    uint64_t beyond;                 /* what it holds beyond the card could be this if it asked */
    uint64_t reserved;
};

struct nvshare_record {
    uint16_t type;                   /* enum nvshare_type */
    uint16_t version;                /* NVSHARE_PROTOCOL_VERSION */
    uint32_t flags;
    uint64_t number;                 /* pairs an order or a question with its answer; else 0 */
    uint64_t bytes;                  /* as the type says */
    uint64_t host;                   /* EVICT, LOAD, SAVE: allowance of host memory; COMMIT: see there;
                                        all else from the hook: what it holds beyond the card */
    uint64_t microseconds;           /* EVICTED, LOADED, SAVED: how long it took; RUN: see there */
    union {
        struct nvshare_memory memory;
        struct nvshare_limits limits;
    };
    union {
        uint8_t uuid[16];            /* HELLO: the GPU, as cuDeviceGetUuid says */
        struct {                     /* all else from the hook */
            uint64_t answered;       /* questions up to this number are, or nobody awaits it any more */
            uint64_t to_pin;         /* bytes that these were granted to pin, which are neither in
                                        the figures yet nor given up */
        };
    };
};

_Static_assert(sizeof(struct nvshare_record) == 104, "the layout is the protocol");

#endif
