/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE                  /* RTLD_DEFAULT */
#include "service/interpreter.h"

#include <dlfcn.h>
#include <string.h>

#include "interpose/log.h"

struct interpreter python;

static void *find(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

static bool find_all(void)
{
    bool all = true;
#define FUNCTION(type, name, parameters)                             \
    python.name = (type (*) parameters)find(#name);                  \
    all = all && python.name != NULL;
    INTERPRETER_FUNCTIONS(FUNCTION)
#undef FUNCTION
    python.is_finalizing = (int (*)(void))find("Py_IsFinalizing");          /* from 3.13 on */
    if (python.is_finalizing == NULL)
        python.is_finalizing = (int (*)(void))find("_Py_IsFinalizing");
    python.exception = find("PyExc_Exception");
    return all && python.is_finalizing != NULL && python.exception != NULL;
}

bool interpreter_find(void)
{
    bool found = find_all();
    if (!found)
        dlerror();                   /* the program asked for none of it, so it hears of none */
    /* Without the lock that it is named after nothing here is sure: the
     * references that dictionaries lend, and who frees what meanwhile. */
    return found && strstr(python.Py_GetVersion(), "free-threading") == NULL;
}

bool interpreter_call_soon(int (*function)(void *), void *argument)
{
    /* An interpreter that has ended has nobody to call, nor a queue. */
    return python.Py_IsInitialized() && !python.is_finalizing()
           && python.Py_AddPendingCall(function, argument) == 0;
}

bool interpreter_at_hand(void)
{
    /* Frameworks live in the main interpreter; where another one runs in the
     * main thread just now, modules are others. And who calls with an exception
     * raised must find it again. */
    return !python.is_finalizing()
           && python.PyInterpreterState_Get() == python.PyInterpreterState_Main()
           && python.PyErr_Occurred() == NULL;
}
