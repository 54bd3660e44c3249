/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

/* cuIpcOpenMemHandle and cuIpcCloseMemHandle. False: not the library's handle; call the driver. */
bool ipc_import_open(const CUipcMemHandle *handle, CUdeviceptr *address, CUresult *result);
bool ipc_import_close(CUdeviceptr address, CUresult *result);

/* Closes imports that were opened in a context that ends. With memory_lock held. */
void ipc_import_context_ends(CUcontext context);
