/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for the libraries of driver/others.def: each function is compiled into its own library. */
#include <stddef.h>
#include <stdint.h>

#if defined(VERBS)
void *ibv_reg_mr_old(void);
void *ibv_reg_mr_new(void *, void *, size_t, int);
__asm__(".symver ibv_reg_mr_old, ibv_reg_mr@IBVERBS_1.0");
__asm__(".symver ibv_reg_mr_new, ibv_reg_mr@@IBVERBS_1.1");

void *ibv_reg_mr_old(void) { return NULL; }

void *ibv_reg_mr_new(void *domain, void *address, size_t size, int access)
{
    return (char *)domain + (uintptr_t)address % 7 + size % 11 + (unsigned)access;
}
#elif defined(FILES)
uint64_t cuFileBufRegister(const void *, size_t, int);

uint64_t cuFileBufRegister(const void *address, size_t size, int flags)
{
    return (uintptr_t)address % 7 + size % 11 + (unsigned)flags;
}
#elif defined(ENCODER)
int NvEncodeAPICreateInstance(int *list);

int NvEncodeAPICreateInstance(int *list) { return *list; }
#else
int optixQueryFunctionTable(int, unsigned, void *, const void **, int *, size_t);

int optixQueryFunctionTable(int abi, unsigned count, void *keys, const void **values, int *table,
                            size_t size)
{
    (void)keys, (void)values;
    return *table + abi + (int)count + (int)size;
}
#endif
