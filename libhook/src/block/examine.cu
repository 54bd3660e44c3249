/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes a digest of 320 bits for each block of memory; contents.c explains its strength.
 * examine.ptx is compiled from this file, for every card from Pascal on, by
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

/* Blocks that one thread reads together: it computes the key of a position once for all of them. */
#define TOGETHER 2

struct target {
    const ulonglong2 *words;
    u64 count;
};

/*
 * Reads `count` targets; blockIdx.y selects TOGETHER of them. The number of words must be a
 * multiple of 4, and the address a multiple of 16 bytes. Of each 4 * `every` words the first 4 are
 * read. out[5 * t + 0..3] += sums, out[5 * t + 4] |= every word, for target t.
 */
extern "C" __global__ void nvshare_examine(const struct target *targets, u64 count, u64 seed,
                                           u64 every, u64 *out)
{
    u64 sum[TOGETHER][4], any[TOGETHER], words[TOGETHER], most = 0;
    const ulonglong2 *p[TOGETHER];
    u64 first = (u64)blockIdx.y * TOGETHER;
#pragma unroll
    for (int t = 0; t < TOGETHER; t++) {
        bool there = first + t < count;
        p[t] = there ? targets[first + t].words : 0;
        words[t] = there ? targets[first + t].count : 0;
        most = words[t] > most ? words[t] : most;
        any[t] = 0;
#pragma unroll
        for (int pass = 0; pass < 4; pass++)
            sum[t][pass] = 0;
    }
    u64 stride = (u64)gridDim.x * blockDim.x * 4 * every;
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 4 * every; i < most; i += stride) {
        u64 k[7];
#pragma unroll
        for (int j = 0; j < 7; j++)
            k[j] = key(seed, i + j);
#pragma unroll
        for (int t = 0; t < TOGETHER; t++) {
            if (i >= words[t])
                continue;
            ulonglong2 low = p[t][i / 2], high = p[t][i / 2 + 1];
            u64 word[4] = { low.x, low.y, high.x, high.y };
#pragma unroll
            for (int j = 0; j < 4; j++) {
                any[t] |= word[j];
#pragma unroll
                for (int pass = 0; pass < 4; pass++)
                    sum[t][pass] += product(word[j], k[j + pass]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TOGETHER; t++) {
        if (first + t >= count)
            break;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
#pragma unroll
            for (int pass = 0; pass < 4; pass++)
                sum[t][pass] += __shfl_xor_sync(0xFFFFFFFF, sum[t][pass], step);
            any[t] |= __shfl_xor_sync(0xFFFFFFFF, any[t], step);
        }
        if (threadIdx.x % 32 == 0) {
            u64 *found = out + 5 * (first + t);
#pragma unroll
            for (int pass = 0; pass < 4; pass++)
                atomicAdd(&found[pass], sum[t][pass]);
            if (any[t] != 0)
                atomicOr(&found[4], any[t]);
        }
    }
}
