/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shared/driver_version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
