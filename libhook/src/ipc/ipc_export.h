/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "driver/driver.h"

struct ipc_ticket;

/* Pins the memory around an address of the library for good, as if it were exported. */
CUresult ipc_export_pin(CUdeviceptr address);

/* cuIpcGetMemHandle. False: not the library's memory; call the driver. */
bool ipc_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);
/* Whether the ticket is of this very process. */
bool ipc_export_own(const struct ipc_ticket *ticket);
