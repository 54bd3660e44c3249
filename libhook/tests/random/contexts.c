/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts besides the primary context, and memory after its context has ended. */
#include "actions.h"

static CUresult create(CUcontext *made)
{
    /* Not cuCtxCreate: where other versions return out of memory, the first version crashes. */
    switch (roll(4)) {
    case 0:
    case 1:
        return DO(cuCtxCreate_v2, (made, 0, device), "0, 0");
    case 2:
        return DO(cuCtxCreate_v3, (made, NULL, 0, 0, device), "0, 0");
    default:
        return DO(cuCtxCreate_v4, (made, NULL, 0, device), "0, 0");
    }
}

static void tell_state(void)
{
    unsigned flags = 77;
    int active = 77;
    DO(cuDevicePrimaryCtxGetState, (device, &flags, &active), "0");
    tell(" flags=%u active=%d", flags, active);
}

/* Empties the context: half of the plain blocks stay allocated and end with the context. */
static void leave(struct place *last)
{
    wait_for_all();
    streams_end();
    for (size_t i = 0; i < BLOCKS; i++) {
        if (blocks[i].kind == NOTHING || blocks[i].context != context)
            continue;
        if (blocks[i].kind == PLAIN && one_in(2)) {
            *last = place_at(&blocks[i], 0);
            block_gone(&blocks[i]);
        } else {
            block_free(&blocks[i]);
        }
    }
    wait_for_all();
}

/* Uses and frees memory of one context while another context is current. */
void visit_context(void)
{
    static void (*const there[])(void) = {
        allocate, fill, copy_line, ask_pointer, read_block, pool_used, launch, stream_made,
        give_back, map_own,
    };
    CUcontext visited, popped = NULL;
    const struct kernels kept = kernels;
    struct place last = { 0 };
    unsigned type = 77, version = 0;
    wait_for_all();
    if (create(&visited) != CUDA_SUCCESS)
        return;
    context = visited;
    DO(cuCtxGetApiVersion, (visited, &version), "new");
    kernels_begin();
    for (uint64_t n = roll(12); n > 0; n--)
        PICK(there)();
    leave(&last);
    kernels_end();
    kernels = kept;
    if (one_in(3)) {
        DO(cuCtxPopCurrent_v2, (&popped), "%s", "");
        tell(" %s", popped == visited ? "the new one" : "another");
    }
    EITHER(cuCtxDestroy, cuCtxDestroy_v2, (visited), "the new one");
    context = primary;
    if (last.address != 0) {
        DO(cuPointerGetAttribute, (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, last.address),
           "%s of a context that ended", last.text);
        tell(" type=%u", type);
        DO(cuMemFree_v2, (last.address), "%s of a context that ended", last.text);
    }
    DO(cuCtxGetCurrent, (&popped), "%s", "");
    tell(" %s", popped == primary ? "primary" : popped == NULL ? "none" : "another");
    DO(cuCtxSetCurrent, (primary), "primary");
}

static void attach(void)
{
    CUcontext attached = NULL;
    DO(cuCtxAttach, (&attached, 0), "0");
    tell(" %s", attached == context ? "current" : "another");
    if (attached != NULL)
        DO(cuCtxDetach, (attached), "current");
}

/* Queries, retains and releases the primary context, or sets a limit to its present value. */
void reset_context(void)
{
    CUcontext again = NULL;
    size_t value = 77;
    CUlimit limit = one_in(2) ? CU_LIMIT_STACK_SIZE : CU_LIMIT_MALLOC_HEAP_SIZE;
    switch (roll(5)) {
    WHEN(0, tell_state())
    case 1:
        DO(cuDevicePrimaryCtxRetain, (&again, device), "0");
        tell(" %s", again == primary ? "primary" : "another");
        EITHER(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (device), "0");
        break;
    WHEN(2, attach())
    case 3:
        DO(cuDevicePrimaryCtxRetain, (&again, 9), "9");
        DO(cuCtxEnablePeerAccess, (primary, 0), "itself");
        DO(cuCtxDisablePeerAccess, (primary), "itself");
        break;
    default:
        DO(cuCtxGetLimit, (&value, limit), "%d", (int)limit);
        DO(cuCtxSetLimit, (limit, value), "%d, the same", (int)limit);
    }
}

/* Loads a module with a variable, fills and reads the variable, and unloads the module. */
void use_module(void)
{
    static const char image[] =
        ".version 6.0\n.target sm_60\n.address_size 64\n"
        ".visible .global .align 8 .b8 nvshare_words[1000];\n";
    CUmodule module;
    CUdeviceptr address = 0, base = 0;
    size_t size = 77;
    struct lane lane = lane_sync(one_in(2));
    if (DO(cuModuleLoadData, (&module, image), "words") != CUDA_SUCCESS)
        return;
    if (DO(cuModuleGetGlobal_v2, (&address, &size, module, "nvshare_words"), "words")
        == CUDA_SUCCESS) {
        uint64_t value = 77;
        tell(" size=%zu", size);
        SYNC(cuMemsetD8_v2, lane, (address, 3, size), "words, 3, %zu", size);
        wait_for_all();
        DO(cuMemcpyDtoH_v2, (scratch, address, size), "words, %zu", size);
        tell_bytes(scratch, size);
        DO(cuPointerGetAttribute, (&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 7), "words");
        tell(" %u", (unsigned)value);
        DO(cuMemGetAddressRange_v2, (&base, &size, address + 7), "words");
        DO(cuMemFree_v2, (address), "words");
        DO(cuIpcGetMemHandle, (&(CUipcMemHandle){ { 0 } }, address), "words");
    }
    DO(cuModuleGetGlobal_v2, (&address, &size, module, "nothing_such"), "nothing");
    DO(cuModuleUnload, (module), "words");
}
