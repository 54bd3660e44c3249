/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries: programs of no context, with an instance in each that uses them. */
#include <pthread.h>
#include <stdlib.h>

#include "driver/context.h"
#include "driver/entry.h"
#include "driver/object.h"
#include "module/module.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;     /* protects the instances */

static struct module *library_from(CUlibrary handle)
{
    return object_is(handle, OBJECT_LIBRARY) ? (struct module *)handle : NULL;
}

API(cuLibraryLoadData, CUlibrary *library, const void *code, CUjit_option *options, void **values,
    unsigned int count, CUlibraryOption *library_options, void **library_values,
    unsigned int library_count)
{
    ENTER(ENTRY_INIT);
    (void)options, (void)values, (void)count;
    (void)library_options, (void)library_values, (void)library_count;
    return module_load(code, NULL, (struct module **)library);
}

API(cuLibraryUnload, CUlibrary handle)
{
    ENTER(ENTRY_INIT);
    struct module *library = library_from(handle);
    if (library == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    module_unload(library);
    return CUDA_SUCCESS;
}

API(cuLibraryGetKernel, CUkernel *kernel, CUlibrary handle, const char *name)
{
    ENTER(ENTRY_INIT);
    struct module *library = library_from(handle);
    if (kernel == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (library == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *kernel = (CUkernel)module_find(library, name);
    return *kernel != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

GETTER(cuLibraryGetKernelCount, (unsigned int *count, CUlibrary handle), ENTRY_INIT, count,
       library_from(handle) == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS,
       (unsigned)library_from(handle)->count)

/* The library's functions for one context, made when first asked for. */
static struct module *instance_in(struct module *library, struct context *context)
{
    context = context->owner;
    LOCKED(lock);
    struct module *instance = library->instances;
    while (instance != NULL
           && (instance->context != context || instance->context_id != context->id))
        instance = instance->next;
    if (instance == NULL) {
        instance = calloc(1, sizeof *instance);
        struct function *functions = calloc(library->count + 1, sizeof *functions);
        if (instance == NULL || functions == NULL)
            abort();
        *instance = (struct module){.context = context, .context_id = context->id,
                                    .functions = functions, .count = library->count,
                                    .next = library->instances};
        for (size_t i = 0; i < library->count; i++) {
            functions[i] = (struct function){library->functions[i].kernel, context, instance};
            object_add(&functions[i], OBJECT_FUNCTION);
        }
        object_add(instance, OBJECT_MODULE);
        library->instances = instance;
    }
    return instance;
}

GETTER(cuLibraryGetModule, (CUmodule *module, CUlibrary handle), ENTRY_CONTEXT, module,
       library_from(handle) == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS,
       (CUmodule)instance_in(library_from(handle), context_current()))

API(cuKernelGetFunction, CUfunction *function, CUkernel kernel)
{
    ENTER(ENTRY_CONTEXT);
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct function *own = function_from((CUfunction)kernel);
    if (own == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (own->context == NULL)        /* a library's kernel */
        own = &instance_in(own->module, context_current())
                   ->functions[own - own->module->functions];
    *function = (CUfunction)own;
    return CUDA_SUCCESS;
}
