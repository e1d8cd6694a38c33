/* NEON: every 64-bit ARM. */
#if defined(__aarch64__)
#define ISA_STRING "neon"
#include "simd/isa_begin.h"
#include "simd/simd_neon.h"
#include "elements.h"
#include "simd/minmax_kernels.h"
#include "simd/meansplit_kernels.h"
#include "simd/column_kernels.h"
#include "simd/strip_kernels.h"
#include "simd/exact_kernels.h"
#include "simd/attention_kernels.h"

static bool is_available(void) {
    return true;
}

#include "simd/isa_table.h"
#include "simd/isa_end.h"
#else
typedef int dafi_not_arm;
#endif
