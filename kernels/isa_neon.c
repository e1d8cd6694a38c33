/* NEON: every 64-bit ARM. */
#if defined(__aarch64__)
#define ISA_STRING "neon"
#include "isa_begin.h"
#include "simd_neon.h"
#include "elements.h"
#include "minmax_kernels.h"
#include "tree_kernels.h"
#include "column_kernels.h"
#include "strip_kernels.h"
#include "exact_kernels.h"
#include "attention_kernels.h"

static bool is_available(void) {
    return true;
}

#include "isa_table.h"
#include "isa_end.h"
#else
typedef int dafi_not_arm;
#endif
