/* SPDX-License-Identifier: Apache-2.0 */
/* NVSHARE_SIM_FAIL=NAME:N[:CODE],... makes the N-th call of NAME fail with CODE, N+ every later
 * call, too. NAME:<SIZE[:CODE] fails calls while the GPU has less than SIZE bytes free. NAME is
 * an exported symbol; one without version and stream suffix, which counts its variants together;
 * or nvlink, which counts each MiB copied between GPUs. CODE is a CUresult: by default out of
 * memory for functions that allocate, else 999. */
#define _GNU_SOURCE
#include "driver/failure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/context.h"
#include "driver/device.h"
#include "shared/shared_state.h"

#define FAILURES 32

struct failure {
    char name[64];
    unsigned long nth;
    bool onwards;
    uint64_t least;                  /* calls fail below so many free bytes; 0: no condition */
    CUresult code;
    _Atomic unsigned long calls;
};

static struct {
    pthread_once_t read;
    struct failure list[FAILURES];
    int count;
} failures = {.read = PTHREAD_ONCE_INIT};

static CUresult usual_code(const char *name)
{
    static const char *const allocating[] = {"cuMemAlloc", "cuMemCreate", "cuMemHostAlloc",
                                             "cuMemHostRegister", "cuMemAddressReserve",
                                             "cuCtxCreate", "cuDevicePrimaryCtxRetain", "cuArray"};
    for (size_t i = 0; i < sizeof allocating / sizeof *allocating; i++)
        FAIL_IF(strncmp(name, allocating[i], strlen(allocating[i])) == 0, CUDA_ERROR_OUT_OF_MEMORY);
    return CUDA_ERROR_UNKNOWN;
}

static bool parse(const char *text, struct failure *failure)
{
    unsigned long code = 0;
    int used = 0, length = (int)strlen(text);
    if (sscanf(text, "%63[A-Za-z0-9_]:<%lu%n", failure->name, &failure->least, &used) == 2) {
        int shift = text[used] == 'K' ? 10 : text[used] == 'M' ? 20 : text[used] == 'G' ? 30 : 0;
        failure->least <<= shift;
        failure->nth = 1;
        used += shift != 0;
    } else if (sscanf(text, "%63[A-Za-z0-9_]:%lu%n", failure->name, &failure->nth, &used) != 2) {
        return false;
    }
    if (text[used] == '+') {
        failure->onwards = true;
        used++;
    }
    failure->onwards |= failure->least != 0;
    failure->code = failure->least != 0 ? CUDA_ERROR_OUT_OF_MEMORY : usual_code(failure->name);
    int more = 0;
    if (sscanf(text + used, ":%lu%n", &code, &more) == 1)
        failure->code = (CUresult)code;
    return used + more == length && failure->nth != 0;
}

static void read_failures(void)
{
    const char *setting = secure_getenv("NVSHARE_SIM_FAIL");
    char *list = setting != NULL ? strdup(setting) : NULL, *rest = list;
    for (char *text; list != NULL && (text = strsep(&rest, ",")) != NULL;) {
        if (*text == '\0')
            continue;
        if (failures.count == FAILURES || !parse(text, &failures.list[failures.count])) {
            fprintf(stderr, "simulated GPU: NVSHARE_SIM_FAIL: '%s' is not NAME:N[+][:CODE], "
                    "as in cuMemCreate:3, nor NAME:<SIZE[:CODE] (at most %d of them).\n", text, FAILURES);
            exit(2);
        }
        failures.count++;
    }
    free(list);
}

static bool named(const char *symbol, const char *name)
{
    size_t length = strlen(name);
    if (strncmp(symbol, name, length) != 0)
        return false;
    const char *suffix = symbol + length;
    if (suffix[0] == '_' && suffix[1] == 'v' && suffix[2] >= '2' && suffix[2] <= '9')
        suffix += 3;
    return *suffix == '\0' || strcmp(suffix, "_ptsz") == 0 || strcmp(suffix, "_ptds") == 0;
}

static bool enough_free(uint64_t least)
{
    const struct context *context = context_current();
    int gpu = context != NULL ? context->device->gpu : 0;
    return least != 0 && shared_total(gpu) - shared_used(gpu) >= least;
}

CUresult injected_failure(const char *name)
{
    pthread_once(&failures.read, read_failures);
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < failures.count; i++) {
        struct failure *failure = &failures.list[i];
        if (!named(name, failure->name) || enough_free(failure->least))
            continue;
        unsigned long call = atomic_fetch_add(&failure->calls, 1) + 1;
        if (call == failure->nth || (failure->onwards && call > failure->nth))
            result = failure->code;
    }
    return result;
}
