/* From here to isa_end.h functions are compiled for ISA_TARGET, whatever the command line says. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "span.h"
#include "numbers.h"

#define PRAGMA_(text) _Pragma(#text)
#define PRAGMA(text) PRAGMA_(text)
#if !defined(ISA_UNROLLS) || defined(DAF_NO_UNROLL)
#define UNROLL(                                                                                                        \
    count) /* where sixteen lanes are several registers, unrolled loops no longer fit; sanitizers: build time */
#elif defined(__clang__)
#define UNROLL(count) PRAGMA(clang loop unroll(full))
#else
#define UNROLL(count) PRAGMA(GCC unroll count)
#endif
#if defined(__clang__)
#if defined(ISA_TARGET)
PRAGMA(clang attribute push(__attribute__((target(ISA_TARGET))), apply_to = function))
#endif
#else
#if defined(ISA_TARGET)
PRAGMA(GCC push_options)
PRAGMA(GCC target(ISA_TARGET))
#endif
#endif
