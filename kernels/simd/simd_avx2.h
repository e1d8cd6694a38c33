/* Sixteen lanes in two AVX2 registers. The vocabulary of the *_kernels.h. */
#include <immintrin.h>

#define FN static inline __attribute__((always_inline))
#define ISA_NAME avx2
#define HAS_STREAMING 1 /* v_stream writes past the caches; 64-byte aligned */
#define PRODUCT_ROWS 6  /* rows and vectors of sums that stay in registers */
#define PRODUCT_VECS 1

typedef struct vf {
    __m256 a, b;
} vf;
typedef struct vi {
    __m256i a, b;
} vi;
typedef struct vm {
    __m256 a, b;
} vm; /* all bits of a lane set, or none */

#define EACH_F(fn, x, y) ((vf){fn(x.a, y.a), fn(x.b, y.b)})
#define EACH_I(fn, x, y) ((vi){fn(x.a, y.a), fn(x.b, y.b)})
#define EACH_M(fn, x, y) ((vm){fn(x.a, y.a), fn(x.b, y.b)})

FN vf v_set1(float x) {
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
FN vf v_load(const void *p) {
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)};
}
FN void v_store(void *p, vf x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps((float *)p + 8, x.b);
}
FN void v_stream(void *p, vf x) {
    _mm256_stream_ps(p, x.a);
    _mm256_stream_ps((float *)p + 8, x.b);
}
FN vf v_add(vf x, vf y) {
    return EACH_F(_mm256_add_ps, x, y);
}
FN vf v_sub(vf x, vf y) {
    return EACH_F(_mm256_sub_ps, x, y);
}
FN vf v_mul(vf x, vf y) {
    return EACH_F(_mm256_mul_ps, x, y);
}
FN vf v_fma(vf x, vf y, vf z) { /* rounds once: not for codecs */
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
FN vf v_div(vf x, vf y) {
    return EACH_F(_mm256_div_ps, x, y);
}
FN vf v_min(vf x, vf y) {
    return EACH_F(_mm256_min_ps, x, y);
}
FN vf v_max(vf x, vf y) {
    return EACH_F(_mm256_max_ps, x, y);
}
FN __m256 abs_of(__m256 x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
FN vf v_abs_max(vf acc, vf x) {
    return (vf){_mm256_max_ps(acc.a, abs_of(x.a)), _mm256_max_ps(acc.b, abs_of(x.b))};
}
FN vf v_zero_unless(vm m, vf x) {
    return EACH_F(_mm256_and_ps, m, x);
}
FN vf v_add_where(vf acc, vm m, vf x) {
    return v_add(acc, v_zero_unless(m, x));
}
FN vf v_choose(vm m, vf x, vf y) {
    return (vf){_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
#define COMPARE(x, y, how) ((vm){_mm256_cmp_ps(x.a, y.a, how), _mm256_cmp_ps(x.b, y.b, how)})
FN vm v_gt(vf x, vf y) {
    return COMPARE(x, y, _CMP_GT_OQ);
}
FN vm v_not_zero(vf x) {
    vf zero = v_set1(0.0f);
    return COMPARE(x, zero, _CMP_NEQ_UQ);
}
FN vm v_unordered(vf x, vf y) {
    return COMPARE(x, y, _CMP_UNORD_Q);
}
FN vm m_or(vm x, vm y) {
    return EACH_M(_mm256_or_ps, x, y);
}
FN vm m_and(vm x, vm y) {
    return EACH_M(_mm256_and_ps, x, y);
}
FN vm m_without(vm x, vm y) {
    return EACH_M(_mm256_andnot_ps, y, x);
}
FN uint32_t m_bits(vm m) {
    return (uint32_t)_mm256_movemask_ps(m.a) | (uint32_t)_mm256_movemask_ps(m.b) << 8;
}
FN vm m_from(uint32_t bits) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i low = _mm256_and_si256(_mm256_set1_epi32((int)bits), lane);
    __m256i high = _mm256_and_si256(_mm256_set1_epi32((int)(bits >> 8)), lane);
    return (vm){_mm256_castsi256_ps(_mm256_cmpeq_epi32(low, lane)),
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(high, lane))};
}

FN vi i_set1(uint32_t x) {
    return (vi){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)};
}
FN vi i_load(const void *p) {
    return (vi){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
FN void i_store(void *p, vi x) {
    _mm256_storeu_si256(p, x.a);
    _mm256_storeu_si256((__m256i *)p + 1, x.b);
}
FN vi i_load_u8(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const void *)p);
    return (vi){_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
FN __m256i halves_of(vi x) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8);
}
FN void i_store_u8(uint8_t *p, vi x) {
    __m256i words = halves_of(x);
    _mm_storeu_si128((void *)p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
FN vi i_add(vi x, vi y) {
    return EACH_I(_mm256_add_epi32, x, y);
}
FN vi i_and(vi x, vi y) {
    return EACH_I(_mm256_and_si256, x, y);
}
FN vi i_xor(vi x, vi y) {
    return EACH_I(_mm256_xor_si256, x, y);
}
FN vi i_mul(vi x, vi y) {
    return EACH_I(_mm256_mullo_epi32, x, y);
}
FN vi i_min(vi x, vi y) {
    return EACH_I(_mm256_min_epi32, x, y);
}
FN vi i_max(vi x, vi y) {
    return EACH_I(_mm256_max_epi32, x, y);
}
FN vm i_eq(vi x, vi y) {
    return (vm){_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.a, y.a)), _mm256_castsi256_ps(_mm256_cmpeq_epi32(x.b, y.b))};
}
FN vi m_as_int(vm m) {
    return (vi){_mm256_castps_si256(m.a), _mm256_castps_si256(m.b)};
}
FN vm i_test(vi x, vi bit) {
    return i_eq(i_and(x, bit), bit);
} /* of one bit */
FN vm i_eq_where(vm m, vi x, vi y) {
    return m_and(m, i_eq(x, y));
}
FN vi i_add_where(vi acc, vm m, vi x) {
    return i_add(acc, i_and(m_as_int(m), x));
}
FN vi i_count(vi acc, vm m) {
    return (vi){_mm256_sub_epi32(acc.a, _mm256_castps_si256(m.a)), _mm256_sub_epi32(acc.b, _mm256_castps_si256(m.b))};
}
#define i_srl(x, n) ((vi){_mm256_srli_epi32((x).a, n), _mm256_srli_epi32((x).b, n)})
#define i_sll(x, n) ((vi){_mm256_slli_epi32((x).a, n), _mm256_slli_epi32((x).b, n)})
FN vi v_to_int(vf x) {
    return (vi){_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)};
}
FN vf i_to_float(vi x) {
    return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
FN vf i_as_float(vi x) {
    return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
FN vi v_as_int(vf x) {
    return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}

FN vi i_load_u16(const void *p) {
    const __m128i *half = p;
    return (vi){_mm256_cvtepu16_epi32(_mm_loadu_si128(half)), _mm256_cvtepu16_epi32(_mm_loadu_si128(half + 1))};
}
FN void i_store_u16(void *p, vi x) {
    _mm256_storeu_si256(p, halves_of(x));
}
FN vf v_load_f16(const void *p) {
    const __m128i *half = p;
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
}
FN void v_store_f16(void *p, vf x) {
    __m128i *half = p;
    _mm_storeu_si128(half, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(half + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* table[index] of the first 8 entries. */
FN vf v_look_up8(vf table, vi index) {
    return (vf){_mm256_permutevar8x32_ps(table.a, index.a), _mm256_permutevar8x32_ps(table.a, index.b)};
}

/* Lanes 0..7 from 8 bytes, from two times four 16-bit numbers; the other lanes are zero or anything. */
FN vi i_from_bytes(uint64_t bytes) {
    return (vi){_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes)), _mm256_setzero_si256()};
}
FN vi i_from_halves(uint64_t low, uint64_t high) {
    return (vi){_mm256_cvtepu16_epi32(_mm_set_epi64x((long long)high, (long long)low)), _mm256_setzero_si256()};
}
/* x0 y0 x1 y1 ... of lanes 0..7. */
FN vf v_interleave(vf x, vf y) {
    __m256 low = _mm256_unpacklo_ps(x.a, y.a), high = _mm256_unpackhi_ps(x.a, y.a);
    return (vf){_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}

/* Halves onto halves: lanes i and i + 8, then i + 4, i + 2, i + 1. */
#define REDUCE(op256, op128, x)                                                                                        \
    __m256 h = op256(x.a, x.b);                                                                                        \
    __m128 q = op128(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));                                          \
    q = op128(q, _mm_movehl_ps(q, q));                                                                                 \
    return _mm_cvtss_f32(op128(q, _mm_shuffle_ps(q, q, 1)))
FN float v_sum(vf x) {
    REDUCE(_mm256_add_ps, _mm_add_ps, x);
}
FN float v_least(vf x) {
    REDUCE(_mm256_min_ps, _mm_min_ps, x);
}
FN float v_most(vf x) {
    REDUCE(_mm256_max_ps, _mm_max_ps, x);
}

/* 64 numbers of a byte each. */
typedef struct vb {
    __m256i a, b;
} vb;

FN vb b_load(const uint8_t *p) {
    return (vb){_mm256_loadu_si256((const void *)p), _mm256_loadu_si256((const void *)(p + 32))};
}
FN void b_store(uint8_t *p, vb x) {
    _mm256_storeu_si256((void *)p, x.a);
    _mm256_storeu_si256((void *)(p + 32), x.b);
}
FN vb b_zero(void) {
    return (vb){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
FN __m256i bytes_of(vi x, vi y) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_packus_epi32(x.a, x.b), high = _mm256_packus_epi32(y.a, y.b);
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
}
FN vb b_from(const vi *x) { /* four times sixteen lanes, all below 256 */
    return (vb){bytes_of(x[0], x[1]), bytes_of(x[2], x[3])};
}
FN uint64_t b_test(vb x, uint32_t bit) { /* that bit of every number, as a word */
    const __m128i to_top = _mm_cvtsi32_si128((int)(7 - bit));
    uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_sll_epi16(x.a, to_top));
    return low | (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_sll_epi16(x.b, to_top)) << 32;
}
FN __m256i spread_bits(uint32_t bits) { /* byte i: 0xff where bit i is set */
    const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), byte_of);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of);
}
/* 64 codes from words of their bits, most significant first. */
FN __m256i codes32(const uint64_t *words, uint32_t num, uint32_t shift) {
    __m256i codes = _mm256_setzero_si256();
    for (uint32_t s = 0; s < num; s++)
        codes = _mm256_sub_epi8(_mm256_add_epi8(codes, codes), spread_bits((uint32_t)(words[s] >> shift)));
    return codes;
}
FN void unpack64(const uint64_t *words, uint32_t num, uint8_t *codes) {
    _mm256_storeu_si256((void *)codes, codes32(words, num, 0));
    _mm256_storeu_si256((void *)(codes + 32), codes32(words, num, 32));
}

FN vb b_count(vb acc, uint64_t word) { /* one more where the word's bit is set */
    return (vb){_mm256_sub_epi8(acc.a, spread_bits((uint32_t)word)),
                _mm256_sub_epi8(acc.b, spread_bits((uint32_t)(word >> 32)))};
}

/* A table of 16 for look_up64: byte k of every entry, in both halves. A byte shuffle looks up 32 codes at once. */
typedef struct table {
    __m256i byte[4];
} table_t;

FN table_t table_of(vf entries) {
    const __m256i by_byte =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m256i a = _mm256_shuffle_epi8(_mm256_castps_si256(entries.a), by_byte); /* bytes 0 of four, bytes 1, ... */
    __m256i b = _mm256_shuffle_epi8(_mm256_castps_si256(entries.b), by_byte);
    __m128i a0 = _mm256_castsi256_si128(a), a1 = _mm256_extracti128_si256(a, 1);
    __m128i b0 = _mm256_castsi256_si128(b), b1 = _mm256_extracti128_si256(b, 1);
    __m128i a01 = _mm_unpacklo_epi32(a0, a1), a23 = _mm_unpackhi_epi32(a0, a1);
    __m128i b01 = _mm_unpacklo_epi32(b0, b1), b23 = _mm_unpackhi_epi32(b0, b1);
    return (table_t){{_mm256_broadcastsi128_si256(_mm_unpacklo_epi64(a01, b01)),
                      _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(a01, b01)),
                      _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(a23, b23)),
                      _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(a23, b23))}};
}
FN vf join_halves(__m256i a, __m256i b, __m256i c, __m256i d, bool is_upper) {
    return (vf){
        _mm256_castsi256_ps(is_upper ? _mm256_permute2x128_si256(a, b, 0x31) : _mm256_permute2x128_si256(a, b, 0x20)),
        _mm256_castsi256_ps(is_upper ? _mm256_permute2x128_si256(c, d, 0x31) : _mm256_permute2x128_si256(c, d, 0x20))};
}
FN void look_up32(const table_t *table, __m256i codes, vf *out) {
    __m256i b0 = _mm256_shuffle_epi8(table->byte[0], codes), b1 = _mm256_shuffle_epi8(table->byte[1], codes);
    __m256i b2 = _mm256_shuffle_epi8(table->byte[2], codes), b3 = _mm256_shuffle_epi8(table->byte[3], codes);
    __m256i low_a = _mm256_unpacklo_epi8(b0, b1), high_a = _mm256_unpackhi_epi8(b0, b1);
    __m256i low_b = _mm256_unpacklo_epi8(b2, b3), high_b = _mm256_unpackhi_epi8(b2, b3);
    __m256i q0 = _mm256_unpacklo_epi16(low_a, low_b), q1 = _mm256_unpackhi_epi16(low_a, low_b);
    __m256i q2 = _mm256_unpacklo_epi16(high_a, high_b), q3 = _mm256_unpackhi_epi16(high_a, high_b);
    out[0] = join_halves(q0, q1, q2, q3, false); /* each of q0..q3: four of the first 16 codes, four of the others */
    out[1] = join_halves(q0, q1, q2, q3, true);
}
/* A byte shuffle gives zero for a code whose top bit is set. */
FN __m256i only_where(__m256i codes, uint32_t bits) {
    return _mm256_or_si256(codes, _mm256_andnot_si256(spread_bits(bits), _mm256_set1_epi8((char)0x80)));
}
FN void look_up64(const table_t *table, const uint64_t *words, uint32_t num, const uint64_t *support, vf *out) {
    __m256i low = codes32(words, num, 0), high = codes32(words, num, 32);
    look_up32(table, support ? only_where(low, (uint32_t)*support) : low, out);
    look_up32(table, support ? only_where(high, (uint32_t)(*support >> 32)) : high, out + 2);
}
