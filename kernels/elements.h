/* Elements of the three float types as sixteen float32 lanes, and what the fast paths share. Written once over the
 * vocabulary of simd_<isa>.h, as all *_kernels.h are, and compiled once per instruction set. */
#include "codecs/meansplit.h"
#include "codecs/minmax.h"
#include "groups/span.h"

/* Calls `macro` with the width, or with the dtype, as a constant. Sanitizers do without, for the build's time. */
#if defined(DAF_NO_UNROLL)
#define EACH_WIDTH(width, macro) macro(width);
#define EACH_DTYPE(dtype, macro) macro(dtype);
#else
#define EACH_WIDTH(width, macro)                                                                                       \
    switch (width) {                                                                                                   \
    case 0:                                                                                                            \
        macro(0);                                                                                                      \
        break;                                                                                                         \
    case 1:                                                                                                            \
        macro(1);                                                                                                      \
        break;                                                                                                         \
    case 2:                                                                                                            \
        macro(2);                                                                                                      \
        break;                                                                                                         \
    case 3:                                                                                                            \
        macro(3);                                                                                                      \
        break;                                                                                                         \
    default:                                                                                                           \
        macro(4);                                                                                                      \
        break;                                                                                                         \
    }
#define EACH_DTYPE(dtype, macro)                                                                                       \
    switch (dtype) {                                                                                                   \
    case DAF_FLOAT32:                                                                                                  \
        macro(DAF_FLOAT32);                                                                                            \
        break;                                                                                                         \
    case DAF_BFLOAT16:                                                                                                 \
        macro(DAF_BFLOAT16);                                                                                           \
        break;                                                                                                         \
    default:                                                                                                           \
        macro(DAF_FLOAT16);                                                                                            \
        break;                                                                                                         \
    }
#endif

FN vf load16(uint32_t dtype, const void *p) {
    if (dtype == DAF_FLOAT32) return v_load(p);
    if (dtype == DAF_BFLOAT16) return i_as_float(i_sll(i_load_u16(p), 16));
    return v_load_f16(p);
}

/* dafi_to_bf16 of finite values. */
FN vi to_bf16(vf x) {
    vi bits = v_as_int(x), odd = i_and(i_srl(bits, 16), i_set1(1));
    return i_srl(i_add(i_add(bits, i_set1(0x7fff)), odd), 16);
}

/* Of finite values only. */
FN void store16(uint32_t dtype, void *p, vf x, bool is_streaming) {
    if (dtype == DAF_FLOAT32) {
        if (is_streaming)
            v_stream(p, x);
        else
            v_store(p, x);
    } else if (dtype == DAF_BFLOAT16) {
        i_store_u16(p, to_bf16(x));
    } else {
        v_store_f16(p, v_max(v_min(x, v_set1(DAFI_F16_MAX)), v_set1(-DAFI_F16_MAX)));
    }
}

FN size_t itemsize(uint32_t dtype) {
    return dtype == DAF_FLOAT32 ? 4 : 2;
}

/* sum += the regular elements, count += 1 for each of them, or DAFI_COUNT_OF_ZERO. */
static void add_regular(uint32_t dtype, const void *src, uint64_t num, float *sum, uint32_t *count) {
    uint64_t j = 0;
    for (; j + 16 <= num; j += 16) {
        vf x = load16(dtype, (const uint8_t *)src + j * itemsize(dtype));
        vm is_regular = m_and(v_gt(x, v_set1(-DAFI_HUGE)), v_gt(v_set1(DAFI_HUGE), x));
        v_store(sum + j, v_add_where(v_load(sum + j), is_regular, x));
        vm is_not_zero = v_not_zero(x), is_zero = m_without(is_regular, is_not_zero);
        vi counts = i_count(i_load(count + j), m_and(is_regular, is_not_zero));
        i_store(count + j, i_add_where(counts, is_zero, i_set1(DAFI_COUNT_OF_ZERO)));
    }
    dafi_add_regular(dtype, src, j, num, sum, count);
}

/* x = the elements - less. */
static void widen(uint32_t dtype, const void *src, const float *less, uint64_t num, float *x) {
    uint64_t j = 0;
    for (; j + 16 <= num; j += 16)
        v_store(x + j, v_sub(load16(dtype, (const uint8_t *)src + j * itemsize(dtype)), v_load(less + j)));
    for (; j < num; j++) x[j] = dafi_load(dtype, src, j) - less[j];
}

/* The elements = plus + x. What NaN and infinities are in 16 bits is the reference's matter. */
static void narrow(uint32_t dtype, const float *x, const float *plus, uint64_t num, void *dst, bool is_streaming) {
    uint64_t j = 0, end;
    for (; j + 16 <= num; j = end) {
        vf values = v_add(v_load(plus + j), v_load(x + j));
        end = j + 16;
        if (dtype == DAF_FLOAT32 || !m_bits(v_unordered(values, v_sub(values, values))))
            store16(dtype, (uint8_t *)dst + j * itemsize(dtype), values, is_streaming);
        else
            for (; j < end; j++) dafi_store(dtype, dst, j, plus[j] + x[j]);
    }
    for (; j < num; j++) dafi_store(dtype, dst, j, plus[j] + x[j]);
}

/* Whole lines past the caches; both sides begin on one. */
static void stream(void *to, const void *from, size_t size) {
    for (size_t i = 0; i < size; i += DAFI_STREAMING_ALIGN)
        v_stream((uint8_t *)to + i, v_load((const uint8_t *)from + i));
}
