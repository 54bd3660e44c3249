/* SPDX-License-Identifier: Apache-2.0 */
/* The messages' packets, see nvshare/protocol.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvshare/protocol.h"

struct packet_field {
    uint16_t type;                   /* the message that has the field */
    uint16_t member;                 /* offset in the record */
    uint8_t size;                    /* in the record and in a packet */
    uint8_t offset;                  /* in a packet */
    uint8_t old_offset, old_size;    /* in a packet of version 2; 0 bytes: not there */
};

struct packet_fields {
    const struct packet_field *fields;
    size_t count;
};

/* Fields of struct nvshare_order, and of struct nvshare_report. */
extern const struct packet_fields packet_orders, packet_reports;

/* Encodes a record at `packet`, which has NVSHARE_PACKET_LONGEST bytes. Returns the packet's size. */
size_t packet_write(const struct packet_fields *fields, const void *record, unsigned version,
                    void *packet);
/* Decodes a packet. Sets only type and version for an unknown type or version. False: the packet has
 * a wrong length. */
bool packet_read(const struct packet_fields *fields, const void *packet, size_t size, void *record,
                 size_t record_size);
