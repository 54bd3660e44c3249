/* SPDX-License-Identifier: Apache-2.0 */
#include "gate/packet.h"

#include <string.h>

#define BEGIN 4                          /* bytes of type and version */

#define MEMBER(record, member) ((struct record *)NULL)->member
#define FIELD(record, message, member, offset, size) \
    { NVSHARE_##message, offsetof(struct record, member), sizeof MEMBER(record, member), offset, \
      size },
#define ORDER_FIELD(...) FIELD(nvshare_order, __VA_ARGS__)
#define REPORT_FIELD(...) FIELD(nvshare_report, __VA_ARGS__)

static const struct packet_field ORDERS[] = { NVSHARE_ORDER_FIELDS(ORDER_FIELD) };
static const struct packet_field REPORTS[] = { NVSHARE_REPORT_FIELDS(REPORT_FIELD) };

const struct packet_fields packet_orders = { ORDERS, sizeof ORDERS / sizeof *ORDERS };
const struct packet_fields packet_reports = { REPORTS, sizeof REPORTS / sizeof *REPORTS };

/* Numbers are little-endian in both, so a shorter field has the lower bytes. */
static size_t bytes(const struct packet_field *field)
{
    return field->size < field->member_size ? field->size : field->member_size;
}

static uint16_t type_of(const void *begin)
{
    uint16_t type;
    memcpy(&type, begin, sizeof type);
    return type;
}

static bool is_zero(const char *bytes, size_t size)
{
    while (size > 0 && bytes[size - 1] == 0)
        size--;
    return size == 0;
}

void packet_write(const struct packet_fields *fields, const void *record, void *packet)
{
    memset(packet, 0, NVSHARE_PACKET_SIZE);
    memcpy(packet, record, BEGIN);
    for (size_t i = 0; i < fields->count; i++) {
        const struct packet_field *field = &fields->fields[i];
        const char *member = (const char *)record + field->member;
        /* A GANG's terms are in the place of its text: only the one that is given is written. */
        if (field->type == type_of(record) && !is_zero(member, field->member_size))
            memcpy((char *)packet + field->offset, member, bytes(field));
    }
}

void packet_read(const struct packet_fields *fields, const void *packet, void *record, size_t size)
{
    memset(record, 0, size);
    memcpy(record, packet, BEGIN);
    for (size_t i = 0; i < fields->count; i++) {
        const struct packet_field *field = &fields->fields[i];
        if (field->type == type_of(packet))
            memcpy((char *)record + field->member, (const char *)packet + field->offset,
                   bytes(field));
    }
}
