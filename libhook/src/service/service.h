/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

struct client;

/* For programs: ends the process's turns on all GPUs once the work submitted so far is done, unless
 * more work is submitted. Does not wait. Returns the number of clients; 0 in a forked child. */
__attribute__((visibility("protected"))) int nvshare_release(void);

void *service_run(void *client);
