/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

struct ipc_part;
struct ipc_request;

/* One block's descriptor as a handle of own_file.h, and the answer to send with it, without the
 * secret; -1 if the allocation no longer exists. */
int ipc_export_part(const struct ipc_request *request, size_t index, struct ipc_part *part);

/* Pins the memory around an address of the library for good, as if it were exported. */
CUresult ipc_export_pin(CUdeviceptr address);

/* cuIpcGetMemHandle. False: not the library's memory; call the driver. */
bool ipc_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);
