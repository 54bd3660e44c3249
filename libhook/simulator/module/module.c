/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program is PTX text; all that is looked at is the name behind each
 * `.entry`, and `.global .align A .b8 NAME[SIZE];`. A function that the
 * simulated GPU cannot run makes the whole program invalid, as one with
 * unknown instructions would be.
 */
#include "module/module.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/entry.h"
#include "driver/object.h"
#include "engine/queue.h"
#include "space/allocation.h"

const struct function *function_from(CUfunction handle)
{
    return object_is(handle, OBJECT_FUNCTION) ? (const struct function *)handle : NULL;
}

static struct module *module_from(CUmodule handle)
{
    return object_is(handle, OBJECT_MODULE) ? (struct module *)handle : NULL;
}

/* The kernels named behind `.entry`, at most `room`. */
static CUresult find_kernels(const char *text, const struct kernel **kernels, size_t room,
                             size_t *count)
{
    *count = 0;
    for (const char *at = text; (at = strstr(at, ".entry")) != NULL;) {
        at += strlen(".entry");
        if (!isspace((unsigned char)*at))
            continue;
        while (isspace((unsigned char)*at))
            at++;
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_$%"
                                   "0123456789");
        const struct kernel *kernel = kernel_named(at, length);
        if (kernel == NULL || *count == room)
            return CUDA_ERROR_INVALID_PTX;
        kernels[(*count)++] = kernel;
    }
    return CUDA_SUCCESS;
}

static void fill_with_zeros(const struct device *device, const struct variable *variable)
{
    space_lock_to_read();
    for (size_t done = 0, some; done < variable->size; done += some) {
        some = variable->size - done;
        memset(space_resolve(device, variable->address + done, ACCESS_WRITE, true, &some), 0, some);
    }
    space_unlock();
}

/* Its variables, in device memory and of zeros; a library's are made where it is used. */
static CUresult make_variables(const char *text, struct module *module)
{
    struct variable found;
    unsigned alignment;
    CUresult result = CUDA_SUCCESS;
    for (const char *at = text; module->context != NULL && result == CUDA_SUCCESS
                                && (at = strstr(at, ".global .align")) != NULL; at++) {
        if (sscanf(at, ".global .align %u .b8 %63[A-Za-z0-9_$][%zu]", &alignment, found.name,
                   &found.size) != 3)
            continue;
        result = device_allocate(module->context, found.size, ALLOCATED_VARIABLE, NULL,
                                 &found.address);
        if (result != CUDA_SUCCESS)
            break;
        module->variables = realloc(module->variables,
                                    (module->variable_count + 1) * sizeof found);
        if (module->variables == NULL)
            abort();
        module->variables[module->variable_count++] = found;
        fill_with_zeros(module->context->device, &found);
    }
    return result;
}

static void drop_variables(struct module *module)
{
    pthread_mutex_lock(&allocations_lock);
    for (size_t i = 0; i < module->variable_count; i++) {
        struct allocation *allocation = allocation_find(module->variables[i].address);
        if (allocation != NULL && allocation->base == module->variables[i].address
            && allocation->kind == ALLOCATED_VARIABLE)
            device_free(allocation);         /* else it went with its context */
    }
    pthread_mutex_unlock(&allocations_lock);
    free(module->variables);
}

/* Nothing follows the three directives that every program begins with. */
static bool is_empty_program(const char *text)
{
    const char *size = strstr(text, ".address_size");
    if (size == NULL)
        return true;
    size += strlen(".address_size");
    return size[strspn(size, " \t\r\n0123456789")] == '\0';
}

#define FUNCTIONS 64

CUresult module_load(const char *image, struct context *context, struct module **result)
{
    const struct kernel *kernels[FUNCTIONS];
    size_t count;
    if (image == NULL || result == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (strstr(image, ".version") == NULL)
        return CUDA_ERROR_INVALID_IMAGE;
    CUresult found = find_kernels(image, kernels, FUNCTIONS, &count);
    if (found != CUDA_SUCCESS)
        return found;
    if (count == 0 && strstr(image, ".global .align") == NULL && !is_empty_program(image))
        return CUDA_ERROR_INVALID_PTX;
    struct module *module = calloc(1, sizeof *module);
    struct function *functions = calloc(count + 1, sizeof *functions);
    if (module == NULL || functions == NULL)
        abort();
    *module = (struct module){.context = context, .functions = functions, .count = count};
    if (context != NULL)
        context_drain(context);      /* as driver 580 does */
    for (size_t i = 0; i < count; i++) {
        functions[i] = (struct function){kernels[i], context, module};
        object_add(&functions[i], OBJECT_FUNCTION);
    }
    object_add(module, context != NULL ? OBJECT_MODULE : OBJECT_LIBRARY);
    found = make_variables(image, module);
    if (found != CUDA_SUCCESS) {
        module_unload(module);
        return found;
    }
    *result = module;
    return CUDA_SUCCESS;
}

/* Any file is read into memory with a zero behind it; NULL if it cannot be. */
static char *read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NULL;
    char *text = NULL;
    size_t length = 0, room = 0, got;
    do {
        room += 1 << 16;
        text = realloc(text, room);
        if (text == NULL)
            abort();
        got = fread(text + length, 1, room - length - 1, file);
        length += got;
    } while (got > 0);
    text[length] = '\0';
    fclose(file);
    return text;
}

CUresult module_load_file(const char *path, struct context *context, struct module **module)
{
    if (path == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    char *text = read_file(path);
    if (text == NULL)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = module_load(text, context, module);
    free(text);
    return result;
}

void module_unload(struct module *module)
{
    for (struct module *instance = module->instances, *next; instance != NULL; instance = next) {
        next = instance->next;
        module_unload(instance);
    }
    for (size_t i = 0; i < module->count; i++)
        object_remove(&module->functions[i]);
    object_remove(module);
    drop_variables(module);
    free(module->functions);
    free(module);
}

API(cuModuleLoad, CUmodule *module, const char *path)
{
    ENTER(ENTRY_CONTEXT);
    return module_load_file(path, context_current()->owner, (struct module **)module);
}

FORWARD(cuModuleLoadData, (CUmodule *module, const void *image), ENTRY_CONTEXT,
        module_load(image, context_current()->owner, (struct module **)module))

/* The options only ask for messages, of which there are none. */
API(cuModuleLoadDataEx, CUmodule *module, const void *image, unsigned int count,
    CUjit_option *options, void **values)
{
    ENTER(ENTRY_CONTEXT);
    for (unsigned i = 0; i < count; i++)
        if ((options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES
             || options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) && values != NULL)
            values[i] = NULL;
    return module_load(image, context_current()->owner, (struct module **)module);
}

API(cuModuleUnload, CUmodule handle)
{
    ENTER(ENTRY_INIT | ENTRY_UNSAFE);
    struct module *module = module_from(handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = context_drain(module->context);        /* its code may be running */
    module_unload(module);
    return result;
}

struct function *module_find(struct module *module, const char *name)
{
    for (size_t i = 0; i < module->count; i++)
        if (strcmp(module->functions[i].kernel->name, name) == 0)
            return &module->functions[i];
    return NULL;
}

API(cuModuleGetFunction, CUfunction *function, CUmodule handle, const char *name)
{
    ENTER(ENTRY_CONTEXT);
    struct module *module = module_from(handle);
    if (function == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *function = (CUfunction)module_find(module, name);
    return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

GETTER(cuModuleGetFunctionCount, (unsigned int *count, CUmodule handle), ENTRY_CONTEXT, count,
       module_from(handle) == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS,
       (unsigned)module_from(handle)->count)

API(cuModuleGetGlobal_v2, CUdeviceptr *address, size_t *size, CUmodule handle, const char *name)
{
    ENTER(ENTRY_CONTEXT);
    const struct module *module = module_from(handle);
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < module->variable_count; i++) {
        if (strcmp(module->variables[i].name, name) != 0)
            continue;
        if (address != NULL)
            *address = module->variables[i].address;
        if (size != NULL)
            *size = module->variables[i].size;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}
