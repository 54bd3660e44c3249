/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What PyTorch and CuPy have cached, and how they are told to give it back.
 *
 * Of both we use what is compiled, and what their public functions
 * (torch.cuda.memory_stats() and empty_cache(), cupy.get_default_memory_pool())
 * are a few lines of Python around. Those lines are what we do not want: while
 * they run, Python calls the program's signal handlers, trace functions and
 * other threads, and an exception that a handler raises would come out of our
 * call, among those that the framework raises and that nobody shall see. Like this
 * no instruction of Python's is carried out between one of the program and
 * the next. A version without these names is named once, and left alone.
 *
 * Modules are looked up among those that the program has imported; none is
 * imported by us. JAX is not here: it keeps what it has taken for good and has
 * no call to give it back; content.c finds that most of it was never written.
 */
#include "service/frameworks.h"

#include "interpose/log.h"
#include "interpose/real.h"
#include "service/interpreter.h"

/* The functions return false where Python has raised something. */
struct framework {
    const char *name;
    bool (*cached)(CUdevice device, long long *bytes);    /* what it could give back */
    bool (*release)(void);
};

static void drop(struct object *object)
{
    if (object != NULL)
        python.Py_DecRef(object);
}

/* NULL and nothing raised: the program has not imported that module. */
static struct object *attribute(const char *module_name, const char *name)
{
    struct object *module = python.PyDict_GetItemString(python.PyImport_GetModuleDict(),
                                                        module_name);
    if (module == NULL)
        return NULL;
    python.Py_IncRef(module);
    struct object *found = python.PyObject_GetAttrString(module, name);
    python.Py_DecRef(module);
    return found;
}

static bool nothing_raised(void)
{
    return python.PyErr_Occurred() == NULL;
}

/* Both take the reference away. */
static bool called(struct object *function)
{
    struct object *result = function == NULL ? NULL : python.PyObject_CallFunction(function, NULL);
    drop(function);
    drop(result);
    return nothing_raised();
}

static bool number(struct object *object, long long *value)
{
    *value = object == NULL ? 0 : python.PyLong_AsLongLong(object);
    drop(object);
    return nothing_raised();
}

/* Of PyTorch's figures, statistics[name]["all"]["current"]. */
static bool figure(struct object *statistics, const char *name, long long *bytes)
{
    struct object *kinds = python.PyMapping_GetItemString(statistics, name);
    struct object *all = kinds == NULL ? NULL : python.PyMapping_GetItemString(kinds, "all");
    bool well = number(all == NULL ? NULL : python.PyMapping_GetItemString(all, "current"), bytes);
    drop(all);
    drop(kinds);
    return well;
}

/* What is taken from the driver, less what is in use or waits for an event, less
 * what is free in pieces whose other parts are in use. */
static bool torch_cached(CUdevice device, long long *bytes)
{
    struct object *initialized = attribute("torch.cuda", "_initialized");
    bool used = initialized != NULL && python.PyObject_IsTrue(initialized) == 1;
    drop(initialized);
    if (!used)
        return nothing_raised();
    struct object *ask = attribute("torch._C", "_cuda_memoryStats");
    if (ask == NULL)
        return nothing_raised();
    struct object *statistics = python.PyObject_CallFunction(ask, "i", (int)device);
    drop(ask);
    if (statistics == NULL)
        return false;
    long long reserved, active, split;
    bool well = figure(statistics, "reserved_bytes", &reserved)
                && figure(statistics, "active_bytes", &active)
                && figure(statistics, "inactive_split_bytes", &split);
    if (well)
        *bytes = reserved - active - split;
    drop(statistics);
    return well;
}

static bool torch_release(void)
{
    return called(attribute("torch._C", "_cuda_emptyCache"));
}

static struct object *cupy_method(const char *name)
{
    struct object *pool = attribute("cupy", "_default_memory_pool");
    struct object *method = pool == NULL ? NULL : python.PyObject_GetAttrString(pool, name);
    drop(pool);
    return method;
}

/* Its pool means the device that is current. */
static bool cupy_cached(CUdevice device, long long *bytes)
{
    CUdevice current;
    if (REAL(cuCtxGetDevice)(&current) != CUDA_SUCCESS || current != device)
        return true;
    struct object *ask = cupy_method("free_bytes");
    if (ask == NULL)
        return nothing_raised();
    struct object *answer = python.PyObject_CallFunction(ask, NULL);
    drop(ask);
    return answer != NULL && number(answer, bytes);
}

static bool cupy_release(void)
{
    return called(cupy_method("free_all_blocks"));
}

static const struct framework frameworks[] = {
    { "PyTorch", torch_cached, torch_release },
    { "CuPy", cupy_cached, cupy_release },
};

/* What has been raised, in words, the first time. */
static void say(const char *framework, struct object *type, struct object *value)
{
    static bool said;                /* whoever is here holds Python's lock */
    if (said)
        return;
    said = true;
    struct object *name = python.PyObject_GetAttrString(type, "__name__");
    struct object *text = name == NULL || value == NULL ? NULL : python.PyObject_Str(value);
    const char *kind = name == NULL ? NULL : python.PyUnicode_AsUTF8(name);
    const char *words = text == NULL ? NULL : python.PyUnicode_AsUTF8(text);
    complain("NVSHARE_TRIM_CACHES: %s does not give back what it has cached (%s: %s); the program "
             "goes on as it is", framework, kind == NULL ? "an exception" : kind,
             words == NULL ? "no text" : words);
    drop(text);
    drop(name);
}

/* True: what has been raised is gone. What is no Exception, an interrupt from the
 * keyboard or the wish to exit, is never the framework's, and stays. */
static bool settle(const char *framework)
{
    if (!python.PyErr_ExceptionMatches(*python.exception))
        return false;
    struct object *type, *value, *traceback;
    python.PyErr_Fetch(&type, &value, &traceback);
    say(framework, type, value);
    drop(type);
    drop(value);
    drop(traceback);
    if (nothing_raised())
        return true;
    bool lasts = !python.PyErr_ExceptionMatches(*python.exception);
    if (!lasts)
        python.PyErr_Clear();        /* of an exception without a text that can be read */
    return !lasts;
}

int frameworks_release(CUdevice device, long long least, long long *offered, bool *failed)
{
    *offered = 0;
    *failed = false;
    for (size_t i = 0; i < sizeof frameworks / sizeof *frameworks; i++) {
        const struct framework *framework = &frameworks[i];
        long long bytes = 0;
        bool well = framework->cached(device, &bytes);
        if (well && bytes >= least) {
            debug("%s is asked to give back %lld MiB", framework->name, bytes >> 20);
            *offered += bytes;
            well = framework->release();
        }
        *failed |= !well;
        if (!well && !settle(framework->name))
            return -1;
    }
    return 0;
}
