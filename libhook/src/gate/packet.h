/* SPDX-License-Identifier: Apache-2.0 */
/* The messages' packets, see nvshare/protocol.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvshare/protocol.h"

struct packet_field {
    uint16_t type;                   /* the message that has the field */
    uint16_t member;                 /* its offset and size in the record */
    uint8_t member_size;
    uint8_t offset;                  /* and in the packet */
    uint8_t size;
};

struct packet_fields {
    const struct packet_field *fields;
    size_t count;
};

/* Fields of struct nvshare_order, and of struct nvshare_report. */
extern const struct packet_fields packet_orders, packet_reports;

/* Encodes a record in NVSHARE_PACKET_SIZE bytes at `packet`. */
void packet_write(const struct packet_fields *fields, const void *record, void *packet);
/* Decodes NVSHARE_PACKET_SIZE bytes into a record of `size` bytes. Of a message of unknown type only
 * type and version are set. */
void packet_read(const struct packet_fields *fields, const void *packet, void *record, size_t size);
