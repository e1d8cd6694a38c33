/* Sixteen lanes in four NEON registers. The vocabulary of the *_kernels.h. */
#include <arm_neon.h>

#define FN static inline __attribute__((always_inline))
#define ISA_NAME neon
#define HAS_STREAMING 0
#define PRODUCT_ROWS 6 /* rows and vectors of sums that stay in registers */
#define PRODUCT_VECS 1

typedef struct vf {
    float32x4_t q[4];
} vf;
typedef struct vi {
    uint32x4_t q[4];
} vi;
typedef struct vm {
    uint32x4_t q[4];
} vm; /* all bits of a lane set, or none */

#define EACH(type, expr)                                                                                               \
    type out;                                                                                                          \
    for (int k = 0; k < 4; k++) out.q[k] = (expr);                                                                     \
    return out

FN vf v_set1(float x) {
    EACH(vf, vdupq_n_f32(x));
}
FN vf v_load(const void *p) {
    EACH(vf, vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)p + 16 * k)));
}
FN void v_store(void *p, vf x) {
    for (int k = 0; k < 4; k++) vst1q_u8((uint8_t *)p + 16 * k, vreinterpretq_u8_f32(x.q[k]));
}
FN void v_stream(void *p, vf x) {
    v_store(p, x);
}
FN vf v_add(vf x, vf y) {
    EACH(vf, vaddq_f32(x.q[k], y.q[k]));
}
FN vf v_sub(vf x, vf y) {
    EACH(vf, vsubq_f32(x.q[k], y.q[k]));
}
FN vf v_mul(vf x, vf y) {
    EACH(vf, vmulq_f32(x.q[k], y.q[k]));
}
FN vf v_fma(vf x, vf y, vf z) { /* rounds once: not for codecs */
    EACH(vf, vfmaq_f32(z.q[k], x.q[k], y.q[k]));
}
FN vf v_div(vf x, vf y) {
    EACH(vf, vdivq_f32(x.q[k], y.q[k]));
}
FN vf v_min(vf x, vf y) {
    EACH(vf, vminq_f32(x.q[k], y.q[k]));
}
FN vf v_max(vf x, vf y) {
    EACH(vf, vmaxq_f32(x.q[k], y.q[k]));
}
FN vf v_abs_max(vf acc, vf x) {
    EACH(vf, vmaxq_f32(acc.q[k], vabsq_f32(x.q[k])));
}
FN vf v_zero_unless(vm m, vf x) {
    EACH(vf, vreinterpretq_f32_u32(vandq_u32(m.q[k], vreinterpretq_u32_f32(x.q[k]))));
}
FN vf v_add_where(vf acc, vm m, vf x) {
    return v_add(acc, v_zero_unless(m, x));
}
FN vf v_choose(vm m, vf x, vf y) {
    EACH(vf, vbslq_f32(m.q[k], x.q[k], y.q[k]));
}
FN vm v_gt(vf x, vf y) {
    EACH(vm, vcgtq_f32(x.q[k], y.q[k]));
}
FN vm v_not_zero(vf x) {
    EACH(vm, vmvnq_u32(vceqzq_f32(x.q[k])));
}
FN vm v_unordered(vf x, vf y) {
    EACH(vm, vmvnq_u32(vandq_u32(vceqq_f32(x.q[k], x.q[k]), vceqq_f32(y.q[k], y.q[k]))));
}
FN vm m_or(vm x, vm y) {
    EACH(vm, vorrq_u32(x.q[k], y.q[k]));
}
FN vm m_and(vm x, vm y) {
    EACH(vm, vandq_u32(x.q[k], y.q[k]));
}
FN vm m_without(vm x, vm y) {
    EACH(vm, vbicq_u32(x.q[k], y.q[k]));
}
FN uint32x4_t lane_bits(int k) {
    const uint32_t bits[4] = {1, 2, 4, 8};
    return vshlq_u32(vld1q_u32(bits), vdupq_n_s32(4 * k));
}
FN uint32_t m_bits(vm m) {
    uint32x4_t all = vdupq_n_u32(0);
    for (int k = 0; k < 4; k++) all = vorrq_u32(all, vandq_u32(m.q[k], lane_bits(k)));
    return vaddvq_u32(all);
}
FN vm m_from(uint32_t bits) {
    EACH(vm, vtstq_u32(vdupq_n_u32(bits), lane_bits(k)));
}

FN vi i_set1(uint32_t x) {
    EACH(vi, vdupq_n_u32(x));
}
FN vi i_load(const void *p) {
    EACH(vi, vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * k)));
}
FN void i_store(void *p, vi x) {
    for (int k = 0; k < 4; k++) vst1q_u8((uint8_t *)p + 16 * k, vreinterpretq_u8_u32(x.q[k]));
}
FN vi i_load_u16(const void *p) {
    EACH(vi, vmovl_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)p + 8 * k))));
}
FN vi i_load_u8(const uint8_t *p) {
    uint8x16_t bytes = vld1q_u8(p);
    uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    return (vi){{vmovl_u16(vget_low_u16(low)), vmovl_u16(vget_high_u16(low)), vmovl_u16(vget_low_u16(high)),
                 vmovl_u16(vget_high_u16(high))}};
}
FN void i_store_u16(void *p, vi x) {
    for (int k = 0; k < 4; k++) vst1_u8((uint8_t *)p + 8 * k, vreinterpret_u8_u16(vmovn_u32(x.q[k])));
}
FN uint8x16_t bytes_of(vi x) {
    uint16x8_t low = vcombine_u16(vmovn_u32(x.q[0]), vmovn_u32(x.q[1]));
    uint16x8_t high = vcombine_u16(vmovn_u32(x.q[2]), vmovn_u32(x.q[3]));
    return vcombine_u8(vmovn_u16(low), vmovn_u16(high));
}
FN void i_store_u8(uint8_t *p, vi x) {
    vst1q_u8(p, bytes_of(x));
}
FN vi i_add(vi x, vi y) {
    EACH(vi, vaddq_u32(x.q[k], y.q[k]));
}
FN vi i_and(vi x, vi y) {
    EACH(vi, vandq_u32(x.q[k], y.q[k]));
}
FN vi i_xor(vi x, vi y) {
    EACH(vi, veorq_u32(x.q[k], y.q[k]));
}
FN vi i_mul(vi x, vi y) {
    EACH(vi, vmulq_u32(x.q[k], y.q[k]));
}
FN vi i_min(vi x, vi y) {
    EACH(vi, vreinterpretq_u32_s32(vminq_s32(vreinterpretq_s32_u32(x.q[k]), vreinterpretq_s32_u32(y.q[k]))));
}
FN vi i_max(vi x, vi y) {
    EACH(vi, vreinterpretq_u32_s32(vmaxq_s32(vreinterpretq_s32_u32(x.q[k]), vreinterpretq_s32_u32(y.q[k]))));
}
FN vm i_eq(vi x, vi y) {
    EACH(vm, vceqq_u32(x.q[k], y.q[k]));
}
FN vm i_test(vi x, vi y) {
    EACH(vm, vtstq_u32(x.q[k], y.q[k]));
}
FN vm i_eq_where(vm m, vi x, vi y) {
    return m_and(m, i_eq(x, y));
}
FN vi i_add_where(vi acc, vm m, vi x) {
    EACH(vi, vaddq_u32(acc.q[k], vandq_u32(m.q[k], x.q[k])));
}
FN vi i_count(vi acc, vm m) {
    EACH(vi, vsubq_u32(acc.q[k], m.q[k]));
}
FN vi i_srl(vi x, int n) {
    EACH(vi, vshlq_u32(x.q[k], vdupq_n_s32(-n)));
}
FN vi i_sll(vi x, int n) {
    EACH(vi, vshlq_u32(x.q[k], vdupq_n_s32(n)));
}
FN vi v_to_int(vf x) {
    EACH(vi, vreinterpretq_u32_s32(vcvtq_s32_f32(x.q[k])));
}
FN vf i_to_float(vi x) {
    EACH(vf, vcvtq_f32_s32(vreinterpretq_s32_u32(x.q[k])));
}
FN vf i_as_float(vi x) {
    EACH(vf, vreinterpretq_f32_u32(x.q[k]));
}
FN vi v_as_int(vf x) {
    EACH(vi, vreinterpretq_u32_f32(x.q[k]));
}
FN vf v_load_f16(const void *p) {
    EACH(vf, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)p + 8 * k))));
}
FN void v_store_f16(void *p, vf x) {
    for (int k = 0; k < 4; k++) vst1_u8((uint8_t *)p + 8 * k, vreinterpret_u8_f16(vcvt_f16_f32(x.q[k])));
}

/* table[index], 16 entries; v_look_up8 reads 8 of them. A byte table: lane index i becomes bytes 4i .. 4i + 3. */
FN uint8x16_t byte_index(uint32x4_t index) {
    return vreinterpretq_u8_u32(vaddq_u32(vmulq_u32(index, vdupq_n_u32(0x04040404u)), vdupq_n_u32(0x03020100u)));
}
FN vf v_look_up(vf table, vi index) {
    uint8x16x4_t bytes = {{vreinterpretq_u8_f32(table.q[0]), vreinterpretq_u8_f32(table.q[1]),
                           vreinterpretq_u8_f32(table.q[2]), vreinterpretq_u8_f32(table.q[3])}};
    EACH(vf, vreinterpretq_f32_u8(vqtbl4q_u8(bytes, byte_index(index.q[k]))));
}
FN vf v_look_up8(vf table, vi index) {
    uint8x16x2_t bytes = {{vreinterpretq_u8_f32(table.q[0]), vreinterpretq_u8_f32(table.q[1])}};
    EACH(vf, vreinterpretq_f32_u8(vqtbl2q_u8(bytes, byte_index(index.q[k]))));
}

/* Lanes 0..7 from 8 bytes, from two times four 16-bit numbers; the other lanes are zero or anything. */
FN vi i_from_halves(uint64_t low, uint64_t high) {
    return (vi){{vmovl_u16(vcreate_u16(low)), vmovl_u16(vcreate_u16(high)), vdupq_n_u32(0), vdupq_n_u32(0)}};
}
FN vi i_from_bytes(uint64_t bytes) {
    uint16x8_t halves = vmovl_u8(vcreate_u8(bytes));
    return (vi){{vmovl_u16(vget_low_u16(halves)), vmovl_u16(vget_high_u16(halves)), vdupq_n_u32(0), vdupq_n_u32(0)}};
}
/* x0 y0 x1 y1 ... of lanes 0..7. */
FN vf v_interleave(vf x, vf y) {
    return (vf){{vzip1q_f32(x.q[0], y.q[0]), vzip2q_f32(x.q[0], y.q[0]), vzip1q_f32(x.q[1], y.q[1]),
                 vzip2q_f32(x.q[1], y.q[1])}};
}

/* Halves onto halves: lanes i and i + 8, then i + 4, i + 2, i + 1. */
#define REDUCE(op128, op64, x)                                                                                         \
    float32x4_t q = op128(op128(x.q[0], x.q[2]), op128(x.q[1], x.q[3]));                                               \
    float32x2_t d = op64(vget_low_f32(q), vget_high_f32(q));                                                           \
    return vget_lane_f32(op64(d, vdup_lane_f32(d, 1)), 0)
FN float v_sum(vf x) {
    REDUCE(vaddq_f32, vadd_f32, x);
}
FN float v_least(vf x) {
    REDUCE(vminq_f32, vmin_f32, x);
}
FN float v_most(vf x) {
    REDUCE(vmaxq_f32, vmax_f32, x);
}

/* 64 numbers of a byte each. */
typedef struct vb {
    uint8x16_t q[4];
} vb;

FN vb b_load(const uint8_t *p) {
    EACH(vb, vld1q_u8(p + 16 * k));
}
FN void b_store(uint8_t *p, vb x) {
    for (int k = 0; k < 4; k++) vst1q_u8(p + 16 * k, x.q[k]);
}
FN vb b_zero(void) {
    EACH(vb, vdupq_n_u8(0));
}
FN vb b_from(const vi *x) { /* four times sixteen lanes, all below 256 */
    EACH(vb, bytes_of(x[k]));
}
FN uint64_t b_test(vb x, uint32_t bit) { /* that bit of every number, as a word */
    const uint8x16_t bit_of = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    uint8x16_t m[4];
    for (int k = 0; k < 4; k++) m[k] = vandq_u8(vtstq_u8(x.q[k], vdupq_n_u8((uint8_t)(1u << bit))), bit_of);
    uint8x16_t sum = vpaddq_u8(vpaddq_u8(m[0], m[1]), vpaddq_u8(m[2], m[3]));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sum, sum)), 0);
}
FN uint8x16_t spread_bits(uint32_t bits) { /* byte i: 0xff where bit i of 16 is set */
    const uint8x16_t bit_of = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    return vtstq_u8(vcombine_u8(vdup_n_u8((uint8_t)bits), vdup_n_u8((uint8_t)(bits >> 8))), bit_of);
}
/* 64 codes from words of their bits, most significant first. */
FN void unpack64(const uint64_t *words, uint32_t num, uint8_t *codes) {
    for (int k = 0; k < 4; k++) {
        uint8x16_t bytes = vdupq_n_u8(0);
        for (uint32_t s = 0; s < num; s++)
            bytes = vsubq_u8(vaddq_u8(bytes, bytes), spread_bits((uint32_t)(words[s] >> (16 * k))));
        vst1q_u8(codes + 16 * k, bytes);
    }
}

FN vb b_count(vb acc, uint64_t word) { /* one more where the word's bit is set */
    EACH(vb, vsubq_u8(acc.q[k], spread_bits((uint32_t)(word >> (16 * k)))));
}

/* A table of 16 for look_up64: the entries of 64 codes whose bits stand in `num` words; zero where the support's bit is
 * clear (NULL: nowhere). */
typedef vf table_t;

FN table_t table_of(vf entries) {
    return entries;
}
FN void look_up64(const table_t *table, const uint64_t *words, uint32_t num, const uint64_t *support, vf *out) {
    uint8_t codes[64];
    unpack64(words, num, codes);
    for (uint32_t j = 0; j < 4; j++) {
        out[j] = v_look_up(*table, i_load_u8(codes + 16 * j));
        if (support) out[j] = v_zero_unless(m_from((*support >> (16 * j)) & 0xffff), out[j]);
    }
}
