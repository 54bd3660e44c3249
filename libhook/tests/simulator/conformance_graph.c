/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance: graphs. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance_ready.h"
#include "program.h"

void graphs(void)
{
    prepare();
    CUgraph graph, child;
    CUgraphNode first, second, third, fourth, fifth, nodes[8];
    CUgraphExec exec;
    CUgraphNodeType type;
    size_t count = 8;
    uint64_t words = 512, value = 3;
    void *parameters[] = {&it.memory, &words, &value};
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = fill, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                      .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1,
                                      .kernelParams = parameters};
    CUDA_MEMSET_NODE_PARAMS set = {.dst = it.memory + 4096, .value = 0x55, .elementSize = 1,
                                   .width = 4096, .height = 1};
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = it.memory,
                          .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = it.pinned,
                          .WidthInBytes = 8192, .Height = 1, .Depth = 1};
    CUDA_HOST_NODE_PARAMS host = {nothing, NULL};
    ASK(cuGraphCreate(&graph, 1));
    ASK(cuGraphCreate(&graph, 0));
    ASK(cuGraphAddKernelNode(&first, graph, NULL, 0, &kernel));
    ASK(cuGraphAddMemsetNode(&second, graph, &first, 1, &set, context));
    ASK(cuGraphAddMemcpyNode(&third, graph, &second, 1, &copy, context));
    ASK(cuGraphAddHostNode(&fourth, graph, &third, 1, &host));
    ASK(cuGraphAddEmptyNode(&fifth, graph, NULL, 0));
    ASK(cuGraphGetNodes(graph, nodes, &count));
    tell("nodes", (long long)count);
    count = 8;
    ASK(cuGraphGetRootNodes(graph, nodes, &count));
    tell("roots", (long long)count);
    ASK(cuGraphNodeGetType(third, &type));
    tell("type", type);
    CUDA_KERNEL_NODE_PARAMS got = {0};
    ASK(cuGraphKernelNodeGetParams(first, &got));
    tell("function", got.func == fill);
    tell("block", got.blockDimX);
    tell("argument", got.kernelParams != NULL ? (long long)*(uint64_t *)got.kernelParams[1] : -1);
    ASK(cuGraphKernelNodeGetParams(second, &got));
    CUDA_MEMSET_NODE_PARAMS got_set = {0};
    ASK(cuGraphMemsetNodeGetParams(second, &got_set));
    tell("width", (long long)got_set.width);
    CUDA_MEMCPY3D got_copy = {0};
    ASK(cuGraphMemcpyNodeGetParams(third, &got_copy));
    tell("width", (long long)got_copy.WidthInBytes);
    tell("type", got_copy.dstMemoryType);
    ASK(cuGraphInstantiate(&exec, graph, 0));
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuStreamSynchronize(it.stream));
    const uint64_t *result = it.pinned;
    tell("filled", result[1] == 3 + 0x9E3779B97F4A7C15ull);
    tell("set", result[600] == 0x5555555555555555ull);
    value = 9;
    ASK(cuGraphExecKernelNodeSetParams(exec, first, &kernel));
    set.value = 0x66;
    ASK(cuGraphExecMemsetNodeSetParams(exec, second, &set, context));
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuStreamSynchronize(it.stream));
    tell("filled", result[0] == 9);
    tell("set", result[600] == 0x6666666666666666ull);
    ASK(cuGraphNodeSetEnabled(exec, second, 0));
    unsigned enabled = 77;
    ASK(cuGraphNodeGetEnabled(exec, second, &enabled));
    tell("enabled", enabled);
    ASK(cuMemsetD8(it.memory + 4096, 0, 4096));
    ASK(cuCtxSynchronize());
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuStreamSynchronize(it.stream));
    tell("not set", result[600] == 0);
    CUgraphExecUpdateResultInfo info = {0};
    value = 11;
    ASK(cuGraphKernelNodeSetParams(first, &kernel));
    ASK(cuGraphExecUpdate(exec, graph, &info));
    tell("result", info.result);
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuStreamSynchronize(it.stream));
    tell("filled", result[0] == 11);
    ASK(cuGraphClone(&child, graph));
    ASK(cuGraphDestroyNode(fifth));
    ASK(cuGraphExecUpdate(exec, graph, &info));
    tell("result", info.result);
    CUgraph parent;
    ASK(cuGraphCreate(&parent, 0));
    ASK(cuGraphAddChildGraphNode(&first, parent, NULL, 0, child));
    ASK(cuGraphAddEventRecordNode(&second, parent, &first, 1, it.event));
    ASK(cuGraphAddEventWaitNode(&third, parent, NULL, 0, it.recorded));
    ASK(cuGraphDestroy(child));
    CUgraphExec whole;
    ASK(cuGraphInstantiate(&whole, parent, 0));
    memset(it.pinned, 0, 64);
    ASK(cuGraphLaunch(whole, it.stream));
    ASK(cuEventSynchronize(it.event));
    tell("filled", result[0] == 11);
    ASK(cuGraphAddDependencies(parent, &second, &third, NULL, 1));
    ASK(cuGraphAddDependencies(parent, &third, &second, NULL, 1));
    CUgraphExec circle;
    ASK(cuGraphInstantiate(&circle, parent, 0));
    ASK(cuGraphExecDestroy(whole));
    ASK(cuGraphDestroy(parent));
    ASK(cuGraphDestroy(graph));
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuStreamSynchronize(it.stream));
    ASK(cuGraphExecDestroy(exec));
    /* A launch that outlives its executable graph. */
    ASK(cuGraphCreate(&graph, 0));
    uint64_t microseconds = 100000;
    void *spin_parameters[] = {&microseconds};
    kernel.func = spin;
    kernel.kernelParams = spin_parameters;
    ASK(cuGraphAddKernelNode(&first, graph, NULL, 0, &kernel));
    ASK(cuGraphInstantiate(&exec, graph, 0));
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuGraphExecDestroy(exec));
    ASK(cuStreamQuery(it.stream));
    ASK(cuStreamSynchronize(it.stream));
}
