/* SPDX-License-Identifier: Apache-2.0 */
/* Wraps functions after which another library accesses the program's memory without the wrappers
 * (driver/others.def). The memory that the call names is pinned; if it names none, all memory. No
 * wrapper is needed for NVDEC, which decodes into its own memory, for memory of OpenGL and Vulkan,
 * which is never evicted, and for cuFile with unregistered buffers, which copies. */
#include <errno.h>

#include "api/wrapper.h"
#include "gate/client.h"
#include "ipc/ipc_export.h"
#include "memory/vmm.h"

#define WORDS uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f

/* `absent`: the result if the other library is not loaded. */
static uint64_t call(enum other other, uint64_t absent, WORDS)
{
    other_function *real = other_real(other);
    return real == NULL ? absent : real(a, b, c, d, e, f);
}

#define PINNING_ALL(name, reason)                                  \
    uint64_t name(WORDS)                                           \
    {                                                              \
        gate_enter(GATE_NO_STREAM);                                \
        clients_pin(reason);                                       \
        uint64_t result = call(OTHER_##name, 1, a, b, c, d, e, f); \
        gate_leave();                                              \
        return result;                                             \
    }

PINNING_ALL(NvEncodeAPICreateInstance, NVSHARE_PIN_GIVEN)
PINNING_ALL(NvOFAPICreateInstanceCuda, NVSHARE_PIN_GIVEN)
PINNING_ALL(optixQueryFunctionTable, NVSHARE_PIN_UNSEEN)

/* Pins all memory in a range, which may begin before an allocation: drivers pin whole pages of
 * their own size. A failure is ignored: devices then lack access, so the other library fails. */
static void pin(CUdeviceptr address, size_t size)
{
    ipc_export_pin_range(address, size);
    vmm_pin_range_in_place(address, size);
}

#define PINNING(name, absent, address, size)                   \
    uint64_t name(WORDS)                                       \
    {                                                          \
        pin(address, size);                                    \
        return call(OTHER_##name, absent, a, b, c, d, e, f);   \
    }
/* For functions that take a structure; `address`, `size`: indices of its words. */
#define PINNING_IN(name, absent, structure, address, size)                                 \
    PINNING(name, absent, (structure) == 0 ? 0 : ((const uint64_t *)(structure))[address], \
            (structure) == 0 ? 0 : ((const uint64_t *)(structure))[size])

PINNING(ibv_reg_mr, 0, b, c)
PINNING(ibv_reg_mr_iova, 0, b, c)
PINNING(ibv_reg_mr_iova2, 0, b, c)
PINNING_IN(ibv_reg_mr_ex, 0, b, 4, 0)
PINNING(ibv_rereg_mr, (uint64_t)-1, d, e)
PINNING(mlx5dv_devx_umem_reg, 0, b, c)
PINNING_IN(mlx5dv_devx_umem_reg_ex, 0, b, 0, 1)
PINNING_IN(bnxt_re_dv_umem_reg, 0, b, 0, 1)
PINNING(cxil_map, (uint64_t)-ENOSYS, b, c)
PINNING(doca_mmap_set_memrange, 1, b, c)
PINNING(cuFileBufRegister, 1, a, b)
PINNING(gdr_pin_buffer, ENOSYS, b, c)
PINNING(gdr_pin_buffer_v2, ENOSYS, b, c)
