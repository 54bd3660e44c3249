/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs. Launching and uploading a graph submits work. Building a graph does not, but whenever a
 * copy or fill becomes part of it, the driver looks the addresses up, and fails if nothing is
 * mapped there (invalid value, or the wrong assumption that it is host memory): when such a node is
 * added or changed, and again when the graph is instantiated or updated. Those calls wait at the
 * gate, inside which all memory is resident.
 */
#include "api/loading.h"

GATED_LOADING_PTSZ(cuGraphLaunch, stream, (CUgraphExec graph, CUstream stream), (graph, stream))
GATED_LOADING_PTSZ(cuGraphUpload, stream, (CUgraphExec graph, CUstream stream), (graph, stream))

GATED_LOADING(cuGraphInstantiate, GATE_NO_STREAM,
    (CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size),
    (exec, graph, error_node, log, log_size))
GATED_LOADING(cuGraphInstantiate_v2, GATE_NO_STREAM,
    (CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size),
    (exec, graph, error_node, log, log_size))
GATED_LOADING(cuGraphInstantiateWithFlags, GATE_NO_STREAM,
    (CUgraphExec *exec, CUgraph graph, unsigned long long flags),
    (exec, graph, flags))
GATED_LOADING(cuGraphInstantiateWithParams, GATE_NO_STREAM,
    (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *options),
    (exec, graph, options))
GATED_LOADING(cuGraphInstantiateWithParams_ptsz, GATE_NO_STREAM,
    (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *options),
    (exec, graph, options))
GATED_LOADING(cuGraphExecUpdate, GATE_NO_STREAM,
    (CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, CUgraphExecUpdateResult *why),
    (exec, graph, error_node, why))
GATED_LOADING(cuGraphExecUpdate_v2, GATE_NO_STREAM,
    (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info),
    (exec, graph, info))
GATED(cuGraphExecChildGraphNodeSetParams, GATE_NO_STREAM,
    (CUgraphExec exec, CUgraphNode node, CUgraph child),
    (exec, node, child))

GATED(cuGraphAddNode, GATE_NO_STREAM,
    (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t dependency_count,
     CUgraphNodeParams *parameters),
    (node, graph, dependencies, dependency_count, parameters))
GATED(cuGraphAddNode_v2, GATE_NO_STREAM,
    (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
     const CUgraphEdgeData *edges, size_t dependency_count, CUgraphNodeParams *parameters),
    (node, graph, dependencies, edges, dependency_count, parameters))
GATED(cuGraphAddNode_v3, GATE_NO_STREAM,
    (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
     const CUgraphEdgeData *edges, size_t dependency_count, CUgraphNodeParams *parameters),
    (node, graph, dependencies, edges, dependency_count, parameters))
GATED(cuGraphAddMemcpyNode, GATE_NO_STREAM,
    (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t dependency_count,
     const CUDA_MEMCPY3D *copy, CUcontext context),
    (node, graph, dependencies, dependency_count, copy, context))
GATED(cuGraphAddMemsetNode, GATE_NO_STREAM,
    (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t dependency_count,
     const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context),
    (node, graph, dependencies, dependency_count, fill, context))
GATED(cuGraphNodeSetParams, GATE_NO_STREAM,
    (CUgraphNode node, CUgraphNodeParams *parameters),
    (node, parameters))
GATED(cuGraphNodeSetParams_v2, GATE_NO_STREAM,
    (CUgraphNode node, CUgraphNodeParams *parameters),
    (node, parameters))
GATED(cuGraphMemcpyNodeSetParams, GATE_NO_STREAM,
    (CUgraphNode node, const CUDA_MEMCPY3D *parameters),
    (node, parameters))
GATED(cuGraphMemsetNodeSetParams, GATE_NO_STREAM,
    (CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *parameters),
    (node, parameters))
GATED(cuGraphExecNodeSetParams, GATE_NO_STREAM,
    (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *parameters),
    (exec, node, parameters))
GATED(cuGraphExecMemcpyNodeSetParams, GATE_NO_STREAM,
    (CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy, CUcontext context),
    (exec, node, copy, context))
GATED(cuGraphExecMemsetNodeSetParams, GATE_NO_STREAM,
    (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context),
    (exec, node, fill, context))
