/* AVX-512 (F, BW, DQ, VL): Skylake-X and later, Zen 4 and later. */
#if defined(__x86_64__)
#define ISA_STRING "avx512"
#define ISA_UNROLLS
#define ISA_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,popcnt,bmi,bmi2"
#include "simd/isa_begin.h"
#include "simd/simd_avx512.h"
#include "elements.h"
#include "simd/minmax_kernels.h"
#include "simd/meansplit_kernels.h"
#include "simd/column_kernels.h"
#include "simd/strip_kernels.h"
#include "simd/exact_kernels.h"
#include "simd/attention_kernels.h"

static bool is_available(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("popcnt");
}

#include "simd/isa_table.h"
#include "simd/isa_end.h"
#else
typedef int dafi_not_x86;
#endif
