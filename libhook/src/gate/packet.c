/* SPDX-License-Identifier: Apache-2.0 */
#include "gate/packet.h"

#include <string.h>

#define MEMBER(record, member) ((struct record *)NULL)->member
#define FIELD(record, message, member, offset, old_offset, old_size) \
    { NVSHARE_##message, offsetof(struct record, member), sizeof MEMBER(record, member), offset, \
      old_offset, old_size },
#define ORDER_FIELD(...) FIELD(nvshare_order, __VA_ARGS__)
#define REPORT_FIELD(...) FIELD(nvshare_report, __VA_ARGS__)

static const struct packet_field ORDERS[] = { NVSHARE_ORDER_FIELDS(ORDER_FIELD) };
static const struct packet_field REPORTS[] = { NVSHARE_REPORT_FIELDS(REPORT_FIELD) };

const struct packet_fields packet_orders = { ORDERS, sizeof ORDERS / sizeof *ORDERS };
const struct packet_fields packet_reports = { REPORTS, sizeof REPORTS / sizeof *REPORTS };

/* What each packet and record begins with. */
struct begin {
    uint16_t type;
    uint16_t version;
};

static bool is_zero(const char *bytes, size_t size)
{
    while (size > 0 && bytes[size - 1] == 0)
        size--;
    return size == 0;
}

size_t packet_write(const struct packet_fields *fields, const void *record, unsigned version,
                    void *packet)
{
    struct begin begin;
    memcpy(&begin, record, sizeof begin);
    begin.version = (uint16_t)version;
    memset(packet, 0, NVSHARE_PACKET_LONGEST);
    memcpy(packet, &begin, sizeof begin);
    size_t end = sizeof(struct nvshare_head);
    for (size_t i = 0; i < fields->count; i++) {
        const struct packet_field *field = &fields->fields[i];
        if (field->type != begin.type)
            continue;
        const char *member = (const char *)record + field->member;
        if (version > NVSHARE_PROTOCOL_OLDEST) {
            memcpy((char *)packet + field->offset, member, field->size);
            if (end < (size_t)field->offset + field->size)
                end = (size_t)field->offset + field->size;
        /* Numbers are little-endian in both, so a shorter field has the lower bytes. A GANG's terms
         * are in the place of its text: only the one that is given is written. */
        } else if (!is_zero(member, field->size)) {
            memcpy((char *)packet + field->old_offset, member, field->old_size);
        }
    }
    if (version <= NVSHARE_PROTOCOL_OLDEST)
        return NVSHARE_PACKET_OLDEST;
    uint32_t length = (uint32_t)(end + NVSHARE_PACKET_SPARE);
    memcpy((char *)packet + offsetof(struct nvshare_head, length), &length, sizeof length);
    return length;
}

/* Whether a packet of `size` bytes has the length that it should. */
static bool is_complete(const void *packet, size_t size, unsigned version)
{
    uint32_t length = NVSHARE_PACKET_OLDEST;
    if (version > NVSHARE_PROTOCOL_OLDEST) {
        if (size < sizeof(struct nvshare_head) || size > NVSHARE_PACKET_LONGEST)
            return false;
        memcpy(&length, (const char *)packet + offsetof(struct nvshare_head, length),
               sizeof length);
    }
    return size == length;
}

bool packet_read(const struct packet_fields *fields, const void *packet, size_t size, void *record,
                 size_t record_size)
{
    struct begin begin;
    memset(record, 0, record_size);
    if (size < sizeof begin)
        return false;
    memcpy(&begin, packet, sizeof begin);
    memcpy(record, &begin, sizeof begin);
    if (begin.version < NVSHARE_PROTOCOL_OLDEST || begin.version > NVSHARE_PROTOCOL_VERSION)
        return true;
    if (!is_complete(packet, size, begin.version))
        return false;
    bool is_old = begin.version == NVSHARE_PROTOCOL_OLDEST;
    for (size_t i = 0; i < fields->count; i++) {
        const struct packet_field *field = &fields->fields[i];
        size_t offset = is_old ? field->old_offset : field->offset;
        size_t bytes = is_old ? field->old_size : field->size;
        if (field->type == begin.type && offset + bytes <= size)
            memcpy((char *)record + field->member, (const char *)packet + offset, bytes);
    }
    return true;
}
