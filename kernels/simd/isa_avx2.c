/* AVX2 with FMA, F16C, POPCNT and BMI: Haswell and later, every Zen. */
#if defined(__x86_64__)
#define ISA_STRING "avx2"
#define ISA_TARGET "avx2,fma,f16c,popcnt,bmi,bmi2"
#include "simd/isa_begin.h"
#include "simd/simd_avx2.h"
#include "elements.h"
#include "simd/minmax_kernels.h"
#include "simd/meansplit_kernels.h"
#include "simd/column_kernels.h"
#include "simd/strip_kernels.h"
#include "simd/exact_kernels.h"
#include "simd/attention_kernels.h"

static bool is_available(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt");
}

#include "simd/isa_table.h"
#include "simd/isa_end.h"
#else
typedef int dafi_not_x86;
#endif
