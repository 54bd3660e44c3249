/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how long a program takes to allocate, first use and free memory of the GPU:
 *
 *     allocate TOUCHED LARGE LARGES SMALL SMALLS LIVE ROUNDS GROWTH
 *
 * One JSON line for each of ROUNDS rounds (at most ROUNDS_MOST). First, in all rounds,
 *   - one block of TOUCHED bytes is allocated and set, twice; then, again in all rounds,
 *   - LARGES blocks of LARGE bytes are allocated, and then freed again in another order;
 *   - SMALLS blocks of SMALL bytes are allocated and freed in the same way;
 *   - the same while LIVE other blocks of SMALL bytes exist.
 * TOUCHED and LARGE grow by GROWTH bytes from each round to the next. With GROWTH 0, freed memory
 * of these sizes can be used again; with 2 MiB or more, no freed memory fits, even if sizes are
 * rounded to pages.
 * Times are microseconds for each call.
 *
 * In the first round, and with small blocks in every round, each block is filled with a different
 * value and compared before it is freed, outside of the measured time; a wrong word ends the
 * program with status 1.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LOOK ((size_t)32 << 20)      /* bytes that one copy reads back */
#define STRIDE 7919
#define ROUNDS_MOST 100

/* The driver's functions used besides DRIVER_START. */
#define DRIVER(X)                                                                                  \
    X(allocate, cuMemAlloc_v2, (address *, size_t))                                                \
    X(release, cuMemFree_v2, (address))                                                            \
    X(set, cuMemsetD32_v2, (address, unsigned, size_t))                                            \
    X(copy, cuMemcpyDtoH_v2, (void *, address, size_t))

#include "driver.h"

static unsigned *seen;
static struct { char text[512]; size_t length; } lines[ROUNDS_MOST];

/* Appends text to the output line of a round. */
__attribute__((format(printf, 2, 3))) static void say(size_t round, const char *format, ...)
{
    size_t left = sizeof lines[round].text - lines[round].length;
    va_list values;
    va_start(values, format);
    int length = vsnprintf(lines[round].text + lines[round].length, left, format, values);
    va_end(values);
    expect(length < 0 || (size_t)length >= left, "writing what was measured");
    lines[round].length += (size_t)length;
}

static void set(address at, unsigned value, size_t bytes)
{
    expect(driver.set(at, value, bytes / 4), "setting memory");
    expect(driver.synchronize(), "setting memory");
}

/* Compares all words of the memory. */
static void look(address at, unsigned value, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += LOOK) {
        size_t size = bytes - done < LOOK ? bytes - done : LOOK;
        memset(seen, 0x5A, size);
        expect(driver.copy(seen, at + done, size), "reading memory");
        for (size_t i = 0; i < size / 4; i++)
            if (seen[i] != value) {
                fprintf(stderr, "WRONG RESULT: word %zu of a block holds %08x and not %08x\n",
                        done / 4 + i, seen[i], value);
                exit(1);
            }
    }
}

static void touch(size_t round, size_t bytes, unsigned value)
{
    address at;
    double begin = now();
    expect(driver.allocate(&at, bytes), "allocating memory to be set");
    double allocated = now();
    set(at, value, bytes);
    double first = now();
    bool checked = round == 0;
    if (checked)
        look(at, value, bytes);
    double again = now();
    set(at, ~value, bytes);
    double end = now();
    if (checked)
        look(at, ~value, bytes);
    expect(driver.release(at), "freeing it");
    say(round, "\"touch_allocate\": %.3f, \"touch_first\": %.3f, \"touch_again\": %.3f",
        allocated - begin, first - allocated, end - again);
}

static address *allocate_all(size_t bytes, size_t count)
{
    address *made = calloc(count, sizeof *made);
    expect(made == NULL, "finding host memory for the addresses");
    for (size_t i = 0; i < count; i++)
        expect(driver.allocate(&made[i], bytes), "allocating memory");
    return made;
}

/* Frees in neither the order of allocation nor its reverse; STRIDE is a prime. */
static void free_all(const address *made, size_t count)
{
    for (size_t i = 0; i < count; i++)
        expect(driver.release(made[i * STRIDE % count]), "freeing memory");
}

static void write_all(const address *made, size_t bytes, size_t count, unsigned value)
{
    for (size_t i = 0; i < count; i++)
        expect(driver.set(made[i], value + (unsigned)i, bytes / 4), "setting memory");
    expect(driver.synchronize(), "setting memory");
}

static void look_all(const address *made, size_t bytes, size_t count, unsigned value)
{
    for (size_t i = 0; i < count; i++)
        look(made[i], value + (unsigned)i, bytes);
}

static void rate(size_t round, const char *name, size_t bytes, size_t count, unsigned value,
                 bool checked)
{
    double begin = now();
    address *made = allocate_all(bytes, count);
    double allocated = now();
    if (checked) {
        write_all(made, bytes, count, value);
        look_all(made, bytes, count, value);
    }
    double again = now();
    free_all(made, count);
    double end = now();
    say(round, ", \"%s_allocate\": %.4f, \"%s_free\": %.4f", name,
        (allocated - begin) / (double)count, name, (end - again) / (double)count);
    free(made);
}

int main(int count, char **arguments)
{
    size_t number[8];
    if (count != 9) {
        fprintf(stderr, "allocate: eight numbers are needed\n");
        return 2;
    }
    for (int i = 0; i < 8; i++)
        number[i] = strtoull(arguments[i + 1], NULL, 10);
    size_t touched = number[0], large = number[1], larges = number[2], small = number[3];
    size_t smalls = number[4], live = number[5], rounds = number[6], growth = number[7];
    for (int i = 0; i < 7; i++)
        if (number[i] % STRIDE == 0 || rounds > ROUNDS_MOST) {
            fprintf(stderr, "allocate: '%s' is not a number that can be measured\n",
                    arguments[rounds > ROUNDS_MOST ? 7 : i + 1]);
            return 2;
        }
    seen = malloc(LOOK);
    expect(seen == NULL, "finding host memory to read into");
    start_driver();
    for (size_t round = 0; round < rounds; round++)
        touch(round, touched + round * growth, (unsigned)round * 0x10001u + 1);
    for (size_t round = 0; round < rounds; round++)
        rate(round, "large", large + round * growth, larges, (unsigned)round * 0x10001u + 1,
             round == 0);
    for (size_t round = 0; round < rounds; round++)
        rate(round, "small", small, smalls, (unsigned)round * 0x10001u + 1, true);
    unsigned value = ~0u;
    address *others = allocate_all(small, live);
    write_all(others, small, live, value);
    for (size_t round = 0; round < rounds; round++)
        rate(round, "crowded", small, smalls, (unsigned)round * 0x10001u + 1, true);
    look_all(others, small, live, value);
    free_all(others, live);
    free(others);
    for (size_t round = 0; round < rounds; round++)
        printf("{%s}\n", lines[round].text);
    return 0;
}
