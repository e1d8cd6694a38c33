/* Sixteen lanes in one AVX-512 register. The vocabulary of the *_kernels.h. */
#include <immintrin.h>

#define FN static inline __attribute__((always_inline))
#define ISA_NAME avx512
#define HAS_STREAMING 1 /* v_stream writes past the caches; 64-byte aligned */
#define PRODUCT_ROWS 8  /* rows and vectors of sums that stay in registers */
#define PRODUCT_VECS 2

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

FN vf v_set1(float a) {
    return _mm512_set1_ps(a);
}
FN vf v_load(const void *p) {
    return _mm512_loadu_ps(p);
}
FN void v_store(void *p, vf a) {
    _mm512_storeu_ps(p, a);
}
FN void v_stream(void *p, vf a) {
    _mm512_stream_ps(p, a);
}
FN vf v_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
FN vf v_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
FN vf v_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
FN vf v_fma(vf a, vf b, vf c) { /* rounds once: not for codecs */
    return _mm512_fmadd_ps(a, b, c);
}
FN vf v_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
FN vf v_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
FN vf v_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
FN vf v_abs_max(vf acc, vf a) {
    return _mm512_range_ps(acc, a, 0x0b);
}
FN vf v_add_where(vf acc, vm m, vf a) {
    return _mm512_mask_add_ps(acc, m, acc, a);
}
FN vf v_zero_unless(vm m, vf a) {
    return _mm512_maskz_mov_ps(m, a);
}
FN vf v_choose(vm m, vf a, vf b) {
    return _mm512_mask_blend_ps(m, b, a);
} /* m ? a : b */
FN vm v_gt(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
FN vm v_not_zero(vf a) {
    return _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NEQ_UQ);
}
FN vm v_unordered(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}
FN vm m_or(vm a, vm b) {
    return a | b;
}
FN vm m_and(vm a, vm b) {
    return a & b;
}
FN vm m_without(vm a, vm b) {
    return (vm)(a & ~b);
}
FN uint32_t m_bits(vm m) {
    return m;
}
FN vm m_from(uint32_t bits) {
    return (vm)bits;
}

FN vi i_set1(uint32_t a) {
    return _mm512_set1_epi32((int)a);
}
FN vi i_load(const void *p) {
    return _mm512_loadu_si512(p);
}
FN void i_store(void *p, vi a) {
    _mm512_storeu_si512(p, a);
}
FN vi i_load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}
FN void i_store_u8(uint8_t *p, vi a) {
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(a));
}
FN vi i_add(vi a, vi b) {
    return _mm512_add_epi32(a, b);
}
FN vi i_and(vi a, vi b) {
    return _mm512_and_si512(a, b);
}
FN vi i_xor(vi a, vi b) {
    return _mm512_xor_si512(a, b);
}
FN vi i_mul(vi a, vi b) {
    return _mm512_mullo_epi32(a, b);
}
FN vi i_min(vi a, vi b) {
    return _mm512_min_epi32(a, b);
}
FN vi i_max(vi a, vi b) {
    return _mm512_max_epi32(a, b);
}
FN vm i_eq(vi a, vi b) {
    return _mm512_cmpeq_epi32_mask(a, b);
}
FN vm i_test(vi a, vi b) {
    return _mm512_test_epi32_mask(a, b);
} /* any common bit */
FN vm i_eq_where(vm m, vi a, vi b) {
    return _mm512_mask_cmpeq_epi32_mask(m, a, b);
}
FN vi i_add_where(vi acc, vm m, vi a) {
    return _mm512_mask_add_epi32(acc, m, acc, a);
}
FN vi i_count(vi acc, vm m) {
    return _mm512_mask_add_epi32(acc, m, acc, _mm512_set1_epi32(1));
}
#define i_srl(a, n) _mm512_srli_epi32(a, n)
#define i_sll(a, n) _mm512_slli_epi32(a, n)
FN vi v_to_int(vf a) {
    return _mm512_cvttps_epi32(a);
}
FN vf i_to_float(vi a) {
    return _mm512_cvtepi32_ps(a);
}
FN vf i_as_float(vi a) {
    return _mm512_castsi512_ps(a);
}
FN vi v_as_int(vf a) {
    return _mm512_castps_si512(a);
}

FN vi i_load_u16(const void *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
}
FN void i_store_u16(void *p, vi a) {
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(a));
}
FN vf v_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
FN void v_store_f16(void *p, vf a) {
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* table[index], 16 entries. */
FN vf v_look_up(vf table, vi index) {
    return _mm512_permutexvar_ps(index, table);
}
FN vf v_look_up8(vf table, vi index) {
    return _mm512_permutexvar_ps(index, table);
}

/* Lanes 0..7 from 8 bytes, from two times four 16-bit numbers; the other lanes are zero or anything. */
FN vi i_from_bytes(uint64_t bytes) {
    return _mm512_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
}
FN vi i_from_halves(uint64_t low, uint64_t high) {
    return _mm512_cvtepu16_epi32(_mm256_castsi128_si256(_mm_set_epi64x((long long)high, (long long)low)));
}
/* x0 y0 x1 y1 ... of lanes 0..7. */
FN vf v_interleave(vf x, vf y) {
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return _mm512_permutex2var_ps(x, order, y);
}

/* Halves onto halves: lanes i and i + 8, then i + 4, i + 2, i + 1. */
#define REDUCE(op256, op128, a)                                                                                        \
    __m256 h = op256(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));                                         \
    __m128 q = op128(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));                                          \
    q = op128(q, _mm_movehl_ps(q, q));                                                                                 \
    return _mm_cvtss_f32(op128(q, _mm_shuffle_ps(q, q, 1)))
FN float v_sum(vf a) {
    REDUCE(_mm256_add_ps, _mm_add_ps, a);
}
FN float v_least(vf a) {
    REDUCE(_mm256_min_ps, _mm_min_ps, a);
}
FN float v_most(vf a) {
    REDUCE(_mm256_max_ps, _mm_max_ps, a);
}

/* 64 numbers of a byte each. */
typedef __m512i vb;

FN vb b_load(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}
FN void b_store(uint8_t *p, vb a) {
    _mm512_storeu_si512(p, a);
}
FN vb b_zero(void) {
    return _mm512_setzero_si512();
}
FN vb b_from(const vi *a) { /* four times sixteen lanes, all below 256 */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i low = _mm512_packus_epi32(a[0], a[1]), high = _mm512_packus_epi32(a[2], a[3]);
    return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
}
FN uint64_t b_test(vb a, uint32_t bit) { /* that bit of every number, as a word */
    return _mm512_test_epi8_mask(a, _mm512_set1_epi8((char)(1u << bit)));
}
FN vb b_count(vb acc, uint64_t word) { /* one more where the word's bit is set */
    return _mm512_mask_sub_epi8(acc, word, acc, _mm512_set1_epi8(-1));
}

/* 64 codes from words of their bits, most significant first. */
FN void unpack64(const uint64_t *words, uint32_t num, uint8_t *codes) {
    __m512i bytes = _mm512_setzero_si512();
    for (uint32_t s = 0; s < num; s++)
        bytes = _mm512_mask_add_epi8(bytes, words[s], bytes, _mm512_set1_epi8((char)(1u << (num - 1 - s))));
    _mm512_storeu_si512(codes, bytes);
}

/* A table of 16 for look_up64: the entries of 64 codes whose bits stand in `num` words; zero where the support's bit is
 * clear (NULL: nowhere). */
typedef vf table_t;

FN table_t table_of(vf entries) {
    return entries;
}
FN void look_up64(const table_t *table, const uint64_t *words, uint32_t num, const uint64_t *support, vf *out) {
    uint8_t codes[64] __attribute__((aligned(64)));
    unpack64(words, num, codes);
    for (uint32_t j = 0; j < 4; j++) {
        out[j] = v_look_up(*table, i_load_u8(codes + 16 * j));
        if (support) out[j] = v_zero_unless(m_from((*support >> (16 * j)) & 0xffff), out[j]);
    }
}
