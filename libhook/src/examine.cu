/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a block of memory holds, in 320 bits; see content.c for what it is worth.
 * examine.ptx is made of this, for every card from Pascal on, by
 *     nvcc -O3 -arch=compute_75 -ptx examine.cu
 * with the version and the target in its head set to 6.0 and sm_60.
 */

typedef unsigned int u32;
typedef unsigned long long u64;

/* The key for word i: splitmix64, a generator whose every output looks random. */
__device__ __forceinline__ u64 key(u64 seed, u64 i)
{
    u64 z = seed + i * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ u64 product(u64 word, u64 k)
{
    return (u64)((u32)word + (u32)k) * (u64)((u32)(word >> 32) + (u32)(k >> 32));
}

/* `words` is a multiple of 4, and so is the address in bytes of 16.
 * out[0..3] += sums, out[4] |= every word. */
extern "C" __global__ void nvshare_examine(const ulonglong2 *p, u64 words, u64 seed, u64 *out)
{
    u64 sum[4] = { 0, 0, 0, 0 }, any = 0;
    u64 stride = (u64)gridDim.x * blockDim.x * 4;
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < words; i += stride) {
        ulonglong2 first = p[i / 2], second = p[i / 2 + 1];
        u64 word[4] = { first.x, first.y, second.x, second.y }, k[7];
#pragma unroll
        for (int j = 0; j < 7; j++)
            k[j] = key(seed, i + j);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            any |= word[j];
#pragma unroll
            for (int pass = 0; pass < 4; pass++)
                sum[pass] += product(word[j], k[j + pass]);
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
#pragma unroll
        for (int pass = 0; pass < 4; pass++)
            sum[pass] += __shfl_xor_sync(0xFFFFFFFF, sum[pass], step);
        any |= __shfl_xor_sync(0xFFFFFFFF, any, step);
    }
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int pass = 0; pass < 4; pass++)
            atomicAdd(&out[pass], sum[pass]);
        if (any != 0)
            atomicOr(&out[4], any);
    }
}
