/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs, captured from a stream or built by hand: created, changed, launched, destroyed. */
#include <string.h>

#include "actions.h"

static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = { .flags = 0 };
    CUresult result;
    switch (roll(4)) {
    case 0:
        return DO(cuGraphInstantiate, (exec, graph, NULL, NULL, 0), "graph");
    case 1:
        return DO(cuGraphInstantiate_v2, (exec, graph, NULL, NULL, 0), "graph");
    case 2:
        result = EITHER(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
                        (exec, graph, &parameters), "graph");
        tell(" result=%d", (int)parameters.result_out);
        return result;
    default:
        return DO(cuGraphInstantiateWithFlags, (exec, graph, 0), "graph");
    }
}

static void launch_graph(CUgraphExec exec)
{
    struct lane lane = lane_any();
    if (one_in(3))
        IN_LANE(cuGraphUpload, lane, (exec, lane.handle), "exec, %s", lane.text);
    for (uint64_t times = 1 + roll(2); times > 0; times--)
        IN_LANE(cuGraphLaunch, lane, (exec, lane.handle), "exec, %s", lane.text);
    wait_for_all();
}

static void tell_nodes(CUgraph graph)
{
    CUgraphNode nodes[32];
    CUgraphNodeType type;
    size_t count = 32;
    DO(cuGraphGetNodes, (graph, nodes, &count), "graph");
    tell(" nodes=%zu", count);
    for (size_t i = 0; i < count && i < 32; i++) {
        type = (CUgraphNodeType)77;
        DO(cuGraphNodeGetType, (nodes[i], &type), "node %zu", i);
        tell(" type=%d", (int)type);
    }
}

/* Captures the allocation, use and free of memory that exists only within one launch. */
static void record_memory(struct lane lane, struct block *block)
{
    CUdeviceptr address;
    struct place place = place_in(block, 1);
    size_t size = 1 + roll(place.room);
    if (IN_LANE(cuMemAllocAsync, lane, (&address, size, lane.handle), "%zu, %s", size, lane.text)
        != CUDA_SUCCESS)
        return;
    IN_LANE(cuMemsetD8Async, lane, (address, 7, size, lane.handle), "graph's, 7, %zu, %s", size,
            lane.text);
    IN_LANE(cuMemcpyDtoDAsync_v2, lane, (place.address, address, size, lane.handle),
            "%s, graph's, %zu, %s", place.text, size, lane.text);
    IN_LANE(cuMemFreeAsync, lane, (address, lane.handle), "graph's, %s", lane.text);
}

/* Calls that a capture forbids, except where the capture's mode allows the call. */
static void record_mistake(struct lane lane, struct block *block, CUstreamCaptureMode mode)
{
    CUdeviceptr address = 0;
    switch (roll(4)) {
    case 0:
        /* In other modes the call invalidates the capture, which test_captures.py tests. */
        if (mode == CU_STREAM_CAPTURE_MODE_RELAXED
            && DO(cuMemAlloc_v2, (&address, 4096), "4096, recording") == CUDA_SUCCESS)
            DO(cuMemFree_v2, (address), "just allocated");
        break;
    WHEN(1, DO(cuMemcpyHtoD_v2, (block->address, pattern, 1), "b%u, recording", block->number))
    WHEN(2, wait_for(lane.stream))
    default:
        if (block->kind == PLAIN)
            IN_LANE(cuMemFreeAsync, lane, (block->address, lane.handle), "b%u, recording, %s",
                    block->number, lane.text);
    }
}

static void record(struct lane lane, bool may_fail, CUstreamCaptureMode mode)
{
    struct block *block = block_of_device(), *other = block_of_device();
    uint64_t count, value = roll(1u << 30);
    if (block == NULL || block->size < 64)
        return;
    struct place place = place_in(block, 8);
    count = place.room / 8;
    switch (roll(may_fail ? 6 : 5)) {
    WHEN(0, IN_LANE(cuMemsetD32Async, lane, (place.address, (unsigned)value, place.room / 4,
                                             lane.handle), "%s, %u, %zu, %s", place.text,
                    (unsigned)value, place.room / 4, lane.text))
    case 1:
        if (other != block && other->size >= 64)
            IN_LANE(cuMemcpyDtoDAsync_v2, lane, (block->address, other->address, 64, lane.handle),
                    "b%u, b%u, 64, %s", block->number, other->number, lane.text);
        break;
    WHEN(2, IN_LANE(cuMemcpyHtoDAsync_v2, lane, (block->address, pattern + value % MIB, 64,
                                                 lane.handle), "b%u, p+%llu, 64, %s", block->number,
                    (unsigned long long)(value % MIB), lane.text))
    WHEN(3, record_memory(lane, block))
    WHEN(4, IN_LANE(cuLaunchKernel, lane, (kernels.step, 2, 1, 1, 64, 1, 1, 0, lane.handle,
                                           (void *[]){ &place.address, &count, &value }, NULL),
                    "step, %s, %s", place.text, lane.text))
    default:
        record_mistake(lane, block, mode);
    }
}

static CUresult begin(struct lane lane, CUgraph *graph, CUstreamCaptureMode mode)
{
    switch (roll(6)) {
    case 0:
        if (DO(cuGraphCreate, (graph, 0), "0") != CUDA_SUCCESS)
            return CUDA_ERROR_UNKNOWN;
        return IN_LANE(cuStreamBeginCaptureToGraph, lane, (lane.handle, *graph, NULL, NULL, 0,
                                                           mode), "%s, %d", lane.text, (int)mode);
    case 1:
        /* This first version of the function can only capture in mode 0. */
        return mode == CU_STREAM_CAPTURE_MODE_RELAXED ? CUDA_ERROR_NOT_SUPPORTED
            : IN_LANE(cuStreamBeginCapture, lane, (lane.handle), "%s", lane.text);
    default:
        return IN_LANE(cuStreamBeginCapture_v2, lane, (lane.handle, mode), "%s, %d", lane.text,
                       (int)mode);
    }
}

void capture(void)
{
    struct lane lane = lane_own();
    CUgraph given = NULL, graph = NULL;
    CUgraphExec exec;
    bool may_fail = one_in(4);
    CUstreamCaptureMode mode = (CUstreamCaptureMode)roll(3);
    if (lane.handle == NULL)
        return;
    wait_for_all();
    if (begin(lane, &given, mode) == CUDA_SUCCESS) {
        for (uint64_t n = 1 + roll(5); n > 0; n--)
            record(lane, may_fail, mode);
        CUresult result = IN_LANE(cuStreamEndCapture, lane, (lane.handle, &graph), "%s", lane.text);
        tell(" %s", graph == NULL ? "none" : "graph");
        if (result == CUDA_SUCCESS && graph != NULL) {
            tell_nodes(graph);
            if (instantiate(&exec, graph) == CUDA_SUCCESS) {
                launch_graph(exec);
                DO(cuGraphExecDestroy, (exec), "exec");
            }
        }
    }
    if (graph != NULL)
        DO(cuGraphDestroy, (graph), "graph");
    else if (given != NULL)
        DO(cuGraphDestroy, (given), "given");
    wait_for_all();
}

struct plan {
    CUgraph graph;
    CUgraphNode set, copy, kernel;
    struct block *block, *other;
    CUDA_MEMSET_NODE_PARAMS fills;
    CUDA_MEMCPY3D copies;
    CUDA_KERNEL_NODE_PARAMS runs;
};

static CUgraphNodeParams as_any(const struct plan *plan, bool fills)
{
    CUgraphNodeParams any;
    memset(&any, 0, sizeof any);
    if (fills) {
        any.type = CU_GRAPH_NODE_TYPE_MEMSET;
        any.memset = (CUDA_MEMSET_NODE_PARAMS_v2){
            .dst = plan->fills.dst, .value = plan->fills.value,
            .elementSize = plan->fills.elementSize, .width = plan->fills.width,
            .height = plan->fills.height, .ctx = context,
        };
    } else {
        any.type = CU_GRAPH_NODE_TYPE_MEMCPY;
        any.memcpy.copyCtx = context;
        any.memcpy.copyParams = plan->copies;
    }
    return any;
}

static CUresult add_nodes(struct plan *p, void **parameters)
{
    CUgraphNodeParams fills = as_any(p, true), copies = as_any(p, false);
    CUresult result;
    p->runs = (CUDA_KERNEL_NODE_PARAMS){
        .func = kernels.step, .gridDimX = 2, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32,
        .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters,
    };
    result = one_in(2)
        ? DO(cuGraphAddMemsetNode, (&p->set, p->graph, NULL, 0, &p->fills, context), "b%u, %u",
             p->block->number, p->fills.value)
        : DO(cuGraphAddNode, (&p->set, p->graph, NULL, 0, &fills), "set b%u", p->block->number);
    if (result == CUDA_SUCCESS)
        result = one_in(2)
            ? DO(cuGraphAddMemcpyNode, (&p->copy, p->graph, &p->set, 1, &p->copies, context),
                 "b%u, b%u", p->other->number, p->block->number)
            : DO(cuGraphAddNode_v2, (&p->copy, p->graph, &p->set, NULL, 1, &copies),
                 "copy to b%u", p->other->number);
    if (result == CUDA_SUCCESS)
        result = DO(cuGraphAddKernelNode_v2, (&p->kernel, p->graph, &p->copy, 1, &p->runs),
                    "step b%u", p->other->number);
    return result;
}

/* Changes nodes of the graph, or of the executable graph if `exec` is not NULL. */
static void change(struct plan *p, CUgraphExec exec)
{
    p->fills.value = (unsigned)roll(256);
    p->copies.WidthInBytes = 1 + roll(64);
    CUgraphNodeParams fills = as_any(p, true), copies = as_any(p, false);
#define FILLS "set, %u", p->fills.value
#define COPIES "copy, %zu", p->copies.WidthInBytes
    switch (roll(4) + (exec != NULL ? 4 : 0)) {
    WHEN(0, DO(cuGraphMemsetNodeSetParams, (p->set, &p->fills), FILLS))
    WHEN(1, DO(cuGraphMemcpyNodeSetParams, (p->copy, &p->copies), COPIES))
    WHEN(2, DO(cuGraphNodeSetParams, (p->set, &fills), FILLS))
    WHEN(3, DO(cuGraphNodeSetParams, (p->copy, &copies), COPIES))
    WHEN(4, DO(cuGraphExecMemsetNodeSetParams, (exec, p->set, &p->fills, context), FILLS))
    WHEN(5, DO(cuGraphExecMemcpyNodeSetParams, (exec, p->copy, &p->copies, context), COPIES))
    WHEN(6, DO(cuGraphExecNodeSetParams, (exec, p->set, &fills), FILLS))
    WHEN(7, DO(cuGraphExecNodeSetParams, (exec, p->copy, &copies), COPIES))
    }
#undef FILLS
#undef COPIES
}

static void update(struct plan *p, CUgraphExec exec)
{
    CUgraphExecUpdateResultInfo info = { .result = (CUgraphExecUpdateResult)77 };
    CUgraphNode wrong = NULL;
    change(p, NULL);
    if (one_in(2))
        DO(cuGraphExecUpdate, (exec, p->graph, &wrong, &info.result), "exec, graph");
    else
        DO(cuGraphExecUpdate_v2, (exec, p->graph, &info), "exec, graph");
    tell(" result=%d", (int)info.result);
}

static void tell_copy(const struct plan *p)
{
    CUDA_MEMCPY3D told;
    CUDA_MEMSET_NODE_PARAMS fills;
    memset(&told, 0, sizeof told);
    memset(&fills, 0, sizeof fills);
    DO(cuGraphMemcpyNodeGetParams, (p->copy, &told), "copy");
    tell(" %zu %s", told.WidthInBytes, told.srcDevice == p->block->address ? "right" : "wrong");
    DO(cuGraphMemsetNodeGetParams, (p->set, &fills), "set");
    tell(" %u %zu %s", fills.value, fills.width, fills.dst == p->block->address ? "right" : "wrong");
}

void build_graph(void)
{
    struct plan p = { .block = block_of_device(), .other = block_of_device() };
    CUgraphExec exec;
    uint64_t count = 8, value = roll(1000);
    if (p.block == NULL || p.block == p.other || p.block->size < 64 || p.other->size < 64
        || p.block->kind == MANAGED || p.other->kind == MANAGED)
        return;
    wait_for_all();
    p.fills = (CUDA_MEMSET_NODE_PARAMS){
        .dst = p.block->address, .value = (unsigned)roll(256), .elementSize = 1, .width = 64,
        .height = 1,
    };
    p.copies = (CUDA_MEMCPY3D){
        .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p.block->address,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p.other->address,
        .WidthInBytes = 1 + roll(64), .Height = 1, .Depth = 1,
    };
    CUdeviceptr to = p.other->address;
    if (DO(cuGraphCreate, (&p.graph, 0), "0") != CUDA_SUCCESS)
        return;
    if (add_nodes(&p, (void *[]){ &to, &count, &value }) == CUDA_SUCCESS) {
        change(&p, NULL);
        tell_copy(&p);
        if (instantiate(&exec, p.graph) == CUDA_SUCCESS) {
            launch_graph(exec);
            change(&p, exec);
            launch_graph(exec);
            update(&p, exec);
            launch_graph(exec);
            DO(cuGraphExecDestroy, (exec), "exec");
        }
    }
    DO(cuGraphDestroy, (p.graph), "graph");
    block_read(p.other);
}
