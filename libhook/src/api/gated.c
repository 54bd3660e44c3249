/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the wrappers that hooks.def lists as GATED, LOADING or GATED_LOADING. */
#include "api/wrapper.h"

#undef GATED
#undef LOADING
#undef GATED_LOADING
#define HOOK(name, parameters)
#define GATED(name, stream, parameters)                                            \
    SIGNATURE(name, parameters)                                                    \
    {                                                                              \
        gate_enter(stream);                                                        \
        CUresult result = CALL(name, parameters);                                  \
        gate_leave();                                                              \
        return result;                                                             \
    }
#define LOADING(name, parameters)                                                  \
    SIGNATURE(name, parameters)                                                    \
    {                                                                              \
        CUresult result = CALL(name, parameters);                                  \
        AGAIN_WITH_ROOM(result, CALL(name, parameters))                            \
        return result;                                                             \
    }
#define GATED_LOADING(name, stream, parameters)                                    \
    SIGNATURE(name, parameters)                                                    \
    {                                                                              \
        gate_enter(stream);                                                        \
        CUresult result = CALL(name, parameters);                                  \
        gate_leave();                                                              \
        AGAIN_WITH_ROOM(result, CALL(name, parameters))                            \
        return result;                                                             \
    }
#include "driver/hooks.def"
