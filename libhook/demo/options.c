/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

static const char usage[] =
    "Usage: nvshare-workload [OPTION...]\n"
    "Fills GPU memory, computes on all of it step by step, and checks every word on the CPU.\n"
    "\n"
    "  --memory SIZE    how much to allocate: bytes, 512MiB, 1.5GiB, or 70% of the free memory\n"
    "                   (default 50%)\n"
    "  --chunk SIZE     bytes of each allocation (default 64MiB)\n"
    "  --used SIZE      use only so much of it, at its end; such as 10% of it (default 100%)\n"
    "  --change SIZE    change only so much of the used memory, at its end, and sum up the rest\n"
    "                   in each step (default 100%)\n"
    "  --steps N        how often to compute on all of it (default 8)\n"
    "  --seconds N      instead, for so long from the start on\n"
    "  --until-told     instead, until standard input ends\n"
    "  --rounds N       in each step advance each word by N rounds of a generator; the CPU has a\n"
    "                   formula for the result. Otherwise each word is mixed once, and the CPU\n"
    "                   computes it word by word\n"
    "  --copy SIZE      before each step copy so much from page-locked host memory to the GPU, to\n"
    "                   memory of its own there (default none)\n"
    "  --cpu-ms N       compute on the CPU for N milliseconds after each step (default 0)\n"
    "  --kernel-us N    keep the GPU busy N microseconds longer for each chunk (default 0)\n"
    "  --threads N      share the chunks among N threads with a stream each (default 1)\n"
    "  --seed N         other numbers, another checksum (default 1)\n"
    "  --device N       which GPU (default 0)\n"
    "  --no-check       print the checksum, but do not compute on the CPU what it must be\n"
    "  --hold           only allocate, and keep it until standard input ends\n"
    "  --json           one JSON object a line instead of text\n"
    "\n"
    "Exit status: 0 right, 1 wrong result or an error of the GPU, 2 wrong option,\n"
    "3 out of GPU memory, 5 no CUDA driver.\n";

static uint64_t number(const char *option, const char *text, uint64_t least, uint64_t most)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value < least || value > most)
        device_die(EXIT_USAGE, "--%s: '%s' is not a number from %llu to %llu", option, text,
                   (unsigned long long)least, (unsigned long long)most);
    return value;
}

/* A size in bytes, or 0 with *share set where the text is a percentage and `share` is given. */
static uint64_t size(const char *option, const char *text, double *share)
{
    static const struct { const char *unit; double bytes; } units[] = {
        {"", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
    };
    char *end;
    double value = strtod(text, &end);
    if (end != text && value > 0) {
        if (share != NULL && strcmp(end, "%") == 0 && value <= 100) {
            *share = value / 100;
            return 0;
        }
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (strcmp(end, units[i].unit) == 0 && value * units[i].bytes >= 8
                && value * units[i].bytes < 0x1p60)
                return (uint64_t)(value * units[i].bytes) / 8 * 8;
    }
    device_die(EXIT_USAGE, "--%s: '%s' is not a size; write for example 512MiB%s", option, text,
               share != NULL ? " or 70%" : "");
}

struct options options_parse(int count, char **arguments)
{
    enum {
        HELP, MEMORY, CHUNK, USED, CHANGE, STEPS, SECONDS, ROUNDS, COPY, CPU_MS, KERNEL_US, THREADS,
        SEED, DEVICE, CHECK, HOLD, JSON, UNTIL_TOLD,
    };
    static const struct option known[] = {
        {"help", no_argument, NULL, HELP},
        {"memory", required_argument, NULL, MEMORY},
        {"chunk", required_argument, NULL, CHUNK},
        {"used", required_argument, NULL, USED},
        {"change", required_argument, NULL, CHANGE},
        {"steps", required_argument, NULL, STEPS},
        {"seconds", required_argument, NULL, SECONDS},
        {"until-told", no_argument, NULL, UNTIL_TOLD},
        {"rounds", required_argument, NULL, ROUNDS},
        {"copy", required_argument, NULL, COPY},
        {"cpu-ms", required_argument, NULL, CPU_MS},
        {"kernel-us", required_argument, NULL, KERNEL_US},
        {"threads", required_argument, NULL, THREADS},
        {"seed", required_argument, NULL, SEED},
        {"device", required_argument, NULL, DEVICE},
        {"no-check", no_argument, NULL, CHECK},
        {"hold", no_argument, NULL, HOLD},
        {"json", no_argument, NULL, JSON},
        {0},
    };
    struct options options = {
        .share = 0.5, .used_share = 1, .changed_share = 1, .chunk = 64u << 20, .steps = 8,
        .threads = 1, .seed = 1, .check = true,
    };
    int which, index = 0;
    while ((which = getopt_long(count, arguments, "", known, &index)) != -1) {
        const char *name = known[index].name;
        switch (which) {
        case HELP: fputs(usage, stdout); exit(EXIT_RIGHT);
        case MEMORY: options.memory = size(name, optarg, &options.share); break;
        case CHUNK: options.chunk = size(name, optarg, NULL); break;
        case USED: options.used = size(name, optarg, &options.used_share); break;
        case CHANGE: options.changed = size(name, optarg, &options.changed_share); break;
        case SECONDS: options.seconds = number(name, optarg, 1, UINT32_MAX); break;
        case UNTIL_TOLD: options.until_told = true; break;
        case ROUNDS: options.rounds = number(name, optarg, 1, UINT32_MAX); break;
        case STEPS: options.steps = number(name, optarg, 0, UINT32_MAX); break;
        case COPY: options.copied = size(name, optarg, NULL); break;
        case CPU_MS: options.cpu_ms = number(name, optarg, 0, UINT32_MAX); break;
        case KERNEL_US: options.kernel_us = number(name, optarg, 0, UINT32_MAX); break;
        case THREADS: options.threads = number(name, optarg, 1, 1024); break;
        case SEED: options.seed = number(name, optarg, 0, UINT64_MAX); break;
        case DEVICE: options.device = (int)number(name, optarg, 0, INT_MAX); break;
        case CHECK: options.check = false; break;
        case HOLD: options.hold = true; break;
        case JSON: options.json = true; break;
        default: exit(EXIT_USAGE);       /* getopt_long has printed what is wrong */
        }
    }
    if (options.seconds != 0 || options.until_told)
        options.steps = 0;               /* the number of steps is not known */
    if (optind < count)
        device_die(EXIT_USAGE, "'%s' is not an option; see --help", arguments[optind]);
    return options;
}
