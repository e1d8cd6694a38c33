/* The fast paths of min/max over whole strips: 64 columns, so that a row's codes are 64 bytes, a row of a plane is one
 * word, and four lines of elements are read or written side by side. What is narrower goes tile by tile. */

#define STRIP_TILES DAFI_STRIP_TILES
/* Tiles whose ranges are found at a time: as many as their sums stay in registers. */
#if defined(ISA_UNROLLS)
#define RANGE_TILES 4
#else
#define RANGE_TILES 1
#endif

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
    size_t offset = t * DAFI_TILE_COLS * itemsize(first->dtype);
    if (tile.src) tile.src += offset;
    if (tile.dst) tile.dst += offset;
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
    return (uint64_t *)(void *)first->mask[s]; /* aligned by column.c */
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
            store16(dtype, dst + 16 * t * itemsize(dtype), x, is_streaming);
        }
    }
}

static void strip_decode_minmax(const dafi_tile_t *first) {
    vf low[STRIP_TILES], step[STRIP_TILES];
    uint32_t escaped[STRIP_TILES], any = 0, width = 1u << (first->job.bits - first->job.live);
    for (uint32_t t = 0; t < STRIP_TILES; t++) {
        escaped[t] = tile_affine(first->head[0] + t * DAFI_TILE_COLS * 4, width, &low[t], &step[t]);
        any |= escaped[t];
    }
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
    vf least[STRIP_TILES], most[STRIP_TILES];
    vm is_nan[STRIP_TILES];
} range_t;

/* Two rows at a time: one comparison finds a NaN in either. */
FN void strip_range(const dafi_tile_t *first, uint32_t from, range_t *range) {
    uint32_t dtype = first->dtype, num_rows = first->num_rows;
    size_t stride_bytes = first->stride_bytes, tile_bytes = DAFI_TILE_COLS * itemsize(dtype);
    const uint8_t *at = first->src + from * tile_bytes;
    vf least[RANGE_TILES], most[RANGE_TILES];
    vm is_nan[RANGE_TILES];
    UNROLL(4)
    for (uint32_t t = 0; t < RANGE_TILES; t++) {
        least[t] = most[t] = load16(dtype, at + t * tile_bytes);
        is_nan[t] = v_unordered(least[t], least[t]);
    }
    for (uint32_t r = num_rows % 2; r < num_rows; r += 2) {
        const uint8_t *row = at + r * stride_bytes;
        UNROLL(4)
        for (uint32_t t = 0; t < RANGE_TILES; t++) {
            vf x = load16(dtype, row + t * tile_bytes), y = load16(dtype, row + stride_bytes + t * tile_bytes);
            least[t] = v_min(least[t], v_min(x, y)), most[t] = v_max(most[t], v_max(x, y));
            is_nan[t] = m_or(is_nan[t], v_unordered(x, y));
        }
    }
    for (uint32_t t = 0; t < RANGE_TILES; t++)
        range->least[from + t] = least[t], range->most[from + t] = most[t], range->is_nan[from + t] = is_nan[t];
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
            codes[t] =
                quantize(load16(dtype, src + 16 * t * itemsize(dtype)), low[t], inverse[t], most, i_set1(0x8000u));
        vb bytes = b_from(codes);
        UNROLL_WORDS(8)
        for (uint32_t s = 0; s < bits; s++) words[s * DAF_GROUP + r] = b_test(bytes, bits - 1 - s);
    }
}

static void strip_encode_minmax(const dafi_tile_t *first) {
    range_t range;
    vf low[STRIP_TILES], inverse[STRIP_TILES];
    uint32_t escaped[STRIP_TILES];
    for (uint32_t t = 0; t < STRIP_TILES; t += RANGE_TILES) strip_range(first, t, &range);
    for (uint32_t t = 0; t < STRIP_TILES; t++) {
        inverse[t] = minmax_heads(first->head[0] + t * DAFI_TILE_COLS * 4, first->job.bits, range.least[t],
                                  range.most[t], &low[t]);
        escaped[t] = m_bits(range.is_nan[t]) | irregular(range.least[t], range.most[t]);
    }
#define ENCODE(bits) strip_encode_rows(first, low, inverse, bits)
    EACH_BITS(first->job.bits, ENCODE)
#undef ENCODE
    strip_escaped(first, escaped, true);
}
