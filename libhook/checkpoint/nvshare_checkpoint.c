/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvshare-checkpoint: checkpoints processes with the driver, and restores them.
 *
 *     state PID                    reports the driver's state of the process
 *     park PID                     locks and checkpoints it; unlocks it if that fails
 *     wake PID [OLD=NEW ...]       restores and unlocks it. NEW replaces the GPU with the UUID OLD;
 *                                  other GPUs stay. Each named GPU must be once OLD, once NEW
 *
 * A thread that queries a stream or an event takes no lock of the driver, and crashes in a process
 * that is checkpointed (driver 580). So the process must have libnvshare.so, which keeps its threads
 * out of the driver.
 *
 * A command is given as arguments, or several as lines of the standard input. Each command does the
 * steps that are missing in the current state of the process, so it can be repeated after its
 * caller or this program was killed. The answer consists of lines:
 *
 *     step NAME CODE MICROSECONDS WORDS      a call of the driver: its result as number and text
 *     state STATE                            the last line: running, locked, checkpointed, failed,
 *                                            or none: no such process, or no usable driver
 *
 * Orders on a socket are taken from the daemon alone (caller.h); the exit status is 3 for others.
 *
 * The program is not linked with CUDA, so that it can be installed everywhere. It calls cuInit(),
 * because the driver restores only from an initialised process, and creates no context.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "caller.h"

#define LOCK_TIMEOUT_MS 5000
#define GPUS_MOST 64

/* Layouts of cuda.h, CUDA 12.8 and later. */
struct pair {
    unsigned char old_uuid[16], new_uuid[16];
};

struct lock_arguments {
    unsigned timeout_ms, reserved;
    uint64_t zero[7];
};

struct restore_arguments {
    const struct pair *pairs;
    unsigned count;
    char reserved[44];
    uint64_t zero;
};

_Static_assert(sizeof(struct lock_arguments) == 64 && sizeof(struct restore_arguments) == 64,
               "the driver's arguments have 64 bytes");

enum state { RUNNING, LOCKED, CHECKPOINTED, FAILED, NONE };

static const char *const STATES[] = { "running", "locked", "checkpointed", "failed", "none" };

/* The driver's functions; NULL: the driver is older and has no such function. */
static struct {
    int (*init)(unsigned);
    int (*error)(int, const char **);
    int (*count)(int *);
    int (*uuid)(unsigned char *, int);
    int (*state)(int, int *);
    int (*lock)(int, void *);
    int (*checkpoint)(int, void *);
    int (*restore)(int, void *);
    int (*unlock)(int, void *);
} driver;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

static bool report(const char *step, int code, uint64_t began, const char *words)
{
    const char *known = NULL;
    if (words == NULL && driver.error != NULL && driver.error(code, &known) == 0)
        words = known;
    printf("step %s %d %llu %s\n", step, code, (unsigned long long)(now() - began),
           words != NULL ? words : "no words for it");
    return code == 0;
}

/* Loads the driver, once. Returns false, and reports the reason, if the driver is unusable. */
static bool open_driver(void)
{
    static bool opened, ready;
    if (opened)
        return ready;
    opened = true;
    uint64_t began = now();
    unsetenv("CUDA_VISIBLE_DEVICES");  /* all_gpus() needs every GPU */
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return report("open", -1, began, dlerror());
    driver.init = (int (*)(unsigned))dlsym(library, "cuInit");
    driver.error = (int (*)(int, const char **))dlsym(library, "cuGetErrorString");
    driver.count = (int (*)(int *))dlsym(library, "cuDeviceGetCount");
    driver.uuid = (int (*)(unsigned char *, int))dlsym(library, "cuDeviceGetUuid");
    driver.state = (int (*)(int, int *))dlsym(library, "cuCheckpointProcessGetState");
    driver.lock = (int (*)(int, void *))dlsym(library, "cuCheckpointProcessLock");
    driver.checkpoint = (int (*)(int, void *))dlsym(library, "cuCheckpointProcessCheckpoint");
    driver.restore = (int (*)(int, void *))dlsym(library, "cuCheckpointProcessRestore");
    driver.unlock = (int (*)(int, void *))dlsym(library, "cuCheckpointProcessUnlock");
    if (driver.init == NULL || driver.state == NULL || driver.lock == NULL
        || driver.checkpoint == NULL || driver.restore == NULL || driver.unlock == NULL)
        return report("open", -1, began, "this driver cannot checkpoint; 570 and later can");
    ready = report("init", driver.init(0), began, NULL);
    return ready;
}

static enum state state_of(int pid)
{
    int state;
    return driver.state(pid, &state) == 0 && state >= RUNNING && state <= FAILED
               ? (enum state)state : NONE;
}

static bool step(const char *name, int (*call)(int, void *), int pid, void *arguments)
{
    uint64_t began = now();
    return report(name, call(pid, arguments), began, NULL);
}

static void unlock(int pid)
{
    uint64_t none[8] = { 0 };
    if (state_of(pid) == LOCKED)
        step("unlock", driver.unlock, pid, none);
}

static void park(int pid)
{
    struct lock_arguments arguments = { .timeout_ms = LOCK_TIMEOUT_MS };
    uint64_t none[8] = { 0 };
    if (state_of(pid) == RUNNING)
        step("lock", driver.lock, pid, &arguments);
    if (state_of(pid) == LOCKED && !step("checkpoint", driver.checkpoint, pid, none))
        unlock(pid);
}

/* Adds the GPUs that are not among `count` pairs, each as itself: the driver refuses pairs that do
 * not contain all GPUs of the machine (580), whichever of them the process uses. Returns the number
 * of pairs. */
static unsigned all_gpus(struct pair pairs[GPUS_MOST], unsigned count)
{
    unsigned given = count;
    int gpus = 0;
    if (driver.count == NULL || driver.uuid == NULL || driver.count(&gpus) != 0)
        return count;
    for (int gpu = 0; gpu < gpus && count < GPUS_MOST; gpu++) {
        struct pair *next = &pairs[count];
        unsigned same = 0;
        if (driver.uuid(next->old_uuid, gpu) != 0)
            continue;
        while (same < given && memcmp(pairs[same].old_uuid, next->old_uuid, 16) != 0)
            same++;
        memcpy(next->new_uuid, next->old_uuid, 16);
        count += same == given;
    }
    return count;
}

static void restore(int pid, struct pair pairs[GPUS_MOST], unsigned count)
{
    struct restore_arguments arguments = { 0 };
    if (count != 0) {
        arguments.count = all_gpus(pairs, count);
        arguments.pairs = pairs;
    }
    if (state_of(pid) == CHECKPOINTED)
        step("restore", driver.restore, pid, &arguments);
}

/* Reads 32 hexadecimal digits, with or without "GPU-" and hyphens. Returns the end of the UUID, or
 * NULL if the text begins with none. */
static const char *read_uuid(const char *text, unsigned char uuid[16])
{
    if (strncmp(text, "GPU-", 4) == 0)
        text += 4;
    for (int i = 0; i < 16; i++) {
        char digits[3] = { 0 }, *end;
        text += *text == '-';
        if (text[0] == '\0' || text[1] == '\0')
            return NULL;
        memcpy(digits, text, 2);
        uuid[i] = (unsigned char)strtoul(digits, &end, 16);
        if (end != digits + 2)
            return NULL;
        text += 2;
    }
    return text;
}

static bool read_pair(const char *text, struct pair *pair)
{
    const char *rest = read_uuid(text, pair->old_uuid);
    rest = rest == NULL || *rest != '=' ? NULL : read_uuid(rest + 1, pair->new_uuid);
    return rest != NULL && *rest == '\0';
}

/* Carries out a command and prints the answer. Returns false if the command is malformed. */
static bool run(char *const *words, int count)
{
    struct pair pairs[GPUS_MOST];
    char *end;
    long pid = count < 2 ? 0 : strtol(words[1], &end, 10);
    bool wakes = count >= 2 && strcmp(words[0], "wake") == 0;
    bool parks = count == 2 && strcmp(words[0], "park") == 0;
    bool queries = count == 2 && strcmp(words[0], "state") == 0;
    if (!(wakes || parks || queries) || *end != '\0' || pid <= 0
        || pid > INT32_MAX || count - 2 > GPUS_MOST)
        return false;
    unsigned number = wakes ? (unsigned)(count - 2) : 0;
    for (unsigned i = 0; i < number; i++)
        if (!read_pair(words[i + 2], &pairs[i]))
            return false;
    bool ready = open_driver();
    if (ready && parks)
        park((int)pid);
    if (ready && wakes) {
        restore((int)pid, pairs, number);
        unlock((int)pid);
    }
    printf("state %s\n", STATES[ready ? state_of((int)pid) : NONE]);
    return fflush(stdout) == 0;
}

static int run_lines(void)
{
    char line[8192], *words[GPUS_MOST + 2], *rest, why[128];
    if (caller_refusal(STDIN_FILENO, why, sizeof why) != NULL) {
        fprintf(stderr, "nvshare-checkpoint takes no orders from %s\n", why);
        return 3;
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        int count = 0;
        for (char *word = strtok_r(line, " \n", &rest); word != NULL && count < GPUS_MOST + 2;
             word = strtok_r(NULL, " \n", &rest))
            words[count++] = word;
        if (count > 0 && !run(words, count))
            return 2;
    }
    return ferror(stdin) != 0;
}

int main(int count, char **words)
{
    if (count == 1)
        return run_lines();
    if (run(words + 1, count - 1))
        return 0;
    fputs("usage: nvshare-checkpoint state|park|wake PID [OLD=NEW ...]\n", stderr);
    return 2;
}
