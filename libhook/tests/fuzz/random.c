/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random COUNT [SEED]     runs that many random inputs, the same for the same seed
 * random FILE...          runs the inputs in files, which libFuzzer found
 * An error is printed with the number of the run, which is the run's seed.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

#define LONGEST 400

static uint64_t seed;

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void tell_seed(int signal_number)
{
    char text[80];
    int length = snprintf(text, sizeof text, "again with: %s 1 %llu\n",
                          program_invocation_short_name, (unsigned long long)seed);
    ssize_t written = write(STDERR_FILENO, text, (size_t)length);
    (void)written;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void run_file(const char *path)
{
    static uint8_t data[1 << 16];
    FILE *file = fopen(path, "rb");
    MUST(file != NULL, "%s cannot be read", path);
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
}

int main(int count, char **arguments)
{
    if (count < 2) {
        fputs("random COUNT [SEED], or random FILE...\n", stderr);
        return 2;
    }
    if (!isdigit((unsigned char)arguments[1][0])) {
        for (int i = 1; i < count; i++)
            run_file(arguments[i]);
        return 0;
    }
    signal(SIGABRT, tell_seed);
    uint64_t runs = strtoull(arguments[1], NULL, 10);
    seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    for (uint64_t end = seed + runs; seed < end; seed++) {
        uint8_t data[LONGEST];
        uint64_t state = seed;
        size_t size = next(&state) % LONGEST;
        for (size_t i = 0; i < size; i++)
            data[i] = (uint8_t)next(&state);
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("%llu runs\n", (unsigned long long)runs);
    return 0;
}
