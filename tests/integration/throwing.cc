// SPDX-License-Identifier: Apache-2.0
// For leaving.c: a signal handler that throws, and a call that it leaves so.
#include <csignal>

extern "C" bool leave_by_exception(void (*call)())
{
    try {
        call();
        return false;
    } catch (int) {
        return true;
    }
}

extern "C" void throw_in_handler(int number)
{
    throw number;
}
