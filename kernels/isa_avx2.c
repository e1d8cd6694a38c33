/* AVX2 with FMA, F16C, POPCNT and BMI: Haswell and later, every Zen. */
#if defined(__x86_64__)
#define ISA_STRING "avx2"
#define ISA_TARGET "avx2,fma,f16c,popcnt,bmi,bmi2"
#include "isa_begin.h"
#include "simd_avx2.h"
#include "elements.h"
#include "minmax_kernels.h"
#include "tree_kernels.h"
#include "column_kernels.h"
#include "strip_kernels.h"
#include "exact_kernels.h"
#include "attention_kernels.h"

static bool is_available(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt");
}

#include "isa_table.h"
#include "isa_end.h"
#else
typedef int dafi_not_x86;
#endif
