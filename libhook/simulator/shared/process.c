/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shared/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads fields of /proc/PID/stat after the process's name, which may contain any character; see
 * proc(5). */
static bool read_fields(pid_t pid, char *state, uint64_t *started)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = '\0';
    char *field = strrchr(text, ')');
    if (field == NULL || field[1] != ' ')
        return false;
    field += 2;                      /* the third field is the state */
    *state = *field;
    for (int i = 3; i < 22 && field != NULL; i++) {
        field = strchr(field, ' ');
        if (field != NULL)
            field++;
    }
    if (field == NULL)
        return false;
    *started = strtoull(field, NULL, 10);
    return true;
}

/* The main thread may end before other threads: the process is then a zombie with several
 * entries in task/. */
static bool has_other_threads(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    if (tasks == NULL)
        return false;
    int count = 0;
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count > 1;
}

uint64_t process_namespace(void)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

uint64_t process_start_time(pid_t pid)
{
    char state;
    uint64_t started = 0;
    return read_fields(pid, &state, &started) ? started : 0;
}

bool process_lives(pid_t pid, uint64_t started)
{
    char state;
    uint64_t now_started;
    if (!read_fields(pid, &state, &now_started) || now_started != started)
        return false;
    return (state != 'Z' && state != 'X') || has_other_threads(pid);
}
