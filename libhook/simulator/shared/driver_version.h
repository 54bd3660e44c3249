/* SPDX-License-Identifier: Apache-2.0 */
/* Which driver is simulated: NVSHARE_SIM_DRIVER names its branch, such as 550; the newest if unset. */
#pragma once

const char *driver_version(void);
int driver_cuda_version(void);       /* the newest CUDA that it knows, as cuDriverGetVersion says it */
