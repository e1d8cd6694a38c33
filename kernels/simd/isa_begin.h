/* From here to isa_end.h functions are compiled for ISA_TARGET, whatever the command line says. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "groups/span.h"
#include "numbers.h"

#define PRAGMA_(text) _Pragma(#text)
#define PRAGMA(text) PRAGMA_(text)
/* UNROLL_WORDS: loops over 64-bit words. UNROLL: loops over sixteen lanes, only where these are one register; where
 * they are several, unrolled loops no longer fit. Sanitizers do without, for the build's time. */
#if defined(DAF_NO_UNROLL)
#define UNROLL_WORDS(count)
#elif defined(__clang__)
#define UNROLL_WORDS(count) PRAGMA(clang loop unroll(full))
#else
#define UNROLL_WORDS(count) PRAGMA(GCC unroll count)
#endif
#if defined(ISA_UNROLLS)
#define UNROLL(count) UNROLL_WORDS(count)
#else
#define UNROLL(count)
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
