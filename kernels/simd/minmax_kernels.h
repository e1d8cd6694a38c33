/* The fast paths of min/max over run groups. They take whole groups; a group cut short or with elements that are not
 * finite goes to the reference, and the bytes are the same either way. */

#define VECTORS (DAF_GROUP / 16) /* of a group */
#define AHEAD_BYTES 8192         /* prefetched: a group keeps the processor busy for longer than its prefetcher waits */

FN const uint8_t *source_of(const dafi_span_t *span, uint32_t g, uint32_t dtype) {
    return span->src + (size_t)g * DAF_GROUP * itemsize(dtype);
}

/* Words w of group g in the streams 1..num. */
FN void get_words(const dafi_span_t *span, uint32_t g, uint32_t w, uint64_t *words, uint32_t num) {
    for (uint32_t s = 0; s < num; s++) memcpy(&words[s], span->plane[s + 1] + g * DAF_UNIT_BYTES + w * 8, 8);
}

/* False where an element is not finite. */
FN bool group_range(const uint8_t *src, uint32_t dtype, float *low, float *high, bool *has_zero) {
    vf x = load16(dtype, src), y = load16(dtype, src + 16 * itemsize(dtype));
    vf low_x = x, high_x = x, low_y = y, high_y = y;
    vm is_nan = v_unordered(x, y), is_not_zero = m_and(v_not_zero(x), v_not_zero(y));
    for (uint32_t k = 2; k < VECTORS; k += 2) {
        x = load16(dtype, src + k * 16 * itemsize(dtype));
        y = load16(dtype, src + (k + 1) * 16 * itemsize(dtype));
        low_x = v_min(low_x, x), high_x = v_max(high_x, x);
        low_y = v_min(low_y, y), high_y = v_max(high_y, y);
        is_nan = m_or(is_nan, v_unordered(x, y));
        is_not_zero = m_and(is_not_zero, m_and(v_not_zero(x), v_not_zero(y)));
    }
    *has_zero = m_bits(is_not_zero) != 0xffffu;
    *low = v_least(v_min(low_x, low_y)), *high = v_most(v_max(high_x, high_y));
    return !m_bits(is_nan) && *low > -DAFI_HUGE && *high < DAFI_HUGE;
}

FN vi random32(vi key, vi counter) {
    vi x = i_xor(key, counter);
    x = i_mul(i_xor(x, i_srl(x, 16)), i_set1(DAFI_MIX_1));
    x = i_mul(i_xor(x, i_srl(x, 15)), i_set1(DAFI_MIX_2));
    return i_xor(x, i_srl(x, 16));
}

FN vi quantize(vf x, vf low, vf inverse, vi most, vi round) {
    vi fixed = i_max(i_min(v_to_int(v_mul(v_sub(x, low), inverse)), most), i_set1(0));
    return i_srl(i_add(fixed, round), 16);
}

/* Zeros are never rounded at random. */
FN vi quantize_sr(vf x, vf low, vf inverse, vi most, vi random) {
    vi half = i_set1(0x8000u);
    return quantize(x, low, inverse, most, i_add_where(half, v_not_zero(x), i_add(random, i_set1(-0x8000u))));
}

static const uint32_t lane_counters[16] = {
#define LANE(i) (i) * DAFI_COUNTER_STEP
    LANE(0u), LANE(1u), LANE(2u),  LANE(3u),  LANE(4u),  LANE(5u),  LANE(6u),  LANE(7u),
    LANE(8u), LANE(9u), LANE(10u), LANE(11u), LANE(12u), LANE(13u), LANE(14u), LANE(15u),
#undef LANE
};

FN void prefetch64(uint32_t dtype, const uint8_t *at) {
    for (uint32_t byte = 0; byte < 64 * itemsize(dtype); byte += 64) __builtin_prefetch(at + AHEAD_BYTES + byte);
}

/* Group g's codes, 64 at a time. */
FN void minmax_codes(const dafi_span_t *span, uint32_t g, uint32_t dtype, const uint16_t head[2], bool is_stochastic,
                     vb codes[4]) {
    const uint8_t *at = source_of(span, g, dtype);
    float scale, first = dafi_minmax_grid(head, &scale);
    vf low = v_set1(first), inverse = v_set1(dafi_minmax_inverse(scale));
    vi most = i_set1(((1u << span->job.bits) - 1) << 16);
    vi key = i_set1(dafi_group_key(span->seed, span->first_group + g));
    vi counter = i_load(lane_counters), half = i_set1(0x8000u);
    UNROLL(4)
    for (uint32_t w = 0; w < 4; w++) {
        vi lanes[4];
        prefetch64(dtype, at);
        for (uint32_t k = 0; k < 4; k += 2, at += 32 * itemsize(dtype)) {
            vf x = load16(dtype, at), y = load16(dtype, at + 16 * itemsize(dtype));
            if (is_stochastic) {
                vi random = random32(key, counter);
                lanes[k] = quantize_sr(x, low, inverse, most, i_and(random, i_set1(0xffff)));
                lanes[k + 1] = quantize_sr(y, low, inverse, most, i_srl(random, 16));
                counter = i_add(counter, i_set1(16u * DAFI_COUNTER_STEP));
            } else {
                lanes[k] = quantize(x, low, inverse, most, half);
                lanes[k + 1] = quantize(y, low, inverse, most, half);
            }
        }
        codes[w] = b_from(lanes);
    }
}

FN void minmax_encode_group(const dafi_span_t *span, uint32_t g, uint32_t dtype, bool is_stochastic) {
    float least, greatest;
    uint16_t head[2];
    vb codes[4];
    uint32_t bits = span->job.bits;
    bool has_zero;
    if (!group_range(source_of(span, g, dtype), dtype, &least, &greatest, &has_zero) ||
        dafi_is_constant(least, greatest)) {
        dafi_span_encode_group(span, g);
        return;
    }
    dafi_minmax_head(least, greatest, bits, has_zero, head);
    memcpy(span->head[0] + 4 * g, head, 4);
    minmax_codes(span, g, dtype, head, is_stochastic, codes);
    for (uint32_t s = 1; s <= bits; s++) {
        uint8_t *unit = span->plane[s] + g * DAF_UNIT_BYTES;
        for (uint32_t w = 0; w < 4; w++) {
            uint64_t word = b_test(codes[w], bits - s);
            memcpy(unit + 8 * w, &word, 8); /* one by one: gathered first, they would be read before they are written */
        }
    }
}

FN vf zero_at(vi codes, vi zero, vf x) {
    return v_choose(i_eq(codes, zero), v_set1(0.0f), x);
}

FN void minmax_decode_group(const dafi_span_t *span, uint32_t g, uint32_t dtype, bool is_streaming) {
    uint8_t *dst = span->dst + (size_t)g * DAF_GROUP * itemsize(dtype);
    uint16_t head[2];
    float least, size;
    uint32_t live = span->job.live;
    memcpy(head, span->head[0] + 4 * g, 4);
    if (isnan(dafi_from_bf16(head[0])) || dafi_minmax_is_constant(head)) {
        dafi_span_decode_group(span, g);
        return;
    }
    vi zero = i_set1(dafi_minmax_affine(head, span->job.bits, live, &least, &size));
    bool is_cut = head[1] & DAFI_HEAD_FLAG && live < span->job.bits; /* else zero's code gives zero by itself */
    vf low = v_set1(least), step = v_set1(size);
    for (uint32_t w = 0; w < 4; w++) {
        uint8_t codes[64] __attribute__((aligned(64)));
        uint64_t words[DAFI_MAX_PLANES];
        get_words(span, g, w, words, live);
        unpack64(words, live, codes);
        for (uint32_t j = 0; j < 64; j += 16) {
            vi code = i_load_u8(codes + j);
            vf x = v_add(low, v_mul(step, i_to_float(code)));
            if (is_cut) x = zero_at(code, zero, x);
            store16(dtype, dst + (64 * w + j) * itemsize(dtype), x, is_streaming);
        }
    }
}
