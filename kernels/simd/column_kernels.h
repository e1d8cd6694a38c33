/* The fast paths over tiles of column groups: every lane has its own group, so nothing is ever summed across lanes, and
 * what is once per group is done for sixteen groups at a time. Columns with elements that are not finite go to the
 * reference; until then their lanes hold anything. */

FN vf tile_row(const dafi_tile_t *tile, uint32_t r) {
    return v_load(tile->x + r * DAFI_TILE_COLS);
}

/* The first pass over a tile: later ones find it in the workspace, as float32. */
FN vf tile_load(const dafi_tile_t *tile, uint32_t r) {
    const uint8_t *at = tile->src + r * tile->stride_bytes;
    vf x = load16(tile->dtype, at);
    __builtin_prefetch(at + DAFI_TILE_COLS * itemsize(tile->dtype)); /* the tile to the right */
    v_store(tile->x + r * DAFI_TILE_COLS, x);
    return x;
}

FN void tile_store(const dafi_tile_t *tile, uint32_t r, vf x, bool is_streaming) {
    store16(tile->dtype, tile->dst + r * tile->stride_bytes, x, is_streaming);
}

FN void tile_put(const dafi_tile_t *tile, uint32_t s, uint32_t r, vm bits) {
    tile->mask[s][r * DAFI_STRIP_TILES] = (uint16_t)m_bits(bits);
}
FN vm tile_get(const dafi_tile_t *tile, uint32_t s, uint32_t r) {
    return m_from(tile->mask[s][r * DAFI_STRIP_TILES]);
}

FN uint32_t outside(vm m) {
    return ~m_bits(m) & 0xffffu;
}

FN void tile_encode_escaped(const dafi_tile_t *tile, uint32_t escaped) {
    for (uint32_t c = 0; escaped && c < DAFI_TILE_COLS; c++)
        if ((escaped >> c) & 1u) dafi_tile_encode_column(tile, c);
}
FN void tile_decode_escaped(const dafi_tile_t *tile, uint32_t escaped) {
    for (uint32_t c = 0; escaped && c < DAFI_TILE_COLS; c++)
        if ((escaped >> c) & 1u) dafi_tile_decode_column(tile, c);
}

/* --- min/max --- */

FN vi i_choose(vm m, vi x, vi y) {
    return v_as_int(v_choose(m, i_as_float(x), i_as_float(y)));
}

/* Writes the headers of sixteen groups, as dafi_minmax_head; returns codes per unit, times 2^16. */
FN vf minmax_heads(uint8_t *heads, uint32_t num_bits, vf least, vf most, uint32_t with_zeros, vf *low) {
    vm has_zero = m_from(with_zeros);
    least = v_add(least, v_set1(0.0f));
    vi bits = v_as_int(least);
    vi low_half = i_srl(i_add_where(bits, i_test(bits, i_set1(0x80000000u)), i_set1(0xffff)), 16);
    *low = from_halves(low_half);
    vf scale = v_div(v_sub(most, v_choose(has_zero, least, *low)), v_set1((float)((1u << num_bits) - 1)));
    scale = v_choose(v_gt(v_set1(DAFI_LEAST_SCALE), scale), v_set1(0.0f), scale);
    vi scale_half = i_srl(i_add(v_as_int(scale), i_set1(0xffff)), 16);
    scale = from_halves(scale_half);
    vf inverse = v_zero_unless(v_gt(scale, v_set1(0.0f)), v_div(v_set1(65536.0f), scale));
    vi zero = quantize(v_set1(0.0f), least, inverse, i_set1(((1u << num_bits) - 1) << 16), i_set1(0x8000u));
    *low = v_choose(has_zero, v_sub(v_set1(0.0f), v_mul(scale, i_to_float(zero))), *low);
    vi head = i_choose(has_zero, i_add(zero, i_set1(DAFI_HEAD_FLAG << 16)), low_half);
    i_store(heads, i_add(head, i_sll(scale_half, 16)));
    return inverse;
}

/* The columns that are one value which 16 bits do not hold. */
FN uint32_t constant(vf least, vf most) {
    vm has_few_bits = i_eq(i_and(v_as_int(least), i_set1(0xffff)), i_set1(0));
    return outside(m_or(v_gt(most, least), has_few_bits));
}

FN uint32_t irregular(vf least, vf most) {
    return outside(m_and(v_gt(least, v_set1(-DAFI_HUGE)), v_gt(v_set1(DAFI_HUGE), most)));
}

/* Writes the headers; returns the columns that are escaped. */
FN uint32_t tile_choose_minmax(const dafi_tile_t *tile, vf *low, vf *inverse) {
    vf least = tile_load(tile, 0), most = least;
    vm is_nan = v_unordered(least, least), is_not_zero = v_not_zero(least);
    for (uint32_t r = 1; r < tile->num_rows; r++) {
        vf x = tile_load(tile, r);
        least = v_min(least, x), most = v_max(most, x);
        is_nan = m_or(is_nan, v_unordered(x, x));
        is_not_zero = m_and(is_not_zero, v_not_zero(x));
    }
    *inverse = minmax_heads(tile->head[0], tile->job.bits, least, most, outside(is_not_zero), low);
    return m_bits(is_nan) | irregular(least, most) | constant(least, most);
}

FN void tile_put_codes(const dafi_tile_t *tile, uint32_t r, vi codes) {
    for (uint32_t s = 1; s <= tile->job.bits; s++)
        tile_put(tile, s, r, i_test(codes, i_set1(1u << (tile->job.bits - s))));
}

static void tile_encode_minmax(const dafi_tile_t *tile) {
    vf low, inverse;
    uint32_t escaped = tile_choose_minmax(tile, &low, &inverse);
    vi most = i_set1(((1u << tile->job.bits) - 1) << 16);
    for (uint32_t r = 0; r < tile->num_rows; r++)
        tile_put_codes(tile, r, quantize(tile_row(tile, r), low, inverse, most, i_set1(0x8000u)));
    tile_encode_escaped(tile, escaped);
}

/* Rows r and r + 16 of each 32 share a random number. */
static void tile_encode_minmax_sr(const dafi_tile_t *tile) {
    vf low, inverse;
    uint32_t escaped = tile_choose_minmax(tile, &low, &inverse), keys[DAFI_TILE_COLS];
    for (uint32_t c = 0; c < DAFI_TILE_COLS; c++) keys[c] = dafi_group_key(tile->seed, tile->first_group + c);
    vi most = i_set1(((1u << tile->job.bits) - 1) << 16), key = i_load(keys);
    for (uint32_t r = 0; r < tile->num_rows; r += r % 16 == 15 ? 17 : 1) {
        vi random = random32(key, i_set1(((r / 32) * 16 + r % 16) * DAFI_COUNTER_STEP));
        vi round = i_and(random, i_set1(0xffff));
        tile_put_codes(tile, r, quantize_sr(tile_row(tile, r), low, inverse, most, round));
        if (r + 16 >= tile->num_rows) continue;
        round = i_srl(random, 16);
        tile_put_codes(tile, r + 16, quantize_sr(tile_row(tile, r + 16), low, inverse, most, round));
    }
    tile_encode_escaped(tile, escaped);
}

FN vi tile_codes(const dafi_tile_t *tile, uint32_t r) {
    vi codes = i_set1(0);
    for (uint32_t s = 1; s <= tile->job.live; s++)
        codes = i_add_where(i_add(codes, codes), tile_get(tile, s, r), i_set1(1));
    return codes;
}

/* What sixteen headers say. */
typedef struct affine {
    vf low, step;
    vi zero;          /* the code that is zero instead */
    uint32_t escaped; /* columns for the reference */
    bool has_zero;    /* a column has such a code, which does not give zero by itself */
} affine_t;

/* dafi_minmax_affine of sixteen groups. */
FN affine_t tile_affine(const uint8_t *head, uint32_t bits, uint32_t live) {
    affine_t a;
    vi heads = i_load(head), first = i_and(heads, i_set1(0xffff));
    vm is_flagged = i_test(heads, i_set1(DAFI_HEAD_FLAG << 16));
    vf least = from_halves(heads), scale = i_as_float(i_and(heads, i_set1(0x7fff0000u)));
    float width = (float)(1u << (bits - live));
    a.escaped = m_bits(m_or(v_unordered(least, least), m_and(is_flagged, i_test(heads, i_set1(DAFI_HEAD_FLAG)))));
    least = v_choose(is_flagged, v_sub(v_set1(0.0f), v_mul(scale, i_to_float(first))), least);
    a.step = v_mul(scale, v_set1(width));
    a.low = v_add(least, v_mul(scale, v_set1((width - 1) * 0.5f)));
    a.zero = i_choose(is_flagged, v_to_int(v_mul(i_to_float(first), v_set1(1.0f / width))), i_set1(DAFI_NO_CODE));
    a.has_zero = live && live < bits && m_bits(is_flagged);
    return a;
}

static void tile_decode_minmax(const dafi_tile_t *tile) {
    affine_t a = tile_affine(tile->head[0], tile->job.bits, tile->job.live);
    bool is_streaming = tile->is_streaming && !a.escaped;
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        vi codes = tile_codes(tile, r);
        vf x = v_add(a.low, v_mul(a.step, i_to_float(codes)));
        if (a.has_zero) x = zero_at(codes, a.zero, x);
        tile_store(tile, r, x, is_streaming);
    }
    tile_decode_escaped(tile, a.escaped);
}

/* --- mean-split and support --- */

/* One level of sixteen trees, one in each lane. Vectors are stored one by one: a struct of registers that is copied as
 * a whole stays in memory throughout, also in the loop before. */
typedef struct forest {
    float sum[16][DAFI_TILE_COLS], count[16][DAFI_TILE_COLS], mean[16][DAFI_TILE_COLS];
    float root[DAFI_TILE_COLS]; /* distances of the roots' parts, as stored */
    uint32_t with_zeros;        /* columns that hold zeros: their means are those that a decoder has */
} forest_t;

/* What the first pass over a tile finds. */
typedef struct sums {
    float sum[DAFI_TILE_COLS], most[DAFI_TILE_COLS];
    uint32_t count[DAFI_TILE_COLS]; /* of the support */
    uint32_t with_zeros;            /* without a support: columns that hold zeros */
} sums_t;

#define BLOCK_ROWS 8u /* of a tile that are read before those of the next, while the next as many are fetched */

/* The first pass over rows of a tile: later ones find them in the workspace, as float32. */
FN void tile_sum_rows(const dafi_tile_t *tile, uint32_t dtype, bool has_support, uint32_t from, uint32_t end,
                      sums_t *sums) {
    vf sum = v_load(sums->sum), most = v_load(sums->most);
    vi count = i_load(sums->count);
    vm is_not_zero = m_from(0xffffu);
    size_t stride_bytes = tile->stride_bytes;
    const uint8_t *at = tile->src + from * stride_bytes;
    float *to = tile->x + from * DAFI_TILE_COLS;
    for (uint32_t r = from; r < end; r++, at += stride_bytes, to += DAFI_TILE_COLS) {
        vf x = load16(dtype, at);
        __builtin_prefetch(at + BLOCK_ROWS * stride_bytes);
        v_store(to, x);
        sum = v_add(sum, x), most = v_abs_max(most, x);
        vm is_in = v_not_zero(x);
        is_not_zero = m_and(is_not_zero, is_in);
        if (!has_support) continue;
        tile_put(tile, 0, r, is_in);
        count = i_count(count, is_in);
    }
    v_store(sums->sum, sum), v_store(sums->most, most), i_store(sums->count, count);
    if (!has_support) sums->with_zeros |= outside(is_not_zero);
}

/* The roots; returns the columns that are escaped. */
FN uint32_t tile_roots(const dafi_tile_t *tile, bool has_support, const sums_t *sums, forest_t *forest) {
    vf sum = v_load(sums->sum), count = v_set1((float)tile->num_rows);
    if (has_support) count = i_to_float(i_load(sums->count));
    vf mean = mean_of(sum, count);
    i_store_u16(tile->head[0], to_bf16(mean));
    forest->with_zeros = sums->with_zeros;
    if (forest->with_zeros) mean = v_choose(m_from(forest->with_zeros), from_halves(to_bf16(mean)), mean);
    v_store(forest->sum[0], sum), v_store(forest->count[0], count), v_store(forest->mean[0], mean);
    return m_bits(v_unordered(sum, sum)) | outside(v_gt(v_set1(DAFI_HUGE), v_load(sums->most)));
}

/* Each element's node of the level before, one byte an element. */
typedef uint8_t node_bytes_t[DAF_GROUP][DAFI_TILE_COLS];

/* Sums and counts of the upper parts of a level's nodes. */
typedef struct parts {
    float sum[8][DAFI_TILE_COLS], count[8][DAFI_TILE_COLS];
} parts_t;

FN vm is_above(vf x, vf threshold, bool has_support) {
    vm is_upper = v_gt(x, threshold);
    return has_support ? m_and(is_upper, v_not_zero(x)) : is_upper;
}

/* Cuts every element at its node's mean: plane s, and the upper parts. The first two levels do without nodes: which of
 * the two an element is in, the root's mean says. */
FN void tile_cut_root(const dafi_tile_t *tile, bool has_support, const forest_t *forest, parts_t *upper) {
    vf sum = v_set1(0.0f), mean = v_load(forest->mean[0]);
    vi count = i_set1(0);
    const float *x_at = tile->x;
    for (uint32_t r = 0, end = tile->num_rows; r < end; r++, x_at += DAFI_TILE_COLS) {
        vf x = v_load(x_at);
        vm is_upper = is_above(x, mean, has_support);
        tile_put(tile, 1, r, is_upper);
        sum = v_add_where(sum, is_upper, x);
        count = i_count(count, is_upper);
    }
    v_store(upper->sum[0], sum), v_store(upper->count[0], i_to_float(count));
}

FN void tile_cut_two(const dafi_tile_t *tile, bool has_support, vf root, const forest_t *forest, bool is_last,
                     node_bytes_t nodes, parts_t *upper) {
    vf left_sum = v_set1(0.0f), right_sum = left_sum;
    vf left_mean = v_load(forest->mean[0]), right_mean = v_load(forest->mean[1]);
    vi left_count = i_set1(0), right_count = left_count;
    const float *x_at = tile->x;
    for (uint32_t r = 0, end = tile->num_rows; r < end; r++, x_at += DAFI_TILE_COLS) {
        vf x = v_load(x_at);
        vm is_right = v_gt(x, root);
        vm is_upper = is_above(x, v_choose(is_right, right_mean, left_mean), has_support);
        tile_put(tile, 2, r, is_upper);
        vm is_left_upper = m_without(is_upper, is_right), is_right_upper = m_and(is_upper, is_right);
        left_sum = v_add_where(left_sum, is_left_upper, x), left_count = i_count(left_count, is_left_upper);
        right_sum = v_add_where(right_sum, is_right_upper, x), right_count = i_count(right_count, is_right_upper);
        if (!is_last) i_store_u8(nodes[r], i_count(i_count(i_count(i_set1(0), is_right), is_right), is_upper));
    }
    v_store(upper->sum[0], left_sum), v_store(upper->count[0], i_to_float(left_count));
    v_store(upper->sum[1], right_sum), v_store(upper->count[1], i_to_float(right_count));
}

FN void tile_cut(const dafi_tile_t *tile, uint32_t s, bool has_support, const forest_t *forest, bool is_last,
                 node_bytes_t nodes, parts_t *upper) {
    uint32_t num = 1u << (s - 1);
    vf sums[8], thresholds[8];
    vi counts[8];
    for (uint32_t i = 0; i < num; i++)
        sums[i] = v_set1(0.0f), counts[i] = i_set1(0), thresholds[i] = v_load(forest->mean[i]);
    for (uint32_t r = 0, end = tile->num_rows; r < end; r++) {
        vf x = tile_row(tile, r), threshold = thresholds[0];
        vi node = i_load_u8(nodes[r]);
        for (uint32_t i = 1; i < num; i++) threshold = v_choose(i_eq(node, i_set1(i)), thresholds[i], threshold);
        vm is_upper = is_above(x, threshold, has_support);
        tile_put(tile, s, r, is_upper);
        for (uint32_t i = 0; i < num; i++) {
            vm is_mine = i_eq_where(is_upper, node, i_set1(i));
            sums[i] = v_add_where(sums[i], is_mine, x);
            counts[i] = i_count(counts[i], is_mine);
        }
        if (!is_last) i_store_u8(nodes[r], i_count(i_add(node, node), is_upper));
    }
    for (uint32_t i = 0; i < num; i++) v_store(upper->sum[i], sums[i]), v_store(upper->count[i], i_to_float(counts[i]));
}

/* Splits the nodes of level s - 1 by their upper parts, and writes the headers of level s. */
FN void tile_split(const dafi_tile_t *tile, uint32_t s, const parts_t *upper, forest_t *forest) {
    uint32_t num = 1u << (s - 1);
    uint8_t ratios[8][DAFI_TILE_COLS];
    vm has_zero = m_from(forest->with_zeros);
    for (uint32_t i = num; i-- > 0;) {
        vf upper_sum = v_load(upper->sum[i]), lower_sum = v_sub(v_load(forest->sum[i]), upper_sum);
        vf num_upper = v_load(upper->count[i]), num_lower = v_sub(v_load(forest->count[i]), num_upper);
        vf upper_mean = mean_of(upper_sum, num_upper), lower_mean = mean_of(lower_sum, num_lower);
        vf d = distance_of(lower_mean, num_lower, upper_mean, num_upper), decoded;
        if (s == 1) {
            vm is_split = m_and(v_gt(num_lower, v_set1(0.0f)), v_gt(num_upper, v_set1(0.0f)));
            decoded = from_halves(to_bf16(d));
            v_store(forest->root, decoded);
            i_store_u16(tile->head[1], i_add_where(to_bf16(d), m_and(has_zero, is_split), i_set1(DAFI_ZERO_FLAG)));
        } else {
            vi ratio = to_ratio(d, v_load(forest->root));
            decoded = v_mul(from_ratio(ratio), v_load(forest->root));
            i_store_u8(ratios[i], ratio);
        }
        if (forest->with_zeros) {
            vf lower = split_lower(v_load(forest->mean[i]), decoded, num_upper, v_load(forest->count[i]));
            lower_mean = v_choose(has_zero, lower, lower_mean);
            upper_mean = v_choose(has_zero, v_add(lower, decoded), upper_mean);
        }
        v_store(forest->sum[2 * i], lower_sum), v_store(forest->sum[2 * i + 1], upper_sum);
        v_store(forest->count[2 * i], num_lower), v_store(forest->count[2 * i + 1], num_upper);
        v_store(forest->mean[2 * i], lower_mean), v_store(forest->mean[2 * i + 1], upper_mean);
    }
    for (uint32_t c = 0; s > 1 && c < DAFI_TILE_COLS; c++)
        for (uint32_t i = 0; i < num; i++) tile->head[s][c * num + i] = ratios[i][c];
}

/* The columns whose elements are all on one side of the mean, and not all zero. */
FN uint32_t tile_flat(const sums_t *sums, const forest_t *forest) {
    vf zero = v_set1(0.0f);
    vm is_split = m_and(v_gt(v_load(forest->count[0]), zero), v_gt(v_load(forest->count[1]), zero));
    return outside(is_split) & m_bits(v_gt(v_load(sums->most), zero));
}

/* All levels, after the first pass. */
FN void tile_grow(const dafi_tile_t *tile, bool has_support, const sums_t *sums) {
    forest_t forest;
    parts_t upper;
    node_bytes_t nodes;
    uint32_t bits = tile->job.bits, escaped = tile_roots(tile, has_support, sums, &forest);
    vf root = v_load(forest.mean[0]);
    if (bits > 0) {
        tile_cut_root(tile, has_support, &forest, &upper);
        tile_split(tile, 1, &upper, &forest);
        escaped |= tile_flat(sums, &forest);
    }
    if (bits > 1) {
        if (bits == 2)
            tile_cut_two(tile, has_support, root, &forest, true, nodes, &upper);
        else
            tile_cut_two(tile, has_support, root, &forest, false, nodes, &upper);
        tile_split(tile, 2, &upper, &forest);
    }
    if (bits > 2) {
        tile_cut(tile, 3, has_support, &forest, false, nodes, &upper);
        tile_split(tile, 3, &upper, &forest);
    }
    if (bits > 3) {
        tile_cut(tile, 4, has_support, &forest, true, nodes, &upper);
        tile_split(tile, 4, &upper, &forest);
    }
    tile_encode_escaped(tile, escaped);
}

static void tile_grow_meansplit(const dafi_tile_t *tile, const sums_t *sums) {
    tile_grow(tile, false, sums);
}
static void tile_grow_support(const dafi_tile_t *tile, const sums_t *sums) {
    tile_grow(tile, true, sums);
}

#define COUNTED_ROWS 128u /* as many as a counter of a byte can count, and half a group */

/* Adds to counts[h], per column of a strip, the elements in the upper part of node h; the nodes of level s stand from
 * 2^(s-1) on, and counts[0] is of all elements. */
FN void count_rows(const dafi_tile_t *tile, bool has_support, uint32_t live, uint32_t row, uint16_t (*counts)[64]) {
    uint32_t end = row + COUNTED_ROWS < tile->num_rows ? row + COUNTED_ROWS : tile->num_rows;
    uint8_t bytes[64];
    vb upper[16];
    for (uint32_t h = 0; h < 1u << live; h++) upper[h] = b_zero();
    for (uint32_t c = 0; !has_support && c < 64; c++) counts[0][c] = (uint16_t)tile->num_rows;
    for (; row < end; row++) {
        uint64_t in[16], plane;
        in[0] = ~0ull;
        if (has_support) memcpy(&in[0], &tile->mask[0][row * DAFI_STRIP_TILES], 8);
        if (has_support) upper[0] = b_count(upper[0], in[0]);
        UNROLL_WORDS(4)
        for (uint32_t s = 1; s <= live; s++) {
            memcpy(&plane, &tile->mask[s][row * DAFI_STRIP_TILES], 8);
            UNROLL_WORDS(8)
            for (uint32_t i = 1u << (s - 1); i-- > 0;) {
                in[2 * i + 1] = in[i] & plane, in[2 * i] = in[i] & ~plane;
                upper[(1u << (s - 1)) + i] = b_count(upper[(1u << (s - 1)) + i], in[2 * i + 1]);
            }
        }
    }
    for (uint32_t h = 0; h < 1u << live; h++) {
        b_store(bytes, upper[h]);
        for (uint32_t c = 0; c < 64; c++) counts[h][c] = (uint16_t)(counts[h][c] + bytes[c]);
    }
}

/* tile: the first of its strip. */
static void count_strip(const dafi_tile_t *tile, uint16_t (*counts)[64]) {
    bool has_support = tile->mask[0] != NULL;
    memset(counts, 0, sizeof *counts << tile->job.live);
    for (uint32_t row = 0; row < tile->num_rows; row += COUNTED_ROWS) {
#define COUNT(live) count_rows(tile, has_support, live, row, counts)
        EACH_WIDTH(tile->job.live, COUNT)
#undef COUNT
    }
}

/* The elements in the upper part of node h. */
FN vf tile_counts(const dafi_tile_t *tile, uint32_t h) {
    return i_to_float(i_load_u16(tile->counts[h]));
}

/* The distances of node i of level s. */
FN vf tile_distances(const dafi_tile_t *tile, uint32_t s, uint32_t i, const vf *root) {
    uint8_t codes[DAFI_TILE_COLS];
    if (s == 1) return *root;
    for (uint32_t c = 0; c < DAFI_TILE_COLS; c++) codes[c] = tile->head[s][(c << (s - 1)) + i];
    return v_mul(from_ratio(i_load_u8(codes)), *root);
}

/* dafi_root_get of sixteen groups; returns those with zeros. */
FN vm tile_root(const dafi_tile_t *tile, vf num_upper, vf *mean, vf *root) {
    vi stored = i_load_u16(tile->head[1]);
    vm has_upper = v_gt(num_upper, v_set1(0.0f));
    *mean = v_choose(has_upper, *mean, i_as_float(i_add(v_as_int(*mean), stored)));
    *root = v_zero_unless(has_upper, from_halves(i_and(stored, i_set1(0x7fff))));
    return m_and(has_upper, i_test(stored, i_set1(DAFI_ZERO_FLAG)));
}

/* Where zero is, of each node's two parts. */
FN void tile_split_zero(const vf *mean, uint32_t num, vm *has_zero) {
    for (uint32_t i = num; i-- > 0;) {
        vm is_upper = v_gt(v_set1(0.0f), mean[i]), is_here = has_zero[i];
        has_zero[2 * i + 1] = m_and(is_here, is_upper), has_zero[2 * i] = m_without(is_here, is_upper);
    }
}

/* dafi_split_means, level by level. */
FN void tile_leaves(const dafi_tile_t *tile, bool has_support, uint32_t live, vf *mean) {
    vf count[16], root = v_set1(0.0f), least = v_set1(tile->job.least);
    vm has_zero[16];
    mean[0] = from_halves(i_load_u16(tile->head[0])), count[0] = tile_counts(tile, 0);
    if (live) has_zero[0] = tile_root(tile, tile_counts(tile, 1), &mean[0], &root);
    bool any_zero = !has_support && live && m_bits(has_zero[0]);
    for (uint32_t s = 1; s <= live; s++) {
        if (any_zero) tile_split_zero(mean, 1u << (s - 1), has_zero);
        for (uint32_t i = 1u << (s - 1); i-- > 0;) {
            vf num_upper = tile_counts(tile, (1u << (s - 1)) + i), distance = tile_distances(tile, s, i, &root);
            vf lower = split_lower(mean[i], distance, num_upper, count[i]);
            mean[2 * i + 1] = v_add(lower, distance), mean[2 * i] = lower;
            count[2 * i] = v_sub(count[i], num_upper), count[2 * i + 1] = num_upper;
        }
    }
    for (uint32_t i = 0; any_zero && i < 1u << live; i++) mean[i] = v_choose(has_zero[i], v_set1(0.0f), mean[i]);
    for (uint32_t i = 0; has_support && i < 1u << live; i++)
        mean[i] = v_choose(v_gt(least, v_abs_max(v_set1(0.0f), mean[i])), least, mean[i]);
}

/* The leaf of every element below node i of level s: depth first, so that few candidates are held at a time. */
#define PICK(name, below)                                                                                              \
    FN vf name(const vf *leaf, const vm *planes, uint32_t s, uint32_t i, uint32_t live) {                              \
        if (s == live) return leaf[i];                                                                                 \
        vf upper = below(leaf, planes, s + 1, 2 * i + 1, live);                                                        \
        return v_choose(planes[s + 1], upper, below(leaf, planes, s + 1, 2 * i, live));                                \
    }
FN vf pick_leaf(const vf *leaf, const vm *planes, uint32_t s, uint32_t i, uint32_t live) {
    (void)planes, (void)s, (void)live;
    return leaf[i];
}
PICK(pick_of_2, pick_leaf)
PICK(pick_of_4, pick_of_2)
PICK(pick_of_8, pick_of_4)
PICK(pick_of_16, pick_of_8)
#undef PICK

FN void tile_pick_rows(dafi_tile_t tile, const vf *leaf, bool has_support, uint32_t live, uint32_t dtype,
                       bool is_streaming) {
    tile.dtype = dtype;
    for (uint32_t r = 0; r < tile.num_rows; r++) {
        vm planes[5];
        UNROLL_WORDS(4)
        for (uint32_t s = 1; s <= live; s++) planes[s] = tile_get(&tile, s, r);
        vf x = pick_of_16(leaf, planes, 0, 0, live);
        if (has_support) x = v_zero_unless(tile_get(&tile, 0, r), x);
        tile_store(&tile, r, x, is_streaming);
    }
}

FN void tile_decode_tree(const dafi_tile_t *tile, bool has_support, uint32_t live) {
    vf leaf[16], means = from_halves(i_load_u16(tile->head[0]));
    uint32_t escaped = m_bits(v_unordered(means, means));
    tile_leaves(tile, has_support, live, leaf);
    if (tile->dtype == DAF_FLOAT32 && tile->is_streaming && !escaped)
        tile_pick_rows(*tile, leaf, has_support, live, DAF_FLOAT32, true);
    else if (tile->dtype == DAF_FLOAT32)
        tile_pick_rows(*tile, leaf, has_support, live, DAF_FLOAT32, false);
    else
        tile_pick_rows(*tile, leaf, has_support, live, tile->dtype, false);
    tile_decode_escaped(tile, escaped);
}

static void tile_encode_meansplit(const dafi_tile_t *tile) {
    sums_t sums = {0};
    tile_sum_rows(tile, tile->dtype, false, 0, tile->num_rows, &sums);
    tile_grow_meansplit(tile, &sums);
}
static void tile_encode_support(const dafi_tile_t *tile) {
    sums_t sums = {0};
    tile_sum_rows(tile, tile->dtype, true, 0, tile->num_rows, &sums);
    tile_grow_support(tile, &sums);
}
static void tile_decode_meansplit(const dafi_tile_t *tile) {
#define DECODE(live) tile_decode_tree(tile, false, live)
    EACH_WIDTH(tile->job.live, DECODE)
#undef DECODE
}
static void tile_decode_support(const dafi_tile_t *tile) {
#define DECODE(live) tile_decode_tree(tile, true, live)
    EACH_WIDTH(tile->job.live, DECODE)
#undef DECODE
}
