/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shared/shared_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x6e767368617265ull
#define LAYOUT 10
#define EXPORTS 4096

struct slot {
    pid_t pid;                       /* 0: the slot is free */
    uint64_t namespace;              /* pid namespace of `pid`; each container has one */
    uint64_t started;                /* start time; pid, namespace and start time identify a
                                        process uniquely */
    uint64_t bytes[SHARED_GPUS];
    int32_t contexts[SHARED_GPUS];
    _Atomic uint32_t state;          /* enum shared_life; threads sleep on it (futex) while it is
                                        not SHARED_RUNS */
    _Atomic uint32_t calls;          /* threads inside a call that takes the driver's lock */
    _Atomic uint32_t polls;          /* threads inside a call that does not */
    uint64_t saved_bytes[SHARED_GPUS];       /* bytes of each GPU while the process is
                                                checkpointed */
    int32_t saved_contexts[SHARED_GPUS];
    bool managed, refused;           /* the process has had managed memory; a checkpoint was
                                        refused because of it */
    bool lost;                       /* a restore lacked memory: none can succeed any more */
    int8_t shift[SHARED_GPUS];       /* index of the GPU on which the process was restored, minus
                                        that on which it began */
};

struct export {
    uint64_t id;                     /* 0: the entry is free */
    uint64_t bytes;
    int32_t gpu;
    int32_t maker;                   /* slot of the process that created the memory; -1: it has
                                        released it */
    uint8_t holders[SHARED_PROCESSES / 8];
};

struct shared {
    uint64_t magic, layout;
    pthread_mutex_t lock;            /* robust; protects slots, exports and settings. Locked
                                        after all other locks */
    int32_t gpus;
    uint64_t total[SHARED_GPUS];
    uint64_t serial;                 /* random: the inode of another folder may have the same number,
                                        on another file system or after this one was removed */
    uint64_t exports_made;
    int32_t exports_end;             /* the exports from this index on were never used */
    _Atomic uint64_t copies_end[SHARED_GPUS][DIRECTIONS];
    _Atomic uint64_t busy[SHARED_GPUS];
    struct slot slots[SHARED_PROCESSES];
    struct export exports[EXPORTS];
};

static struct {
    pthread_mutex_t opening;         /* protects the pointer while it is set */
    struct shared *_Atomic map;
    _Atomic int slot;                /* of this process; -1 until it takes memory */
    pid_t pid;                       /* the process that owns the slot; a forked child owns none */
    int file;                        /* descriptor of a file that this process locks while it runs:
                                        processes of other pid namespaces test the lock */
    ino_t inode;                     /* inode of the locked file */
    uint64_t namespace;
    char directory[4096];            /* NVSHARE_SIM_DIR, or its default */
    uint64_t copy_rate, nvlink_rate; /* bytes per second in each direction; 0: not limited */
    bool none;                       /* this process finds no GPU (NVSHARE_SIM_GPUS=0) */
} self = {.opening = PTHREAD_MUTEX_INITIALIZER, .slot = -1};

uint64_t monotonic_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Reads the start time of a process, in clock ticks since boot, from /proc/PID/stat; see proc(5).
 * False: the process holds no memory. It has ended, although its parent may not have waited for it.
 * A process is a zombie with several threads if its main thread has ended before the others. */
static bool read_start_time(pid_t pid, uint64_t *started)
{
    char path[64], text[1024] = "", state;
    long threads;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    /* The name of the process, in parentheses, may contain any character. */
    const char *fields = length > 0 ? strrchr(text, ')') : NULL;
    return fields != NULL
        && sscanf(fields, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                  "%ld %*s %" SCNu64, &state, &threads, started) == 3
        && ((state != 'Z' && state != 'X') || threads > 1);
}

static bool process_lives(const struct slot *slot)
{
    uint64_t started;
    return read_start_time(slot->pid, &started) && started == slot->started;
}

/* Reads a size, and leaves `*text` behind it and behind `between`; "": nothing may follow. */
static uint64_t read_size(const char *name, const char **text, const char *between)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(*text, &end, 10);
    const char *units = "KMGT", *unit = *end != '\0' ? strchr(units, *end) : NULL;
    int shift = unit != NULL ? 10 * (int)(unit - units + 1) : 0;
    if (unit != NULL)
        end++;
    bool ends = *end == '\0' || *end == *between;
    if (end == *text || !ends || errno != 0 || **text == '-' || value > UINT64_MAX >> shift) {
        fprintf(stderr, "simulated GPU: %s=%s is not a size; write bytes, or a number with "
                "K, M, G or T after it.\n", name, secure_getenv(name));
        exit(2);
    }
    *text = *end != '\0' ? end + 1 : end;
    return (uint64_t)value << shift;
}

uint64_t size_setting(const char *name, uint64_t otherwise)
{
    const char *text = secure_getenv(name);
    return text != NULL && *text != '\0' ? read_size(name, &text, "") : otherwise;
}

/* The sizes of the cards in the variable, with commas between; the last one is that of the rest. */
static void read_memory(uint64_t total[SHARED_GPUS])
{
    const char *name = "NVSHARE_SIM_MEMORY", *text = secure_getenv(name);
    for (int gpu = 0; gpu < SHARED_GPUS; gpu++)
        if (text != NULL && *text != '\0')
            total[gpu] = read_size(name, &text, ",");
        else
            total[gpu] = gpu == 0 ? 1ull << 30 : total[gpu - 1];
}

/* The file lock of a slot: a byte behind the file's end, by the slot's index. */
static struct flock slot_lock(int index)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET,
                          .l_start = (off_t)sizeof(struct shared) + index, .l_len = 1};
}

/* False: the program has closed the descriptor, or opened another file with its number. */
static bool file_is_there(void)
{
    struct stat status;
    return fstat(self.file, &status) == 0 && status.st_ino == self.inode;
}

/* Whether a process maps the file of the shared state, which may have another path in its container. */
static bool maps_state(pid_t pid)
{
    char path[64], line[sizeof self.directory + 128];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        unsigned long long inode = 0;
        sscanf(line, "%*s %*s %*s %*s %llu", &inode);
        found = inode == self.inode && strstr(line, "/gpus\n") != NULL;
    }
    if (file != NULL)
        fclose(file);
    return found;
}

/* The driver keeps the state of a checkpointed process in that process. So a slot in this state
 * outlives its process, and belongs again to the process that CRIU makes of it: this has the same
 * pid, another start time, and maps the state without having taken a slot. The pid namespace is
 * another one after a restart of a system container. */
static bool slot_is_saved(const struct slot *slot)
{
    return atomic_load(&slot->state) == SHARED_CHECKPOINTED;
}

static bool adopt_slot(struct slot *slot)
{
    uint64_t started;
    if (!slot_is_saved(slot) || !maps_state(slot->pid) || !read_start_time(slot->pid, &started))
        return false;
    slot->started = started;
    slot->namespace = self.namespace;
    return true;
}

static bool slot_lives(const struct shared *map, int index)
{
    const struct slot *slot = &map->slots[index];
    /* The own one, too, after a restart of the container: self.namespace is of the time before. */
    if (index == atomic_load(&self.slot) && self.pid == getpid())
        return true;
    if (slot->pid == 0 || slot->namespace == self.namespace)
        return slot->pid != 0 && process_lives(slot);
    struct flock lock = slot_lock(index);
    return !file_is_there() || fcntl(self.file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static void name_of(uint64_t id, char *path, size_t size)
{
    snprintf(path, size, "%s/memory-%llu", self.directory, (unsigned long long)id);
}

int shared_file(uint64_t id, bool first)
{
    char path[sizeof self.directory + 64];
    name_of(id, path, sizeof path);
    return open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (first ? O_CREAT | O_TRUNC : 0), 0600);
}

/* Opens an exported allocation's file with a lock, which lasts until all copies are closed. */
int shared_descriptor(uint64_t id)
{
    int file = shared_file(id, false);
    if (file >= 0 && flock(file, LOCK_SH) != 0) {
        close(file);
        return -1;
    }
    return file;
}

/* Removes the file of an export of which no descriptor is open. False: one is open. */
static bool forget_export(uint64_t id)
{
    char path[sizeof self.directory + 64];
    int file = shared_file(id, false);
    bool open = file >= 0 ? flock(file, LOCK_EX | LOCK_NB) != 0 : errno != ENOENT;
    if (file >= 0)
        close(file);
    name_of(id, path, sizeof path);
    return !open && (file < 0 || unlink(path) == 0);
}

/* Removes a process from the holders of an export. The lock is held. */
static void release_hold(struct export *export, int slot)
{
    export->holders[slot / 8] &= (uint8_t)~(1u << slot % 8);
    if (export->maker == slot)
        export->maker = -1;
}

/* Releases memory and exports of processes that have ended. The lock is held. */
static void sweep(struct shared *map)
{
    for (int i = 0; i < SHARED_PROCESSES; i++) {
        struct slot *slot = &map->slots[i];
        if (slot->pid == 0 || slot_lives(map, i) || (slot->started != 0 && slot_is_saved(slot)))
            continue;
        memset(slot, 0, sizeof *slot);
        for (int j = 0; j < map->exports_end; j++)
            release_hold(&map->exports[j], i);
    }
    for (int j = 0; j < map->exports_end; j++) {
        static const uint8_t no_holder[SHARED_PROCESSES / 8];
        struct export *export = &map->exports[j];
        if (export->id != 0 && memcmp(export->holders, no_holder, sizeof no_holder) == 0
            && forget_export(export->id))
            export->id = 0;
    }
}

static struct shared *lock_shared(void)
{
    struct shared *map = atomic_load(&self.map);
    /* The previous holder of the lock has ended; at worst its own slot is inconsistent, and the
     * next sweep clears it. */
    if (pthread_mutex_lock(&map->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&map->lock);
    return map;
}

static void unlock_shared(struct shared *map)
{
    pthread_mutex_unlock(&map->lock);
}

static void unlock_at_end(struct shared *const *map)
{
    unlock_shared(*map);
}
/* The shared state, locked until the end of the block. */
#define LOCKED_SHARED(map)                                                               \
    __attribute__((cleanup(unlock_at_end))) struct shared *const map = lock_shared()

/* Reads the file `settings` in the folder. Its owner's settings override the environment, so
 * that no other process changes the GPUs. */
static void read_settings(uint64_t *gpus, uint64_t total[SHARED_GPUS])
{
    uint64_t each = 0;
    char path[sizeof self.directory + 64];
    snprintf(path, sizeof path, "%s/settings", self.directory);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    int found = fscanf(file, "gpus %" SCNu64 " memory %" SCNu64, gpus, &each);
    fclose(file);
    if (found != 2) {
        fprintf(stderr, "simulated GPU: %s is not \"gpus N\" and \"memory BYTES\".\n", path);
        exit(2);
    }
    for (int gpu = 0; gpu < SHARED_GPUS; gpu++)
        total[gpu] = each;
}

/* Writes number and memory of the GPUs unless a living process uses the old values. The file is
 * locked. */
static void configure(struct shared *map)
{
    if (map->magic != MAGIC || map->layout != LAYOUT) {
        memset(map, 0, sizeof *map);
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&map->lock, &attributes);
        pthread_mutexattr_destroy(&attributes);
        while (getrandom(&map->serial, sizeof map->serial, 0) < 0)
            continue;                /* a signal came */
        map->layout = LAYOUT;
        map->magic = MAGIC;
    }
    if (pthread_mutex_lock(&map->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&map->lock);
    sweep(map);
    bool used = false;
    for (int i = 0; i < SHARED_PROCESSES; i++)
        used = used || slot_lives(map, i);
    uint64_t gpus = size_setting("NVSHARE_SIM_GPUS", 1);
    uint64_t total[SHARED_GPUS];
    read_memory(total);
    self.none = gpus == 0;
    read_settings(&gpus, total);
    if (!used && !self.none) {
        map->gpus = gpus > SHARED_GPUS ? SHARED_GPUS : (int32_t)gpus;
        memcpy(map->total, total, sizeof total);
    }
    pthread_mutex_unlock(&map->lock);
}

static int open_file(void)
{
    char path[4096];
    const char *directory = secure_getenv("NVSHARE_SIM_DIR");
    const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
    if (directory != NULL && *directory != '\0')
        snprintf(path, sizeof path, "%s", directory);
    else if (runtime != NULL && *runtime == '/' && access(runtime, W_OK) == 0)
        snprintf(path, sizeof path, "%s/nvshare-simulator", runtime);
    else
        snprintf(path, sizeof path, "/dev/shm/nvshare-simulator-%u", (unsigned)getuid());
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return -1;
    size_t length = strlen(path);
    memcpy(self.directory, path, length + 1);
    snprintf(path + length, sizeof path - length, "/gpus");
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static bool map_file(void)
{
    int file = open_file();
    struct stat status, namespace;
    if (file < 0)
        return false;
    fstat(file, &status);
    self.file = file;
    self.inode = status.st_ino;
    self.namespace = stat("/proc/self/ns/pid", &namespace) == 0 ? namespace.st_ino : 0;
    void *map = MAP_FAILED;
    if (flock(file, LOCK_EX) == 0 && ftruncate(file, sizeof(struct shared)) == 0)
        map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map != MAP_FAILED)
        configure(map);
    int error = errno;
    flock(file, LOCK_UN);
    if (map == MAP_FAILED)
        close(file);
    errno = error;
    if (map == MAP_FAILED)
        return false;
    self.copy_rate = size_setting("NVSHARE_SIM_COPY_RATE", 0);
    self.nvlink_rate = size_setting("NVSHARE_SIM_NVLINK_RATE", 0);
    atomic_store(&self.map, map);
    return true;
}

uint64_t shared_serial(void)
{
    return atomic_load(&self.map)->serial;
}

bool shared_open(void)
{
    pthread_mutex_lock(&self.opening);
    bool open = atomic_load(&self.map) != NULL || map_file();
    pthread_mutex_unlock(&self.opening);
    return open;
}

int shared_gpus(void)
{
    if (self.none)
        return 0;
    LOCKED_SHARED(map);
    return map->gpus;
}

uint64_t shared_total(int gpu)
{
    LOCKED_SHARED(map);
    return map->total[shared_actual(gpu)];
}

/* This process's slot, taken at the first call. The lock is held. */
static struct slot *own_slot(struct shared *map)
{
    int index = atomic_load(&self.slot);
    if (index >= 0 && self.pid == getpid())
        return &map->slots[index];
    for (index = 0; index < SHARED_PROCESSES; index++)  /* a slot of the program that ran before
                                                           an exec() */
        if (map->slots[index].pid == getpid() && map->slots[index].namespace == self.namespace)
            map->slots[index].started = 0;
    sweep(map);
    for (int i = 0; i < 2 * SHARED_PROCESSES; i++) {        /* at last slots of saved processes */
        index = i % SHARED_PROCESSES;
        struct slot *slot = &map->slots[index];
        if (slot->pid != 0 && (i < SHARED_PROCESSES || slot_lives(map, index)))
            continue;
        memset(slot, 0, sizeof *slot);
        struct flock lock = slot_lock(index);
        if (file_is_there())
            fcntl(self.file, F_OFD_SETLK, &lock);
        slot->namespace = self.namespace;
        read_start_time(getpid(), &slot->started);
        slot->pid = self.pid = getpid();
        atomic_store(&self.slot, index);
        return slot;
    }
    fprintf(stderr, "simulated GPU: more than %d processes use it.\n", SHARED_PROCESSES);
    abort();
}

int shared_actual(int gpu)
{
    int index = atomic_load(&self.slot);
    const struct shared *map = atomic_load(&self.map);
    return index >= 0 && self.pid == getpid() ? gpu + map->slots[index].shift[gpu] : gpu;
}

static uint64_t sum(const struct shared *map, int gpu)
{
    uint64_t bytes = 0;
    for (int i = 0; i < SHARED_PROCESSES; i++)
        bytes += map->slots[i].bytes[gpu];
    for (int j = 0; j < map->exports_end; j++)
        if (map->exports[j].id != 0 && map->exports[j].gpu == gpu)
            bytes += map->exports[j].bytes;
    return bytes;
}

uint64_t shared_used(int gpu)
{
    LOCKED_SHARED(map);
    sweep(map);
    return sum(map, shared_actual(gpu));
}

bool shared_take(int gpu, uint64_t bytes)
{
    LOCKED_SHARED(map);
    struct slot *slot = own_slot(map);
    gpu = shared_actual(gpu);
    uint64_t total = map->total[gpu];
    bool fits = bytes <= total && sum(map, gpu) <= total - bytes;
    if (!fits) {
        sweep(map);
        fits = bytes <= total && sum(map, gpu) <= total - bytes;
    }
    if (fits)
        slot->bytes[gpu] += bytes;
    return fits;
}

void shared_give_back(int gpu, uint64_t bytes)
{
    LOCKED_SHARED(map);
    own_slot(map)->bytes[shared_actual(gpu)] -= bytes;
}

void shared_count_context(int gpu, int change)
{
    LOCKED_SHARED(map);
    own_slot(map)->contexts[shared_actual(gpu)] += change;
}

uint64_t shared_publish(int gpu, uint64_t bytes)
{
    uint64_t id = 0;
    LOCKED_SHARED(map);
    struct slot *slot = own_slot(map);
    gpu = shared_actual(gpu);
    for (int j = 0; id == 0 && j < EXPORTS; j++) {
        struct export *export = &map->exports[j];
        if (export->id != 0)
            continue;
        memset(export, 0, sizeof *export);
        /* The id contains the index of the entry, by which it is found. */
        id = ++map->exports_made * EXPORTS + (uint64_t)j;
        int index = (int)(slot - map->slots);
        *export = (struct export){.bytes = bytes, .gpu = gpu, .maker = index};
        export->holders[index / 8] = (uint8_t)(1u << index % 8);
        export->id = id;
        if (j >= map->exports_end)
            map->exports_end = j + 1;
        slot->bytes[gpu] -= bytes;
    }
    return id;
}

bool shared_join(uint64_t id)
{
    LOCKED_SHARED(map);
    int index = (int)(own_slot(map) - map->slots);
    struct export *export = &map->exports[id % EXPORTS];
    if (export->id != id)
        return false;
    export->holders[index / 8] |= (uint8_t)(1u << index % 8);
    return true;
}

void shared_leave(uint64_t id)
{
    LOCKED_SHARED(map);
    struct export *export = &map->exports[id % EXPORTS];
    if (export->id == id)
        release_hold(export, (int)(own_slot(map) - map->slots));
    sweep(map);
}

/* Whether /proc/PID here is the process that has the pid `inside` in a pid namespace below. */
static bool is_inside(pid_t pid, pid_t inside)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, text, sizeof text - 1) : -1;
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = '\0';
    char *line = strstr(text, "\nNSpid:"), *end = line != NULL ? strchr(line + 1, '\n') : NULL;
    if (end == NULL)
        return false;
    *end = '\0';
    const char *last = strrchr(line, '\t');  /* the pid in the innermost namespace */
    return last != NULL && atoi(last) == (int)inside;
}

/* Whether the process with the pid here is that of another slot, as far as it was looked up. */
static bool is_of_another(const struct shared *map, int index, pid_t here,
                          const struct slot *found, const pid_t *inside)
{
    for (int i = 0; i < SHARED_PROCESSES; i++)
        if (i != index && found[i].pid == here && found[i].started == map->slots[i].started
            && found[i].namespace == map->slots[i].namespace && inside[i] == map->slots[i].pid)
            return true;
    return false;
}

/* The pid of a slot's process for this process; 0: it sees no such process. The management library
 * lists processes of containers by the pids that they have outside. The lock is held. */
static pid_t visible_pid(const struct shared *map, int index)
{
    static struct slot found[SHARED_PROCESSES];     /* the slots' processes, with the pids here */
    static pid_t inside[SHARED_PROCESSES];
    const struct slot *slot = &map->slots[index];
    struct slot *here = &found[index];
    if (slot->namespace == self.namespace)
        return slot->pid;
    if (inside[index] == slot->pid && here->namespace == slot->namespace
        && here->started == slot->started && process_lives(here))
        return here->pid;
    DIR *processes = opendir("/proc");
    struct slot one = {.namespace = slot->namespace, .started = slot->started};
    for (const struct dirent *entry; processes != NULL && (entry = readdir(processes)) != NULL;) {
        one.pid = atoi(entry->d_name);
        /* Two containers may have started in the same tick, and each have a process 1. */
        if (one.pid > 0 && process_lives(&one) && is_inside(one.pid, slot->pid)
            && !is_of_another(map, index, one.pid, found, inside))
            break;
        one.pid = 0;
    }
    if (processes != NULL)
        closedir(processes);
    *here = one;
    inside[index] = slot->pid;
    return one.pid;
}

int shared_users(int gpu, struct shared_usage *users, int room)
{
    int count = 0;
    LOCKED_SHARED(map);
    sweep(map);
    for (int i = 0; i < SHARED_PROCESSES; i++) {
        const struct slot *slot = &map->slots[i];
        pid_t pid = slot->pid != 0 && slot->contexts[gpu] > 0 ? visible_pid(map, i) : 0;
        if (pid == 0)
            continue;
        uint64_t bytes = slot->bytes[gpu];
        for (int j = 0; j < map->exports_end; j++)
            /* The driver counts exported memory for its creator, and for no process after that
             * process has released it. */
            if (map->exports[j].id != 0 && map->exports[j].gpu == gpu && map->exports[j].maker == i)
                bytes += map->exports[j].bytes;
        if (count < room)
            users[count] = (struct shared_usage){.pid = pid, .bytes = bytes};
        count++;
    }
    return count;
}

uint64_t shared_copy_ends(int gpu, enum shared_direction direction, uint64_t bytes)
{
    uint64_t rate = direction < TO_PEER ? self.copy_rate : self.nvlink_rate;
    if (rate == 0)
        return 0;
    uint64_t takes = (uint64_t)((double)bytes * 1e9 / (double)rate);
    _Atomic uint64_t *engine = &atomic_load(&self.map)->copies_end[shared_actual(gpu)][direction];
    uint64_t now = monotonic_nanoseconds(), free_at = atomic_load(engine), ends;
    do {
        /* A time in the far future was written before a restart of the machine. */
        bool idle = free_at < now || free_at > now + 60000000000ull;
        ends = (idle ? now : free_at) + takes;
    } while (!atomic_compare_exchange_weak(engine, &free_at, ends));
    return ends;
}

void shared_add_busy(int gpu, uint64_t nanoseconds)
{
    atomic_fetch_add(&atomic_load(&self.map)->busy[shared_actual(gpu)], nanoseconds);
}

uint64_t shared_busy(int gpu)
{
    return atomic_load(&atomic_load(&self.map)->busy[shared_actual(gpu)]);
}

void shared_uuid(int gpu, unsigned char uuid[16])
{
    static const unsigned char family[16] = {0x51, 0x3a, 0x7c, 0x0e, 0x9d, 0x42, 0x4b, 0x86,
                                             0xa1, 0x5f, 0x6e, 0x76, 0x73, 0x68, 0x61, 0x00};
    gpu = shared_actual(gpu);
    memcpy(uuid, family, 16);
    uuid[15] = (unsigned char)gpu;
    uuid[0] = (unsigned char)(family[0] + 37 * gpu);
}

static const struct driver {
    const char *version;             /* of a release of the branch, which is the number before
                                        the first dot */
    int cuda;
} drivers[] = {
    {"535.104.05", 12020}, {"545.23.08", 12030}, {"550.54.15", 12040}, {"555.42.06", 12050},
    {"560.35.05", 12060}, {"565.57.01", 12070}, {"570.124.06", 12080}, {"575.57.08", 12090},
    {"580.159.03", 13000},
};

#define DRIVERS (sizeof drivers / sizeof *drivers)

static const struct driver *chosen(void)
{
    const char *branch = secure_getenv("NVSHARE_SIM_DRIVER");
    if (branch == NULL || *branch == '\0')
        return &drivers[DRIVERS - 1];
    for (size_t i = 0; i < DRIVERS; i++)
        if (strcspn(drivers[i].version, ".") == strlen(branch)
            && strncmp(drivers[i].version, branch, strlen(branch)) == 0)
            return &drivers[i];
    fprintf(stderr, "simulated GPU: NVSHARE_SIM_DRIVER=%s is no driver that can be simulated; it is "
            "a branch from 535 to 580, such as 550.\n", branch);
    exit(2);
}

/* Reads the setting once: another thread may change the environment later. */
static const struct driver *driver(void)
{
    static const struct driver *_Atomic known;
    if (known == NULL)
        known = chosen();
    return known;
}

const char *driver_version(void)
{
    return driver()->version;
}

int driver_cuda_version(void)
{
    return driver()->cuda;
}

/*
 * Checkpoints. A slot contains all that a process holds of the GPUs, and the bytes are in the
 * process's own memory. Another process can therefore release the GPU memory of a slot and take it
 * again, on other GPUs as well.
 */

static __thread struct slot *entered;
static __thread bool polls;

void shared_call_begins(bool takes_lock)
{
    int index = atomic_load(&self.slot);
    struct slot *slot = index < 0 ? NULL : &atomic_load(&self.map)->slots[index];
    entered = slot;
    polls = !takes_lock;
    while (slot != NULL) {
        atomic_fetch_add(polls ? &slot->polls : &slot->calls, 1);
        uint32_t state = atomic_load(&slot->state);
        if (state == SHARED_RUNS || (polls && state == SHARED_LOCKED))
            return;
        atomic_fetch_sub(polls ? &slot->polls : &slot->calls, 1);
        if (state != SHARED_LOCKED) {
            fputs("simulated GPU: a program that is checkpointed calls the driver\n", stderr);
            abort();
        }
        syscall(SYS_futex, &slot->state, FUTEX_WAIT, state, NULL, NULL, 0);
    }
}

void shared_call_ends(void)
{
    if (entered != NULL)
        atomic_fetch_sub(polls ? &entered->polls : &entered->calls, 1);
    entered = NULL;
}

/* The lock is held. NULL: the process uses no GPU. */
static struct slot *slot_of(struct shared *map, pid_t pid)
{
    sweep(map);
    for (int i = 0; i < SHARED_PROCESSES; i++)
        if (map->slots[i].pid == pid && map->slots[i].namespace == self.namespace)
            return slot_lives(map, i) || adopt_slot(&map->slots[i]) ? &map->slots[i] : NULL;
    for (int i = 0; i < SHARED_PROCESSES; i++)
        if (map->slots[i].pid == pid && adopt_slot(&map->slots[i]))
            return &map->slots[i];
    return NULL;
}

void shared_has_managed(void)
{
    LOCKED_SHARED(map);
    own_slot(map)->managed = true;
}

int shared_life_of(pid_t pid)
{
    LOCKED_SHARED(map);
    struct slot *slot = slot_of(map, pid);
    return slot == NULL ? -1 : (int)atomic_load(&slot->state);
}

static void enter_state(struct slot *slot, enum shared_life state)
{
    atomic_store(&slot->state, state);
    syscall(SYS_futex, &slot->state, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* The slot of a process in the state `from`; NULL: *result is the reason. The lock is held. */
static struct slot *slot_in(struct shared *map, pid_t pid, enum shared_life from, CUresult *result)
{
    struct slot *slot = slot_of(map, pid);
    bool ready = slot != NULL && atomic_load(&slot->state) == from;
    *result = slot == NULL ? CUDA_ERROR_NOT_INITIALIZED
        : ready ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
    return ready ? slot : NULL;
}

CUresult shared_lock_process(pid_t pid, unsigned timeout_ms)
{
    CUresult result;
    uint64_t until = monotonic_nanoseconds() + timeout_ms * 1000000ull;
    struct shared *map = lock_shared();
    struct slot *slot = slot_in(map, pid, SHARED_RUNS, &result);
    if (slot != NULL)
        enter_state(slot, SHARED_LOCKED);
    unlock_shared(map);
    /* Waits until the threads inside calls have left them; no other thread can enter. */
    while (slot != NULL && atomic_load(&slot->calls) > 0) {
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        if (timeout_ms != 0 && monotonic_nanoseconds() > until) {
            enter_state(slot, SHARED_RUNS);
            return CUDA_ERROR_NOT_READY;
        }
        if (!process_lives(slot))
            return CUDA_ERROR_NOT_INITIALIZED;
    }
    return result;
}

static bool exports(const struct shared *map, const struct slot *slot)
{
    int index = (int)(slot - map->slots);
    for (int j = 0; j < map->exports_end; j++)
        if (map->exports[j].id != 0 && (map->exports[j].holders[index / 8] & 1u << index % 8) != 0)
            return true;
    return false;
}

static bool is_polling(pid_t pid)
{
    CUresult unused;
    LOCKED_SHARED(map);
    const struct slot *slot = slot_in(map, pid, SHARED_LOCKED, &unused);
    return slot != NULL && atomic_load(&slot->polls) > 0;
}

CUresult shared_checkpoint(pid_t pid, uint64_t bytes[SHARED_GPUS])
{
    CUresult result;
    /* A thread that was stopped inside a call keeps locks of the driver, and a real checkpoint
     * hangs; here the wait ends after a while. */
    for (int i = 0; i < 2500 && is_polling(pid); i++)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    LOCKED_SHARED(map);
    struct slot *slot = slot_in(map, pid, SHARED_LOCKED, &result);
    if (slot == NULL)
        return result;
    if (atomic_load(&slot->polls) > 0)
        return CUDA_ERROR_NOT_READY;
    if (slot->managed || exports(map, slot)) {
        result = slot->refused ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_NOT_SUPPORTED;
        slot->refused = slot->managed;
        return result;
    }
    memcpy(slot->saved_bytes, slot->bytes, sizeof slot->bytes);
    memcpy(slot->saved_contexts, slot->contexts, sizeof slot->contexts);
    memcpy(bytes, slot->bytes, sizeof slot->bytes);
    memset(slot->bytes, 0, sizeof slot->bytes);
    memset(slot->contexts, 0, sizeof slot->contexts);
    enter_state(slot, SHARED_CHECKPOINTED);
    return CUDA_SUCCESS;
}

CUresult shared_restore(pid_t pid, const int to[SHARED_GPUS], uint64_t bytes[SHARED_GPUS])
{
    CUresult result;
    LOCKED_SHARED(map);
    struct slot *slot = slot_in(map, pid, SHARED_CHECKPOINTED, &result);
    if (slot == NULL)
        return result;
    if (slot->lost)                      /* the state stays "checkpointed" (580 on an H200) */
        return CUDA_ERROR_OPERATING_SYSTEM;
    memset(bytes, 0, SHARED_GPUS * sizeof *bytes);
    for (int gpu = 0; gpu < map->gpus; gpu++) {
        if (slot->saved_bytes[gpu] == 0 && slot->saved_contexts[gpu] == 0)
            continue;
        if (to[gpu] < 0 || to[gpu] >= map->gpus)
            return CUDA_ERROR_INVALID_VALUE;
        bytes[to[gpu]] += slot->saved_bytes[gpu];
    }
    for (int gpu = 0; gpu < map->gpus; gpu++)
        if (sum(map, gpu) + bytes[gpu] > map->total[gpu]) {
            slot->lost = true;
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    for (int gpu = 0; gpu < map->gpus; gpu++) {
        int card = gpu + slot->shift[gpu];
        if (to[card] >= 0)
            slot->shift[gpu] = (int8_t)(to[card] - gpu);
        if (to[gpu] < 0)
            continue;
        slot->bytes[to[gpu]] += slot->saved_bytes[gpu];
        slot->contexts[to[gpu]] += slot->saved_contexts[gpu];
    }
    enter_state(slot, SHARED_LOCKED);
    return CUDA_SUCCESS;
}

CUresult shared_unlock_process(pid_t pid)
{
    CUresult result;
    LOCKED_SHARED(map);
    struct slot *slot = slot_in(map, pid, SHARED_LOCKED, &result);
    if (slot != NULL)
        enter_state(slot, SHARED_RUNS);
    return result;
}

void shared_uuid_text(int gpu, char text[41])
{
    unsigned char u[16];
    shared_uuid(gpu, u);
    snprintf(text, 41, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12],
             u[13], u[14], u[15]);
}
