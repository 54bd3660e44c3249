/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for libraries of driver/others.def: libibverbs (VERBS), the video encoder's (ENCODER), or
 * any that has one function FUNCTION, which returns the sum of its arguments. */
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
#elif defined(FUNCTION)
uint64_t FUNCTION(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

uint64_t FUNCTION(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
    return a + b + c + d + e + f;
}
#else
int NvEncodeAPICreateInstance(int *list);

int NvEncodeAPICreateInstance(int *list) { return *list; }
#endif
