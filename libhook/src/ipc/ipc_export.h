/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

struct ipc_part;
struct ipc_request;

/* One block's descriptor, as a handle of own_file.h, and what to say of it, without the secret; -1
 * if it is gone. */
int ipc_export_part(const struct ipc_request *request, size_t index, struct ipc_part *part);

/* The memory around an address of ours stays where it is from now on, as if it were exported. */
CUresult ipc_export_pin(CUdeviceptr address);

/* cuIpcGetMemHandle. False: not ours, call the driver. */
bool ipc_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);
