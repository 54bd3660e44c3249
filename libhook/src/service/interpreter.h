/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPython, where the program is one that it runs: what we call of it, found in
 * the process, since we are neither linked with it nor built with its headers.
 * From 3.9 on. python.PyErr_Occurred() is CPython's PyErr_Occurred(), and so on.
 */
#ifndef NVSHARE_INTERPRETER_H
#define NVSHARE_INTERPRETER_H

#include <stdbool.h>

struct object;                       /* CPython's PyObject */

#define INTERPRETER_FUNCTIONS(FUNCTION)                                               \
    FUNCTION(int, Py_AddPendingCall, (int (*function)(void *), void *argument))       \
    FUNCTION(int, Py_IsInitialized, (void))                                           \
    FUNCTION(const char *, Py_GetVersion, (void))                                     \
    FUNCTION(void *, PyInterpreterState_Get, (void))                                  \
    FUNCTION(void *, PyInterpreterState_Main, (void))                                 \
    FUNCTION(void, Py_IncRef, (struct object *object))                                \
    FUNCTION(void, Py_DecRef, (struct object *object))                                \
    FUNCTION(struct object *, PyImport_GetModuleDict, (void))                         \
    FUNCTION(struct object *, PyDict_GetItemString,                                   \
             (struct object *dictionary, const char *key))                            \
    FUNCTION(struct object *, PyMapping_GetItemString,                                \
             (struct object *mapping, const char *key))                               \
    FUNCTION(struct object *, PyObject_GetAttrString,                                 \
             (struct object *object, const char *name))                               \
    FUNCTION(struct object *, PyObject_CallFunction,                                  \
             (struct object *callable, const char *format, ...))                      \
    FUNCTION(struct object *, PyObject_Str, (struct object *object))                  \
    FUNCTION(int, PyObject_IsTrue, (struct object *object))                           \
    FUNCTION(long long, PyLong_AsLongLong, (struct object *number))                   \
    FUNCTION(const char *, PyUnicode_AsUTF8, (struct object *text))                   \
    FUNCTION(struct object *, PyErr_Occurred, (void))                                 \
    FUNCTION(int, PyErr_ExceptionMatches, (struct object *type))                      \
    FUNCTION(void, PyErr_Fetch,                                                       \
             (struct object **type, struct object **value, struct object **traceback))\
    FUNCTION(void, PyErr_Clear, (void))

struct interpreter {
#define FUNCTION(type, name, parameters) type (*name) parameters;
    INTERPRETER_FUNCTIONS(FUNCTION)
#undef FUNCTION
    int (*is_finalizing)(void);      /* its name depends on the version */
    struct object **exception;       /* PyExc_Exception */
};

extern struct interpreter python;

/* False: there is none that we know. Takes the dynamic linker's lock, which its
 * holder may keep while it stands at the gate: so only for threads of the program. */
bool interpreter_find(void);

/* CPython calls `function` in the program's main thread, between two of its
 * instructions, when that thread comes to it: at once, or before 3.12 once it has
 * let go of Python's lock, as it does at least in each call of a framework's that
 * takes time. Any thread. False: it will not. */
bool interpreter_call_soon(int (*function)(void *), void *argument);

/* In such a call: whether Python code of the program's may be called now. */
bool interpreter_at_hand(void);

#endif
