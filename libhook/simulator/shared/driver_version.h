/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: NVSHARE_SIM_DRIVER names its branch, such as 550; unset: the newest. */
#pragma once

const char *driver_version(void);
int driver_cuda_version(void);       /* the newest version of CUDA that it supports, as
                                        cuDriverGetVersion returns it */
