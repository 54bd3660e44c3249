/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "interpose/driver.h"

struct ipc_part;
struct ipc_request;

/* One block's descriptor and what to say of it, without the secret; -1 if it is gone. */
int ipc_export_part(const struct ipc_request *request, size_t index, struct ipc_part *part);

/* cuIpcGetMemHandle. False: not ours, call the driver. */
bool ipc_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);
