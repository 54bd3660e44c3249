/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for libibverbs (VERBS) and the video encoder's library of driver/others.def. */
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
#else
int NvEncodeAPICreateInstance(int *list);

int NvEncodeAPICreateInstance(int *list) { return *list; }
#endif
