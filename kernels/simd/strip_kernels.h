/* The fast paths over whole strips: 64 columns, so that a row's codes are 64 bytes, a row of a plane is one
 * word, and four lines of elements are read or written side by side. Other strips go tile by tile. */

#define STRIP_TILES DAFI_STRIP_TILES
/* Calls `macro` with a number of planes as a constant. Sanitizers do without, for the build's time. */
#if defined(DAF_NO_UNROLL)
#define EACH_BITS(bits, macro) macro(bits);
#else
#define BITS_CASE(bits, macro)                                                                                         \
    case bits:                                                                                                         \
        macro(bits);                                                                                                   \
        break;
#define EACH_BITS(bits, macro)                                                                                         \
    switch (bits) {                                                                                                    \
        BITS_CASE(0, macro)                                                                                            \
        BITS_CASE(1, macro)                                                                                            \
        BITS_CASE(2, macro)                                                                                            \
        BITS_CASE(3, macro)                                                                                            \
        BITS_CASE(4, macro)                                                                                            \
        BITS_CASE(5, macro)                                                                                            \
        BITS_CASE(6, macro)                                                                                            \
        BITS_CASE(7, macro)                                                                                            \
    default:                                                                                                           \
        macro(8);                                                                                                      \
        break;                                                                                                         \
    }
#endif

/* Tile t of a strip, given the first. */
FN dafi_tile_t strip_tile(const dafi_tile_t *first, uint32_t t) {
    dafi_tile_t tile = *first;
    if (tile.src) tile.src += first->offset[t];
    if (tile.dst) tile.dst += first->offset[t];
    tile.x += t * DAF_GROUP * DAFI_TILE_COLS;
    tile.counts = (const uint16_t(*)[64])(*first->counts + t * DAFI_TILE_COLS);
    tile.first_group += t * DAFI_TILE_COLS;
    for (uint32_t s = 0; s <= tile.job.bits; s++) {
        if (tile.mask[s]) tile.mask[s] += t;
        tile.head[s] += t * DAFI_TILE_COLS * tile.codec->head_bytes(s);
    }
    return tile;
}

FN void strip_escaped(const dafi_tile_t *first, const uint32_t *escaped, bool is_encode) {
    for (uint32_t t = 0; t < STRIP_TILES; t++) {
        if (!escaped[t]) continue;
        dafi_tile_t tile = strip_tile(first, t);
        if (is_encode)
            tile_encode_escaped(&tile, escaped[t]);
        else
            tile_decode_escaped(&tile, escaped[t]);
    }
}

FN uint64_t *strip_words(const dafi_tile_t *first, uint32_t s) {
    return (uint64_t *)(void *)first->mask[s]; /* aligned by column_groups.c */
}

FN void strip_decode_rows(const dafi_tile_t *first, const vf *low, const vf *step, uint32_t live, bool is_streaming) {
    uint32_t dtype = first->dtype, num_rows = first->num_rows;
    size_t stride_bytes = first->stride_bytes;
    uint8_t *dst = first->dst, codes[64] __attribute__((aligned(64)));
    const uint64_t *words = strip_words(first, 1);
    for (uint32_t r = 0; r < num_rows; r++, dst += stride_bytes) {
        uint64_t row[8];
        UNROLL_WORDS(8)
        for (uint32_t s = 0; s < live; s++) row[s] = words[s * DAF_GROUP + r];
        unpack64(row, live, codes);
        UNROLL_WORDS(4)
        for (uint32_t t = 0; t < STRIP_TILES; t++) {
            vf x = v_add(low[t], v_mul(step[t], i_to_float(i_load_u8(codes + 16 * t))));
            store16(dtype, dst + first->offset[t], x, is_streaming);
        }
    }
}

static void strip_decode_minmax(const dafi_tile_t *first) {
    vf low[STRIP_TILES], step[STRIP_TILES];
    uint32_t escaped[STRIP_TILES], any = 0;
    bool has_zero = false;
    for (uint32_t t = 0; t < STRIP_TILES; t++) {
        affine_t a = tile_affine(first->head[0] + t * DAFI_TILE_COLS * 4, first->job.bits, first->job.live);
        low[t] = a.low, step[t] = a.step, escaped[t] = a.escaped;
        any |= a.escaped, has_zero |= a.has_zero;
    }
    for (uint32_t t = 0; has_zero && t < STRIP_TILES; t++) {
        dafi_tile_t tile = strip_tile(first, t);
        tile_decode_minmax(&tile);
    }
    if (has_zero) return;
    bool is_streaming = first->is_streaming && !any;
#define DECODE(live)                                                                                                   \
    if (first->dtype == DAF_FLOAT32 && is_streaming)                                                                   \
        strip_decode_rows(first, low, step, live, true);                                                               \
    else                                                                                                               \
        strip_decode_rows(first, low, step, live, false)
    EACH_BITS(first->job.live, DECODE)
#undef DECODE
    strip_escaped(first, escaped, false);
}

typedef struct range {
    float least[STRIP_TILES][DAFI_TILE_COLS], most[STRIP_TILES][DAFI_TILE_COLS];
    uint32_t is_nan[STRIP_TILES], has_zero[STRIP_TILES];
} range_t;

/* Two rows at a time: one comparison finds a NaN in either. */
FN void strip_range_rows(const dafi_tile_t *first, uint32_t dtype, uint32_t from, uint32_t end, range_t *range) {
    size_t stride_bytes = first->stride_bytes;
    for (uint32_t t = 0; t < STRIP_TILES; t++) {
        const uint8_t *at = first->src + first->offset[t] + from * stride_bytes;
        vf least = v_load(range->least[t]), most = v_load(range->most[t]);
        vm is_nan = v_unordered(least, most), is_not_zero = m_from(0xffffu);
        for (uint32_t r = from; r < end; r += 2, at += 2 * stride_bytes) {
            __builtin_prefetch(at + BLOCK_ROWS * stride_bytes);
            __builtin_prefetch(at + (BLOCK_ROWS + 1) * stride_bytes);
            vf x = load16(dtype, at), y = load16(dtype, r + 1 < end ? at + stride_bytes : at);
            least = v_min(least, v_min(x, y)), most = v_max(most, v_max(x, y));
            is_nan = m_or(is_nan, v_unordered(x, y));
            is_not_zero = m_and(is_not_zero, m_and(v_not_zero(x), v_not_zero(y)));
        }
        v_store(range->least[t], least), v_store(range->most[t], most);
        range->is_nan[t] |= m_bits(is_nan), range->has_zero[t] |= outside(is_not_zero);
    }
}

FN void strip_range(const dafi_tile_t *first, range_t *range) {
    uint32_t num_rows = first->num_rows;
    for (uint32_t t = 0; t < STRIP_TILES; t++) {
        vf x = load16(first->dtype, first->src + first->offset[t]);
        v_store(range->least[t], x), v_store(range->most[t], x);
        range->is_nan[t] = range->has_zero[t] = 0;
    }
    for (uint32_t r = 0; r < num_rows; r += BLOCK_ROWS) {
#define FIND(dtype) strip_range_rows(first, dtype, r, r + BLOCK_ROWS < num_rows ? r + BLOCK_ROWS : num_rows, range)
        EACH_DTYPE(first->dtype, FIND)
#undef FIND
    }
}

FN void strip_encode_rows(const dafi_tile_t *first, const vf *low, const vf *inverse, uint32_t bits) {
    uint32_t dtype = first->dtype, num_rows = first->num_rows;
    size_t stride_bytes = first->stride_bytes;
    const uint8_t *src = first->src;
    uint64_t *words = strip_words(first, 1);
    vi most = i_set1(((1u << bits) - 1) << 16), codes[STRIP_TILES];
    for (uint32_t r = 0; r < num_rows; r++, src += stride_bytes) {
        UNROLL_WORDS(4)
        for (uint32_t t = 0; t < STRIP_TILES; t++)
            codes[t] = quantize(load16(dtype, src + first->offset[t]), low[t], inverse[t], most, i_set1(0x8000u));
        vb bytes = b_from(codes);
        UNROLL_WORDS(8)
        for (uint32_t s = 0; s < bits; s++) words[s * DAF_GROUP + r] = b_test(bytes, bits - 1 - s);
    }
}

static void strip_encode_minmax(const dafi_tile_t *first) {
    range_t range;
    vf low[STRIP_TILES], inverse[STRIP_TILES];
    uint32_t escaped[STRIP_TILES];
    strip_range(first, &range);
    for (uint32_t t = 0; t < STRIP_TILES; t++) {
        vf least = v_load(range.least[t]), most = v_load(range.most[t]);
        uint8_t *heads = first->head[0] + t * DAFI_TILE_COLS * 4;
        inverse[t] = minmax_heads(heads, first->job.bits, least, most, range.has_zero[t], &low[t]);
        escaped[t] = range.is_nan[t] | irregular(least, most) | constant(least, most);
    }
#define ENCODE(bits) strip_encode_rows(first, low, inverse, bits)
    EACH_BITS(first->job.bits, ENCODE)
#undef ENCODE
    strip_escaped(first, escaped, true);
}

/* --- mean-split and support --- */

FN void strip_encode_tree(const dafi_tile_t *first, bool has_support) {
    dafi_tile_t tiles[STRIP_TILES];
    sums_t sums[STRIP_TILES];
    uint32_t num_rows = first->num_rows;
    memset(sums, 0, sizeof sums);
    for (uint32_t t = 0; t < STRIP_TILES; t++) tiles[t] = strip_tile(first, t);
    for (uint32_t r = 0; r < num_rows; r += BLOCK_ROWS) {
        uint32_t end = r + BLOCK_ROWS < num_rows ? r + BLOCK_ROWS : num_rows;
#define SUM(dtype)                                                                                                     \
    for (uint32_t t = 0; t < STRIP_TILES; t++) tile_sum_rows(&tiles[t], dtype, has_support, r, end, &sums[t])
        EACH_DTYPE(first->dtype, SUM)
#undef SUM
    }
    for (uint32_t t = 0; t < STRIP_TILES; t++) {
        if (has_support)
            tile_grow_support(&tiles[t], &sums[t]);
        else
            tile_grow_meansplit(&tiles[t], &sums[t]);
    }
}

static void strip_encode_meansplit(const dafi_tile_t *first) {
    strip_encode_tree(first, false);
}
static void strip_encode_support(const dafi_tile_t *first) {
    strip_encode_tree(first, true);
}

FN void strip_pick_rows(const dafi_tile_t *first, vf (*leaf)[16], bool has_support, uint32_t live, uint32_t dtype,
                        bool is_streaming) {
    uint32_t num_rows = first->num_rows;
    uint8_t *dst = first->dst;
    for (uint32_t r = 0; r < num_rows; r++, dst += first->stride_bytes) {
        uint64_t row[5];
        UNROLL_WORDS(5)
        for (uint32_t s = has_support ? 0 : 1; s <= live; s++) row[s] = strip_words(first, s)[r];
        UNROLL_WORDS(4)
        for (uint32_t t = 0; t < STRIP_TILES; t++) {
            vm planes[5];
            UNROLL_WORDS(5)
            for (uint32_t s = has_support ? 0 : 1; s <= live; s++) planes[s] = m_from((uint16_t)(row[s] >> 16 * t));
            vf x = pick_of_16(leaf[t], planes, 0, 0, live);
            if (has_support) x = v_zero_unless(planes[0], x);
            store16(dtype, dst + first->offset[t], x, is_streaming);
        }
    }
}

FN void strip_decode_tree(const dafi_tile_t *first, bool has_support, uint32_t live) {
    vf leaf[STRIP_TILES][16];
    uint32_t escaped[STRIP_TILES], any = 0;
    for (uint32_t t = 0; t < STRIP_TILES; t++) {
        dafi_tile_t tile = strip_tile(first, t);
        vf means = from_halves(i_load_u16(tile.head[0]));
        escaped[t] = m_bits(v_unordered(means, means));
        any |= escaped[t];
        tile_leaves(&tile, has_support, live, leaf[t]);
    }
    if (first->dtype == DAF_FLOAT32 && first->is_streaming && !any)
        strip_pick_rows(first, leaf, has_support, live, DAF_FLOAT32, true);
    else if (first->dtype == DAF_FLOAT32)
        strip_pick_rows(first, leaf, has_support, live, DAF_FLOAT32, false);
    else
        strip_pick_rows(first, leaf, has_support, live, first->dtype, false);
    strip_escaped(first, escaped, false);
}

static void strip_decode_meansplit(const dafi_tile_t *first) {
#define DECODE(live) strip_decode_tree(first, false, live)
    EACH_WIDTH(first->job.live, DECODE)
#undef DECODE
}
static void strip_decode_support(const dafi_tile_t *first) {
#define DECODE(live) strip_decode_tree(first, true, live)
    EACH_WIDTH(first->job.live, DECODE)
#undef DECODE
}
