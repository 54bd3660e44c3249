/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes whose kind stands in their parameters: one call for all kinds. */
#include "driver/entry.h"

/* The call for each kind, as the older entry points are. */
#pragma GCC visibility push(default)
CUresult cuGraphAddKernelNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                                 const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphAddMemcpyNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                              const CUDA_MEMCPY3D *, CUcontext);
CUresult cuGraphAddMemsetNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                              const CUDA_MEMSET_NODE_PARAMS *, CUcontext);
CUresult cuGraphAddHostNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                            const CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphAddChildGraphNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);
CUresult cuGraphAddEmptyNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t);
CUresult cuGraphAddEventRecordNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent);
CUresult cuGraphAddEventWaitNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent);
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode, const CUDA_MEMCPY3D *);
CUresult cuGraphMemsetNodeSetParams(CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *);
CUresult cuGraphHostNodeSetParams(CUgraphNode, const CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode, CUevent);
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode, CUevent);
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec, CUgraphNode,
                                           const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec, CUgraphNode, const CUDA_MEMCPY3D *,
                                        CUcontext);
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec, CUgraphNode,
                                        const CUDA_MEMSET_NODE_PARAMS *, CUcontext);
CUresult cuGraphExecHostNodeSetParams(CUgraphExec, CUgraphNode, const CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec, CUgraphNode, CUevent);
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec, CUgraphNode, CUevent);
#pragma GCC visibility pop

/* A kernel may be given instead of a function. */
static CUDA_KERNEL_NODE_PARAMS kernel_of(const CUgraphNodeParams *p)
{
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = p->kernel.func,
                                      .gridDimX = p->kernel.gridDimX,
                                      .gridDimY = p->kernel.gridDimY,
                                      .gridDimZ = p->kernel.gridDimZ,
                                      .blockDimX = p->kernel.blockDimX,
                                      .blockDimY = p->kernel.blockDimY,
                                      .blockDimZ = p->kernel.blockDimZ,
                                      .sharedMemBytes = p->kernel.sharedMemBytes,
                                      .kernelParams = p->kernel.kernelParams,
                                      .extra = p->kernel.extra};
    if (kernel.func == NULL)
        kernel.func = (CUfunction)p->kernel.kern;
    return kernel;
}

static CUDA_MEMSET_NODE_PARAMS memset_of(const CUgraphNodeParams *p)
{
    return (CUDA_MEMSET_NODE_PARAMS){.dst = p->memset.dst, .pitch = p->memset.pitch,
                                     .value = p->memset.value,
                                     .elementSize = p->memset.elementSize,
                                     .width = p->memset.width, .height = p->memset.height};
}

static CUDA_HOST_NODE_PARAMS host_of(const CUgraphNodeParams *p)
{
    return (CUDA_HOST_NODE_PARAMS){p->host.fn, p->host.userData};
}

static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                    const CUgraphNodeParams *p)
{
    if (p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_HOST_NODE_PARAMS host;
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        kernel = kernel_of(p);
        return cuGraphAddKernelNode_v2(node, graph, after, count, &kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(node, graph, after, count, &p->memcpy.copyParams, NULL);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        set = memset_of(p);
        return cuGraphAddMemsetNode(node, graph, after, count, &set, NULL);
    case CU_GRAPH_NODE_TYPE_HOST:
        host = host_of(p);
        return cuGraphAddHostNode(node, graph, after, count, &host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphAddChildGraphNode(node, graph, after, count, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return cuGraphAddEmptyNode(node, graph, after, count);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(node, graph, after, count, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(node, graph, after, count, p->eventRecord.event);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

API(cuGraphAddNode, CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
    CUgraphNodeParams *parameters)
{
    ENTER(ENTRY_INIT);
    return add(node, graph, after, count, parameters);
}

API(cuGraphAddNode_v2, CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
    const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters)
{
    ENTER(ENTRY_INIT);
    (void)edges;
    return add(node, graph, after, count, parameters);
}

API(cuGraphNodeSetParams, CUgraphNode node, CUgraphNodeParams *p)
{
    ENTER(ENTRY_INIT);
    if (p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(p);
    CUDA_MEMSET_NODE_PARAMS set = memset_of(p);
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphKernelNodeSetParams_v2(node, &kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphMemcpyNodeSetParams(node, &p->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphMemsetNodeSetParams(node, &set);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

API(cuGraphExecNodeSetParams, CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p)
{
    ENTER(ENTRY_INIT);
    if (p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(p);
    CUDA_MEMSET_NODE_PARAMS set = memset_of(p);
    CUDA_HOST_NODE_PARAMS host = host_of(p);
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphExecKernelNodeSetParams_v2(exec, node, &kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphExecMemcpyNodeSetParams(exec, node, &p->memcpy.copyParams, NULL);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphExecMemsetNodeSetParams(exec, node, &set, NULL);
    case CU_GRAPH_NODE_TYPE_HOST:
        return cuGraphExecHostNodeSetParams(exec, node, &host);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}
