/* SPDX-License-Identifier: Apache-2.0 */
/* Programs: modules, libraries, and the functions in them. */
#pragma once

#include "engine/kernels.h"
#include "engine/work.h"

/* A CUfunction, or a CUkernel of a library, which belongs to no context. */
struct function {
    const struct kernel *kernel;
    struct context *context;         /* NULL: a library's */
    struct module *module;
};

/* A `.global` array of bytes in device memory. */
struct variable {
    char name[64];
    CUdeviceptr address;
    size_t size;
};

struct module {
    struct context *context;         /* NULL: a library */
    unsigned long long context_id;   /* an instance's: a primary context may come back as another */
    struct function *functions;
    size_t count;
    struct variable *variables;
    size_t variable_count;
    struct module *instances;        /* a library's, one per context that used it */
    struct module *next;
};

/* What a CUfunction or CUkernel handle means; NULL: nothing. */
const struct function *function_from(CUfunction handle);

/* Without a context: a library. */
CUresult module_load(const char *image, struct context *context, struct module **result);
CUresult module_load_file(const char *path, struct context *context, struct module **module);
void module_unload(struct module *module);
struct function *module_find(struct module *module, const char *name);

/* A kernel's work, with its parameters copied out of `parameters` or `extra`. The
 * function must belong to the context, if one is given. */
CUresult launch_work(CUfunction function, const unsigned grid[3], const unsigned block[3],
                     void *const *parameters, void *const *extra, struct context *context,
                     struct work *work);
