/* SPDX-License-Identifier: Apache-2.0 */
/* Wraps functions for managed memory. Queries for the last prefetch get the program's last
 * prefetch: the driver might report a prefetch by which the library has moved the memory. */
#include "api/wrapper.h"
#include "flight/bus_sharing.h"
#include "memory/managed.h"

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
    CUresult answer;
    if (managed_allocate(address, bytes, flags, &answer))
        return answer;
    COUNTED_CREATE(pinned_begin(bytes), bytes, COUNTED_ADDRESS, *address,
                   REAL(cuMemAllocManaged)(address, bytes, flags));
}

static CUmemLocation location_of(CUdevice device)
{
    return device == CU_DEVICE_CPU
               ? (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST }
               : (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
}

/* locations[i] applies to the ranges indices[i] to indices[i + 1] - 1. */
static void note_prefetches(const CUdeviceptr *addresses, const size_t *sizes, size_t count,
                     const CUmemLocation *locations, const size_t *indices, size_t location_count)
{
    for (size_t i = 0, index = 0; i < count; i++) {
        while (index + 1 < location_count && indices[index + 1] <= i)
            index++;
        managed_prefetched(addresses[i], sizes[i], locations[index]);
    }
}

static enum bus_direction direction_to(CUmemLocation location)
{
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? BUS_IN : BUS_OUT;
}

/* The wrapper passes the gate, records the bus load, and executes `note` on success. */
#undef PREFETCH
#define PREFETCH(name, direction, bytes, note, parameters)                         \
    SIGNATURE(name, parameters)                                                    \
    {                                                                              \
        gate_enter(GATE_NO_STREAM);                                                \
        BUS_COPY_BEGINS(copied, direction, bytes, false);                          \
        CUresult result = CALL(name, parameters);                                  \
        BUS_COPY_ENDS(copied);                                                     \
        if (result == CUDA_SUCCESS)                                                \
            note;                                                                  \
        gate_leave();                                                              \
        return result;                                                             \
    }
/* A batch is assumed to go in the direction of its first location. */
#define BATCH_DIRECTION (p4 == NULL || p6 == 0 ? BUS_NONE : direction_to(p4[0]))
#define NOTE_BATCH note_prefetches(p1, p2, p3, p4, p5, p6)
#define HOOK(name, parameters)
#include "driver/hooks.def"

static void correct_answer(void *data, CUmem_range_attribute attribute, CUdeviceptr address,
                           size_t size)
{
    CUmemLocation location;
    int *answer = data;
    bool old = attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
    bool type = attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE;
    bool id = attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID;
    if (!(old || type || id) || !managed_last_prefetch(address, size, &location))
        return;
    if (type)
        *answer = (int)location.type;
    else if (id || location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        *answer = location.id;
    else
        *answer = location.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU : CU_DEVICE_INVALID;
}

static void correct_answers(void **data, const CUmem_range_attribute *attributes, size_t count,
                        CUdeviceptr address, size_t size)
{
    for (size_t i = 0; i < count; i++)
        correct_answer(data[i], attributes[i], address, size);
}

NOTED(cuMemRangeGetAttribute, correct_answer(p1, p3, p4, p5),
    (void *, size_t, CUmem_range_attribute, CUdeviceptr, size_t))
NOTED(cuMemRangeGetAttributes, correct_answers(p1, p3, p4, p5, p6),
    (void **, size_t *, CUmem_range_attribute *, size_t, CUdeviceptr, size_t))
