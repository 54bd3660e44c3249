/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvshare-checkpoint: has the driver take a process's contexts off the GPUs and put them back.
 *
 *     state PID                    in which state the driver has the process
 *     park PID                     locks it and checkpoints it; unlocks it where that fails
 *     wake PID [OLD=NEW ...]       restores it and unlocks it; each GPU with the UUID OLD is NEW from
 *                                  then on, and a GPU that is not named stays the same. Each GPU
 *                                  that is named stands once on either side
 *
 * and for a process without libnvshare.so, which nothing keeps out of the driver:
 *
 *     hold PID TAG                 locks it and stops its threads; `park` may follow, and does so, too
 *     restore PID                  restores it; it stays locked and stopped, until `wake`
 *     held                         lists processes that are held
 *
 * A thread that asks for the state of a stream or an event takes no lock of the driver, and crashes
 * in a process that is checkpointed (580). So all threads but the one with which the driver restores
 * are stopped from before the checkpoint until after the unlock.
 *
 * One command as arguments, or several as lines of the standard input. Each begins in whatever state
 * the process is, and only does what is missing: a caller or a helper that died in between leaves
 * nothing that the same command does not finish. Answers are lines:
 *
 *     step NAME CODE MICROSECONDS WORDS      a call of the driver, its result and what it means
 *     held PID TAG                           a process that is held
 *     state STATE                            the last line: running, locked, checkpointed, failed,
 *                                            or none: the driver knows no such process, or is none
 *
 * It links nothing of CUDA, so that it can be installed everywhere. It never writes to a GPU itself;
 * but to restore, the driver wants to be initialised in this process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "freezer.h"

#define LOCK_TIMEOUT_MS 5000
#define GPUS_MOST 64

/* As cuda.h of CUDA 12.8 and later has them. */
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

/* The driver's functions; what an older driver lacks stays NULL. */
static struct {
    int (*init)(unsigned);
    int (*error)(int, const char **);
    int (*count)(int *);
    int (*uuid)(unsigned char *, int);
    int (*state)(int, int *);
    int (*restorer)(int, int *);
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

/* False, and the words why, if no driver here can do this. */
static bool open_driver(void)
{
    static bool opened, ready;
    if (opened)
        return ready;
    opened = true;
    uint64_t began = now();
    unsetenv("CUDA_VISIBLE_DEVICES");  /* for all_gpus() */
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return report("open", -1, began, dlerror());
    driver.init = (int (*)(unsigned))dlsym(library, "cuInit");
    driver.error = (int (*)(int, const char **))dlsym(library, "cuGetErrorString");
    driver.count = (int (*)(int *))dlsym(library, "cuDeviceGetCount");
    driver.uuid = (int (*)(unsigned char *, int))dlsym(library, "cuDeviceGetUuid");
    driver.state = (int (*)(int, int *))dlsym(library, "cuCheckpointProcessGetState");
    driver.restorer = (int (*)(int, int *))dlsym(library, "cuCheckpointProcessGetRestoreThreadId");
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

static bool reported(const char *name, uint64_t began, const char *why)
{
    return why == NULL || report(name, -1, began, why);
}

/* All threads stop but that with which the driver restores. */
static bool freeze(int pid)
{
    uint64_t began = now();
    int spared, code;
    if (driver.restorer == NULL)
        return reported("freeze", began, "this driver does not name the thread that restores");
    if ((code = driver.restorer(pid, &spared)) != 0)
        return report("restorer", code, began, NULL);
    return reported("freeze", began, freezer_stop(pid, spared));
}

/* If its threads are stopped, they go on once the driver lets them. */
static void unlock(int pid)
{
    uint64_t none[8] = { 0 };
    if (state_of(pid) == LOCKED)
        step("unlock", driver.unlock, pid, none);
    if (state_of(pid) != LOCKED && state_of(pid) != CHECKPOINTED)
        reported("release", now(), freezer_release(pid));
}

static bool lock(int pid)
{
    struct lock_arguments arguments = { .timeout_ms = LOCK_TIMEOUT_MS };
    return state_of(pid) != RUNNING || step("lock", driver.lock, pid, &arguments);
}

static void park(int pid)
{
    uint64_t none[8] = { 0 };
    bool held = freezer_has(pid);
    lock(pid);
    if (state_of(pid) == LOCKED && !(
            (!held || freeze(pid)) && step("checkpoint", driver.checkpoint, pid, none)))
        unlock(pid);
}

/* libnvshare.so keeps the threads of its process out of the driver by itself. */
static bool has_library(int pid)
{
    char name[32], line[4096];
    bool found = false;
    snprintf(name, sizeof name, "/proc/%d/maps", pid);
    FILE *maps = fopen(name, "re");
    while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL)
        found = strstr(line, "libnvshare.so") != NULL;
    if (maps != NULL)
        fclose(maps);
    return found;
}

static void hold(int pid, const char *tag)
{
    if (state_of(pid) >= FAILED)
        return;
    const char *why = has_library(pid) ? "it has libnvshare.so" : freezer_take(pid, tag);
    if (!reported("hold", now(), why))
        return;
    if (!lock(pid) || state_of(pid) >= FAILED || !freeze(pid))
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

static void print_held(int pid, const char *tag)
{
    printf("held %d %s\n", pid, tag);
}

/* 32 hexadecimal digits, with or without "GPU-" and hyphens. Returns where they end, or NULL. */
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

static bool is_tag(const char *text)
{
    const char *allowed = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-";
    size_t length = strlen(text);
    return length > 0 && length < 128 && strspn(text, allowed) == length;
}

/* False: it is no command. */
static bool obey(char *const *words, int count)
{
    struct pair pairs[GPUS_MOST];
    char *end;
    if (count == 1 && strcmp(words[0], "held") == 0) {
        const char *why = freezer_list(print_held);
        if (why != NULL)
            report("held", -1, now(), why);
        puts("state none");
        return fflush(stdout) == 0;
    }
    long pid = count < 2 ? 0 : strtol(words[1], &end, 10);
    bool wakes = count >= 2 && strcmp(words[0], "wake") == 0;
    bool parks = count == 2 && strcmp(words[0], "park") == 0;
    bool asks = count == 2 && strcmp(words[0], "state") == 0;
    bool restores = count == 2 && strcmp(words[0], "restore") == 0;
    bool holds = count == 3 && strcmp(words[0], "hold") == 0 && is_tag(words[2]);
    if (!(wakes || parks || asks || restores || holds) || *end != '\0' || pid <= 0
        || pid > INT32_MAX || count - 2 > GPUS_MOST)
        return false;
    unsigned number = wakes ? (unsigned)(count - 2) : 0;
    for (unsigned i = 0; i < number; i++)
        if (!read_pair(words[i + 2], &pairs[i]))
            return false;
    bool ready = open_driver();
    if (ready && parks)
        park((int)pid);
    else if (ready && holds)
        hold((int)pid, words[2]);
    else if (ready && !asks)
        restore((int)pid, pairs, number);
    if (ready && wakes)
        unlock((int)pid);
    printf("state %s\n", STATES[ready ? state_of((int)pid) : NONE]);
    return fflush(stdout) == 0;
}

static int obey_lines(void)
{
    char line[8192], *words[GPUS_MOST + 2], *rest;
    while (fgets(line, sizeof line, stdin) != NULL) {
        int count = 0;
        for (char *word = strtok_r(line, " \n", &rest); word != NULL && count < GPUS_MOST + 2;
             word = strtok_r(NULL, " \n", &rest))
            words[count++] = word;
        if (count > 0 && !obey(words, count))
            return 2;
    }
    return ferror(stdin) != 0;
}

int main(int count, char **words)
{
    if (count == 1)
        return obey_lines();
    if (obey(words + 1, count - 1))
        return 0;
    fputs("usage: nvshare-checkpoint state|park|restore|wake PID [OLD=NEW ...], hold PID TAG, or held\n", stderr);
    return 2;
}
