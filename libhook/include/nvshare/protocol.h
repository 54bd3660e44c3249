/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between libnvshare.so (the hook) and nvshared (the daemon). The
 * daemon sends orders. The hook answers orders and reports how much memory the program has.
 *
 * messages.h has the messages and their fields. It is made from the table in
 * nvshared/hook/protocol.py, as is the rest that depends on them.
 *
 * There is one SOCK_SEQPACKET connection per client, that is per process and GPU. One packet is one
 * message: an order from the daemon, a report from the hook. In packets their fields are
 * little-endian and at the places that messages.h gives; gate/packet.c copies them to and from
 * `struct nvshare_order` and `struct nvshare_report`. A packet of a wrong length, or of unknown
 * version or type, ends its connection and has no other effect.
 *
 * A packet begins with `struct nvshare_head`, which has its length. Then come the fields of the
 * message, and NVSHARE_PACKET_SPARE bytes that are 0. A receiver ignores what follows the fields
 * that it knows, and takes fields that a packet does not reach for 0: a message can get another
 * field, at its end, without another version.
 *
 * Version 2 has packets of NVSHARE_PACKET_OLDEST bytes without a length. The daemon speaks it to
 * hooks that were loaded before an upgrade, at least until 1.0: it answers in the version of the
 * packets that it gets. A hook begins with the newest version. If the connection ends before the
 * first order, the daemon may be older, so the next connection has the other version.
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

#include "nvshare/messages.h"

#define NVSHARE_DEFAULT_SOCKET "/run/nvshare/nvshare.sock"

/* At the beginning of a shared page. Only the page's client writes it; background clients read it.
 * Work is in flight while the two counters differ. */
struct nvshare_inflight {
    uint64_t begun;                  /* incremented before work is submitted */
    uint64_t done;                   /* value of `begun` when last no work was in flight */
};
