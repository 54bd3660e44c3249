/* SPDX-License-Identifier: Apache-2.0 */
/* From the parameters of a node, as programs give them, to its work. */
#pragma once

#include "graph/graph.h"

CUresult node_work_kernel(const CUDA_KERNEL_NODE_PARAMS_v1 *parameters, struct work *work);
CUresult node_work_set(const CUDA_MEMSET_NODE_PARAMS *parameters, struct work *work);
CUresult node_work_host(const CUDA_HOST_NODE_PARAMS *parameters, struct work *work);
CUresult node_work_event(CUevent event, enum work_kind kind, struct work *work);
