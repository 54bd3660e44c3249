/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "freezer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <mntent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "nvshare-"
#define STOPPED "/stopped"
#define PATIENCE_US 5000000      /* time limit for stopping all threads */
#define STEP_US 200              /* for which a thread that may hold a lock runs on */
#define TRIES 64                 /* to stop one thread, before the next thread is tried */
#define REMOVALS 100             /* tries to remove a group, which threads may still be leaving */
#define DESCRIPTORS 16           /* that nftw() may keep open */
#define STACK_WORDS 1024         /* examined above a thread's stack pointer */

static const char ENDED[] = "the process has ended";
static const char LONG_PATH[] = "the path of its control group is too long";

/* The mount point of control groups of version 2; NULL: there is none. */
static const char *cgroup_mount(void)
{
    static char point[PATH_MAX];
    FILE *mounts = point[0] != '\0' ? NULL : setmntent("/proc/self/mounts", "r");
    for (struct mntent *one; mounts != NULL && (one = getmntent(mounts)) != NULL;)
        if (point[0] == '\0' && strcmp(one->mnt_type, "cgroup2") == 0)
            snprintf(point, sizeof point, "%s", one->mnt_dir);
    if (mounts != NULL)
        endmntent(mounts);
    return point[0] != '\0' ? point : NULL;
}

/* Finds the directory of the process's control group; for a process in STOPPED, the parent of
 * STOPPED. */
static const char *find_group(int pid, char folder[PATH_MAX])
{
    char name[32], line[PATH_MAX], *path = NULL;
    const char *top = cgroup_mount();
    if (top == NULL)
        return "there are no control groups of version 2";
    snprintf(name, sizeof name, "/proc/%d/cgroup", pid);
    FILE *file = fopen(name, "re");
    while (file != NULL && path == NULL && fgets(line, sizeof line, file) != NULL)
        path = strncmp(line, "0::/", 4) == 0 ? line + 3 : NULL;
    if (file != NULL)
        fclose(file);
    if (path == NULL)
        return ENDED;
    path[strcspn(path, "\n")] = '\0';
    if (strstr(path, "/..") != NULL)
        return "its control group cannot be seen from here";
    if (snprintf(folder, PATH_MAX, "%s%s", top, strcmp(path, "/") == 0 ? "" : path) >= PATH_MAX)
        return LONG_PATH;
    size_t length = strlen(folder), inner = strlen(STOPPED);
    if (length > inner && strcmp(folder + length - inner, STOPPED) == 0)
        folder[length - inner] = '\0';
    return NULL;
}

/* Returns TAG if the directory is named nvshare-PID-TAG for this process, else NULL. */
static const char *tag_of(const char *folder, int pid)
{
    char prefix[32];
    int length = snprintf(prefix, sizeof prefix, "/" PREFIX "%d-", pid);
    const char *name = strrchr(folder, '/');
    return name != NULL && strncmp(name, prefix, (size_t)length) == 0 ? name + length : NULL;
}

static const char *write_file(const char *folder, const char *file, const char *text)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= PATH_MAX)
        return LONG_PATH;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) > 0;
    int error = errno;
    if (fd >= 0)
        close(fd);
    return done ? NULL : error == ESRCH ? ENDED : strerror(error);
}

static const char *write_number(const char *folder, const char *file, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    return write_file(folder, file, text);
}

static uint64_t now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

static void sleep_step(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = STEP_US * 1000 }, NULL);
}

static size_t read_file(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    size_t length = file == NULL ? 0 : fread(text, 1, size - 1, file);
    text[length] = '\0';
    if (file != NULL)
        fclose(file);
    return length;
}

static void join(char joined[PATH_MAX], const char *folder, const char *rest)
{
    if (snprintf(joined, PATH_MAX, "%s%s", folder, rest) >= PATH_MAX)
        joined[0] = '\0';                        /* a path that names no file */
}

/* Moves the threads to the parent group, where they run, and removes both groups. */
static const char *remove_groups(const char *folder, int pid)
{
    char above[PATH_MAX], inner[PATH_MAX];
    snprintf(above, sizeof above, "%.*s", (int)(strrchr(folder, '/') - folder), folder);
    join(inner, folder, STOPPED);
    write_file(inner, "cgroup.freeze", "0");
    const char *why = write_number(above, "cgroup.procs", pid);
    rmdir(inner);
    for (int i = 0; i < REMOVALS && rmdir(folder) != 0 && errno != ENOENT; i++) {
        sleep_step();
        rmdir(inner);
    }
    return why;
}

bool freezer_contains(int pid)
{
    char folder[PATH_MAX];
    return find_group(pid, folder) == NULL && tag_of(folder, pid) != NULL;
}

const char *freezer_enter(int pid, const char *tag)
{
    char above[PATH_MAX], folder[PATH_MAX], inner[PATH_MAX];
    const char *why = find_group(pid, folder);
    if (why != NULL || tag_of(folder, pid) != NULL)
        return why;
    memcpy(above, folder, sizeof above);
    if (snprintf(folder, sizeof folder, "%s/" PREFIX "%d-%s", above, pid, tag) >= PATH_MAX)
        return LONG_PATH;
    join(inner, folder, STOPPED);
    if (mkdir(folder, 0755) != 0 && errno != EEXIST)
        return strerror(errno);
    if ((why = write_file(folder, "cgroup.type", "threaded")) == NULL
        && mkdir(inner, 0755) != 0 && errno != EEXIST)
        why = strerror(errno);
    if (why != NULL || (why = write_file(inner, "cgroup.type", "threaded")) != NULL
        || (why = write_file(inner, "cgroup.freeze", "1")) != NULL
        || (why = write_number(folder, "cgroup.procs", pid)) != NULL)
        remove_groups(folder, pid);
    return why;
}

/* Whether a thread in this system call waits for an event, so that it can be stopped there. */
static bool is_waiting_call(long call)
{
    static const long waiting[] = {
        SYS_futex, SYS_ppoll, SYS_pselect6, SYS_epoll_pwait, SYS_nanosleep, SYS_clock_nanosleep,
        SYS_restart_syscall, SYS_rt_sigtimedwait, SYS_rt_sigsuspend, SYS_read, SYS_recvfrom,
        SYS_recvmsg, SYS_accept, SYS_accept4, SYS_wait4, SYS_waitid,
#ifdef SYS_poll
        SYS_poll, SYS_select, SYS_epoll_wait, SYS_pause,
#endif
    };
    for (size_t i = 0; i < sizeof waiting / sizeof *waiting; i++)
        if (call == waiting[i])
            return true;
    return false;
}

/* Code of libcuda, or of libc and allocators: the restoring thread needs their locks, too. */
struct code {
    uint64_t begin, end;
    bool driver;
};

static size_t find_code(int pid, struct code *found, size_t most)
{
    char name[32], line[PATH_MAX + 128], rights[8];
    size_t count = 0;
    unsigned long long begin, end;
    int at;
    snprintf(name, sizeof name, "/proc/%d/maps", pid);
    FILE *maps = fopen(name, "re");
    while (maps != NULL && count < most && fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%llx-%llx %7s %*s %*s %*s %n", &begin, &end, rights, &at) < 3
            || rights[2] != 'x')
            continue;
        const char *file = strrchr(line + at, '/');
        bool driver = file != NULL && strncmp(file, "/libcuda.so", 11) == 0;
        if (driver || (file != NULL && (strncmp(file, "/libc.", 6) == 0
                || strncmp(file, "/libc-", 6) == 0 || strncmp(file, "/libpthread", 11) == 0
                || strncmp(file, "/ld-", 4) == 0 || strstr(file, "malloc") != NULL)))
            found[count++] = (struct code){ begin, end, driver };
    }
    if (maps != NULL)
        fclose(maps);
    return count;
}

static bool is_in(uint64_t address, const struct code *code, size_t count, bool driver)
{
    for (size_t i = 0; i < count; i++)
        if (address >= code[i].begin && address < code[i].end && (code[i].driver || !driver))
            return true;
    return false;
}

/* Whether a frozen thread holds no lock of `code`, judged by its program counter and the return
 * addresses on its stack. Stale words on the stack only cause another try. `before`: the stack
 * pointer at the previous try; updated. A thread that waits in the driver at the same stack pointer
 * twice waits for the lock that all driver calls take, or for GPU work, so it holds none. */
static bool holds_no_lock(int pid, int tid, const struct code *code, size_t count, uint64_t *before)
{
    char path[64], text[256];
    uint64_t stack[STACK_WORDS];
    unsigned long long sp, pc;
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", pid, tid);
    if (read_file(path, text, sizeof text) == 0)
        return true;                             /* the thread has ended */
    const char *last = strrchr(text, ' ');
    while (last != NULL && last > text && last[-1] != ' ')
        last--;
    if (last == NULL || sscanf(last, "%llx %llx", &sp, &pc) != 2)
        return false;                            /* the kernel reports "running" */
    bool waits = is_waiting_call(strtol(text, NULL, 10)), again = sp == *before;
    *before = sp;
    if (!waits && is_in(pc, code, count, false))
        return false;
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int mem = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = mem < 0 ? -1 : pread(mem, stack, sizeof stack, (off_t)sp);
    if (mem >= 0)
        close(mem);
    for (ssize_t i = 0; i < size / (ssize_t)sizeof *stack; i++)
        if (is_in(stack[i], code, count, true))
            return waits && again;
    return size > 0;
}

/* Waits until all threads in the group are frozen. Returns false at the time `until`. */
static bool all_frozen(const char *inner, uint64_t until)
{
    char path[PATH_MAX], text[128];
    join(path, inner, "/cgroup.events");
    do {
        if (read_file(path, text, sizeof text) == 0 || strstr(text, "frozen 1") != NULL)
            return true;
        sleep_step();
    } while (now_us() < until);
    return false;
}

/* Lists up to `most` threads of a process, without `spared`. Returns their number. */
static size_t threads_of(int pid, int spared, int *threads, size_t most)
{
    char path[32];
    size_t count = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    for (struct dirent *one; tasks != NULL && count < most && (one = readdir(tasks)) != NULL;)
        if (one->d_name[0] != '.' && atoi(one->d_name) != spared)
            threads[count++] = atoi(one->d_name);
    if (tasks != NULL)
        closedir(tasks);
    return count;
}

static bool is_stopped(int pid, int tid)
{
    char path[64], text[PATH_MAX + 512];
    snprintf(path, sizeof path, "/proc/%d/task/%d/cgroup", pid, tid);
    read_file(path, text, sizeof text);
    const char *unified = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    return unified == NULL || strstr(unified, STOPPED "\n") != NULL;  /* NULL: it has ended */
}

const char *freezer_stop(int pid, int spared)
{
    enum { CODE = 64, THREADS = 65536 };
    static int threads[THREADS];
    char folder[PATH_MAX], inner[PATH_MAX];
    struct code code[CODE];
    uint64_t until = now_us() + PATIENCE_US;
    const char *why = find_group(pid, folder);
    if (why == NULL && tag_of(folder, pid) == NULL)
        why = "its threads have been taken out of their control group";
    join(inner, folder, STOPPED);
    /* Stop all threads at once first, because most threads of most programs sleep. */
    if (why != NULL || (why = write_number(inner, "cgroup.procs", pid)) != NULL
        || (why = write_number(folder, "cgroup.threads", spared)) != NULL)
        return why;
    size_t number = find_code(pid, code, CODE);
    for (bool whole = false, first = true; !whole; first = false) {
        whole = true;
        size_t count = threads_of(pid, spared, threads, THREADS);
        if (!all_frozen(inner, until) || now_us() >= until)
            return "its threads do not stop";
        /* All threads that may hold a lock run on together: one may need a lock of another. */
        for (size_t i = 0; i < count; i++)
            if (!is_stopped(pid, threads[i]))
                whole = false;
            else if (first && !holds_no_lock(pid, threads[i], code, number, &(uint64_t){ 0 })) {
                whole = false;
                write_number(folder, "cgroup.threads", threads[i]);
            }
        for (size_t i = 0; !whole && i < count; i++) {
            uint64_t sp = 0;
            for (int tries = 0; tries < TRIES && !is_stopped(pid, threads[i]); tries++) {
                sleep_step();
                write_number(inner, "cgroup.threads", threads[i]);
                if (!all_frozen(inner, until)
                    || !holds_no_lock(pid, threads[i], code, number, &sp))
                    write_number(folder, "cgroup.threads", threads[i]);
            }
        }
    }
    return NULL;
}

const char *freezer_release(int pid)
{
    char folder[PATH_MAX];
    bool entered = find_group(pid, folder) == NULL && tag_of(folder, pid) != NULL;
    return entered ? remove_groups(folder, pid) : NULL;
}

static void (*found_callback)(int pid, const char *tag);

static int visit_group(const char *folder, const struct stat *status, int type, struct FTW *at)
{
    char *end, group[PATH_MAX];
    const char *name = folder + at->base;
    /* Users may create groups of this name below their own, so only root's groups count. */
    bool named = type == FTW_DP && status->st_uid == geteuid()
                 && strncmp(name, PREFIX, strlen(PREFIX)) == 0;
    long pid = named ? strtol(name + strlen(PREFIX), &end, 10) : 0;
    if (pid <= 0 || pid > INT_MAX || *end != '-')
        return 0;
    /* If the process lives but is not in this group, the group stays: another nvshare-checkpoint
     * may be about to move the process here. */
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) {
        join(group, folder, STOPPED);
        rmdir(group);
        rmdir(folder);
    }
    else if (find_group((int)pid, group) == NULL && strcmp(group, folder) == 0)
        found_callback((int)pid, end + 1);
    return 0;
}

const char *freezer_list(void (*found)(int pid, const char *tag))
{
    const char *top = cgroup_mount();
    found_callback = found;
    return top == NULL || nftw(top, visit_group, DESCRIPTORS, FTW_PHYS | FTW_DEPTH | FTW_MOUNT) >= 0
               ? NULL : strerror(errno);
}
