/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the wrappers that hooks.def lists as GATED, LOADING or GATED_LOADING. Their parameters are
 * named p1, p2 and so on. */
#include "api/wrapper.h"

#define EACH_1(X, a) X(a, p1)
#define EACH_2(X, a, b) EACH_1(X, a), X(b, p2)
#define EACH_3(X, a, b, c) EACH_2(X, a, b), X(c, p3)
#define EACH_4(X, a, b, c, d) EACH_3(X, a, b, c), X(d, p4)
#define EACH_5(X, a, b, c, d, e) EACH_4(X, a, b, c, d), X(e, p5)
#define EACH_6(X, a, b, c, d, e, f) EACH_5(X, a, b, c, d, e), X(f, p6)
#define EACH_7(X, a, b, c, d, e, f, g) EACH_6(X, a, b, c, d, e, f), X(g, p7)
#define EACH_8(X, a, b, c, d, e, f, g, h) EACH_7(X, a, b, c, d, e, f, g), X(h, p8)
#define EACH_9(X, a, b, c, d, e, f, g, h, i) EACH_8(X, a, b, c, d, e, f, g, h), X(i, p9)
#define EACH_10(X, a, b, c, d, e, f, g, h, i, j) EACH_9(X, a, b, c, d, e, f, g, h, i), X(j, p10)
#define EACH_11(X, a, b, c, d, e, f, g, h, i, j, k)                                \
    EACH_10(X, a, b, c, d, e, f, g, h, i, j), X(k, p11)
#define SELECT(a, b, c, d, e, f, g, h, i, j, k, each, ...) each
#define EACH(X, ...)                                                               \
    SELECT(__VA_ARGS__, EACH_11, EACH_10, EACH_9, EACH_8, EACH_7, EACH_6, EACH_5, EACH_4, EACH_3, \
           EACH_2, EACH_1, )(X, __VA_ARGS__)
#define UNWRAP(...) __VA_ARGS__
#define DECLARE(type, name) type name
#define PASS(type, name) name
#define SIGNATURE(name, parameters) name(EACH(DECLARE, UNWRAP parameters))
#define CALL(name, parameters) REAL(name)(EACH(PASS, UNWRAP parameters))

#undef GATED
#undef LOADING
#undef GATED_LOADING
#define HOOK(name, parameters)
#define GATED(name, stream, parameters)                                            \
    EXPORT CUresult SIGNATURE(name, parameters)                                    \
    {                                                                              \
        gate_enter(stream);                                                        \
        CUresult result = CALL(name, parameters);                                  \
        gate_leave();                                                              \
        return result;                                                             \
    }
#define LOADING(name, parameters)                                                  \
    EXPORT CUresult SIGNATURE(name, parameters)                                    \
    {                                                                              \
        CUresult result = CALL(name, parameters);                                  \
        AGAIN_WITH_ROOM(result, CALL(name, parameters))                            \
        return result;                                                             \
    }
#define GATED_LOADING(name, stream, parameters)                                    \
    EXPORT CUresult SIGNATURE(name, parameters)                                    \
    {                                                                              \
        gate_enter(stream);                                                        \
        CUresult result = CALL(name, parameters);                                  \
        gate_leave();                                                              \
        AGAIN_WITH_ROOM(result, CALL(name, parameters))                            \
        return result;                                                             \
    }
#include "driver/hooks.def"
