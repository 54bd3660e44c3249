/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads programs from PTX text. Only the name after each `.entry`, and `.global .align A .b8
 * NAME[SIZE];` are read. A kernel that the simulated GPU does not have makes the whole module
 * invalid, as unknown instructions would.
 */
#include "module/module.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/context.h"
#include "driver/entry.h"
#include "driver/object.h"
#include "engine/kernels.h"
#include "engine/queue.h"
#include "space/space.h"

struct function {
    const struct kernel *kernel;
    struct context *context;
};

/* A `.global` array of bytes, in device memory. */
struct variable {
    char name[64];
    CUdeviceptr address;
    size_t size;
};

struct module {
    struct context *context;
    struct function *functions;
    size_t count;
    struct variable *variables;
    size_t variable_count;
};

OBJECT_FROM(function_from, const struct function, CUfunction, OBJECT_FUNCTION)

OBJECT_FROM(module_from, struct module, CUmodule, OBJECT_MODULE)

/* Finds the kernels after `.entry`, at most `room`. */
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
        FAIL_IF(kernel == NULL || *count == room, CUDA_ERROR_INVALID_PTX);
        kernels[(*count)++] = kernel;
    }
    return CUDA_SUCCESS;
}

static void fill_with_zeros(const struct device *device, const struct variable *variable)
{
    SPACE_LOCKED(read);
    size_t size = variable->size;
    memset(space_resolve(device, variable->address, ACCESS_WRITE, true, &size), 0, size);
}

/* Creates the module's variables in device memory, filled with zeros. */
static CUresult make_variables(const char *text, struct module *module)
{
    struct variable found;
    unsigned alignment;
    CUresult result = CUDA_SUCCESS;
    for (const char *at = text; (at = strstr(at, ".global .align")) != NULL; at++) {
        if (sscanf(at, ".global .align %u .b8 %63[A-Za-z0-9_$][%zu]", &alignment, found.name,
                   &found.size) != 3)
            continue;
        result = device_allocate(module->context, found.size, ALLOCATED_VARIABLE, NULL,
                                 &found.address);
        if (result != CUDA_SUCCESS)
            break;
        module->variables = checked(realloc(module->variables,
                                    (module->variable_count + 1) * sizeof found));
        module->variables[module->variable_count++] = found;
        fill_with_zeros(module->context->device, &found);
    }
    return result;
}

static void drop_variables(struct module *module)
{
    SPACE_LOCKED(write);
    for (size_t i = 0; i < module->variable_count; i++) {
        struct allocation *allocation = allocation_at(module->variables[i].address);
        if (allocation != NULL && allocation->kind == ALLOCATED_VARIABLE)
            allocation_free(allocation);     /* otherwise it was freed with its context */
    }
    free(module->variables);
}

/* Whether the text ends after the three directives that begin every program. */
static bool is_empty_program(const char *text)
{
    const char *size = strstr(text, ".address_size");
    if (size == NULL)
        return true;
    size += strlen(".address_size");
    return size[strspn(size, " \t\r\n0123456789")] == '\0';
}

#define FUNCTIONS 64

static void module_unload(struct module *module)
{
    for (size_t i = 0; i < module->count; i++)
        object_remove(&module->functions[i]);
    object_remove(module);
    drop_variables(module);
    free(module->functions);
    free(module);
}

static CUresult module_load(const char *image, struct context *context, struct module **result)
{
    const struct kernel *kernels[FUNCTIONS];
    size_t count;
    FAIL_IF(image == NULL || result == NULL, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(strstr(image, ".version") == NULL, CUDA_ERROR_INVALID_IMAGE);
    TRY(find_kernels(image, kernels, FUNCTIONS, &count));
    if (count == 0 && strstr(image, ".global .align") == NULL && !is_empty_program(image))
        return CUDA_ERROR_INVALID_PTX;
    struct module *module = checked(calloc(1, sizeof *module));
    struct function *functions = checked(calloc(count + 1, sizeof *functions));
    *module = (struct module){.context = context, .functions = functions, .count = count};
    context_drain_alone(context);
    for (size_t i = 0; i < count; i++) {
        functions[i] = (struct function){kernels[i], context};
        object_add(&functions[i], OBJECT_FUNCTION);
    }
    object_add(module, OBJECT_MODULE);
    CUresult found = make_variables(image, module);
    if (found != CUDA_SUCCESS) {
        module_unload(module);
        return found;
    }
    *result = module;
    return CUDA_SUCCESS;
}

FORWARD(cuModuleLoadData, (CUmodule *module, const void *image), ENTRY_CONTEXT,
        module_load(image, context_current()->owner, (struct module **)module))

API(cuModuleUnload, CUmodule handle)
{
    ENTER(ENTRY_INIT | ENTRY_UNSAFE);
    FIND(struct module, module, module_from(handle), CUDA_ERROR_INVALID_HANDLE);
    CUresult result = context_drain(module->context);        /* the module's code may be running */
    module_unload(module);
    return result;
}

API(cuModuleGetFunction, CUfunction *function, CUmodule handle, const char *name)
{
    ENTER(ENTRY_CONTEXT);
    struct module *module = module_from(handle);
    FAIL_IF(function == NULL || name == NULL, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(module == NULL, CUDA_ERROR_INVALID_HANDLE);
    *function = NULL;
    for (size_t i = 0; i < module->count; i++)
        if (strcmp(module->functions[i].kernel->name, name) == 0)
            *function = (CUfunction)&module->functions[i];
    return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API(cuModuleGetGlobal_v2, CUdeviceptr *address, size_t *size, CUmodule handle, const char *name)
{
    ENTER(ENTRY_CONTEXT);
    const struct module *module = module_from(handle);
    FAIL_IF(name == NULL, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(module == NULL, CUDA_ERROR_INVALID_HANDLE);
    for (size_t i = 0; i < module->variable_count; i++) {
        if (strcmp(module->variables[i].name, name) != 0)
            continue;
        GIVE_IF(address, module->variables[i].address);
        GIVE_IF(size, module->variables[i].size);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

/* Launches: converts the arguments of all launch functions to one kind of work. */

CUresult launch_work(CUfunction handle, const unsigned grid[3], const unsigned block[3],
                     void *const *parameters, void *const *extra, struct context *context,
                     struct work *work)
{
    const struct function *function = function_from(handle);
    if (function == NULL || (context != NULL && function->context != context->owner))
        return CUDA_ERROR_INVALID_HANDLE;
    if ((uint64_t)block[0] * block[1] * block[2] > 1024 || grid[1] > 65535 || grid[2] > 65535
        || block[2] > 64)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 3; i++)
        FAIL_IF(grid[i] == 0 || block[i] == 0, CUDA_ERROR_INVALID_VALUE);
    *work = (struct work){.kind = WORK_KERNEL, .launch = {.kernel = function->kernel}};
    FAIL_IF((extra != NULL) == (parameters != NULL), CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(extra != NULL, CUDA_ERROR_NOT_SUPPORTED);
    for (int i = 0; i < function->kernel->parameters; i++)
        memcpy(&work->launch.arguments[i], parameters[i], sizeof(uint64_t));
    return CUDA_SUCCESS;
}
