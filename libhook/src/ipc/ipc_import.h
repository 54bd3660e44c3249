/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NVSHARE_IPC_IMPORT_H
#define NVSHARE_IPC_IMPORT_H

#include <stdbool.h>

#include "interpose/driver.h"

struct ipc_import;
struct memory_description;

/* cuIpcOpenMemHandle and cuIpcCloseMemHandle. False: not ours, call the driver. */
bool ipc_import_open(const CUipcMemHandle *handle, CUdeviceptr *address, CUresult *result);
bool ipc_import_close(CUdeviceptr address, CUresult *result);

/* The following with memory_lock held. */
bool ipc_import_describe(const struct ipc_import *import, CUdeviceptr address,
                         struct memory_description *description);
void ipc_import_context_ends(CUcontext context);

#endif
