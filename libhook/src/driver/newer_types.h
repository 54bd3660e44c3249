/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types newer than CUDA 13.0, as in NVIDIA's cuda.h: for a build without cuda.h, or with an older
 * one.
 */
#pragma once

#if !defined(CUDA_VERSION) || CUDA_VERSION < 13030
typedef cuuint32_t CUlogicalEndpointId;
typedef enum CUgraphRecaptureStatus_enum {
    CU_GRAPH_RECAPTURE_ELIGIBLE_FOR_UPDATE = 0
} CUgraphRecaptureStatus;
typedef CUresult (*CUgraphRecaptureCallback)(void *, CUgraphNode, const CUgraphNodeParams *,
                                             const CUgraphNodeParams *, CUgraphRecaptureStatus);
#endif

#if !defined(CUDA_VERSION) || CUDA_VERSION < 13050
typedef struct CUDA_FABRIC_COPY_BATCH_OP_st CUDA_FABRIC_COPY_BATCH_OP;
#endif
