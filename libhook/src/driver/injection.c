/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps programs unshared that a profiler or checker watches. Such a tool stands between the
 * library and the driver, and takes the library's calls for the program's:
 *
 *   - small allocations share a page, all of which is valid to the tool, so it misses the errors
 *     that it is run for;
 *   - it saves and restores the card's memory around each kernel that it measures, with calls that
 *     pass no gate and memory that is not counted;
 *   - its measurements include the work of other programs.
 *
 * The driver loads the library that CUDA_INJECTION64_PATH names (compute-sanitizer, nsys, and other
 * users of CUPTI); ncu preloads its library instead.
 */
#define _GNU_SOURCE                  /* dl_iterate_phdr() */
#include "driver/injection.h"

#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "driver/log.h"
#include "driver/setting.h"

static const char *const known[] = { "libcuda-injection.so", "libsanitizer-collection.so" };

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static int find(struct dl_phdr_info *object, size_t size, void *data)
{
    const char **found = data;
    (void)size;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (object->dlpi_name != NULL && strcmp(base_name(object->dlpi_name), known[i]) == 0)
            *found = known[i];
    return *found != NULL;
}

bool injection_forbids(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const char *wanted = setting("NVSHARE_PROFILED");
    if (wanted != NULL && strcmp(wanted, "1") == 0)
        return false;
    const char *path = setting("CUDA_INJECTION64_PATH"), *tool = NULL;
    if (path != NULL && *path != '\0')
        tool = base_name(path);
    else
        dl_iterate_phdr(find, &tool);
    if (tool != NULL && !atomic_flag_test_and_set(&told))
        complain("%s watches this program and would take libnvshare.so's calls for the program's. "
                 "The GPU is used unshared; NVSHARE_PROFILED=1 shares it all the same.", tool);
    return tool != NULL;
}
