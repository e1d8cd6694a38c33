/* The fast paths over tiles of column groups: every lane has its own group, so nothing is ever summed across lanes.
 * What is once per group, not once per element, is done lane by lane with the reference's own functions. */

/* x[row] of a tile. */
FN vf tile_row(const dafi_tile_t *tile, uint32_t r) {
    return v_load(tile->x + r * DAFI_TILE_COLS);
}

/* Lanes as numbers in memory. */
typedef struct lanes {
    float v[DAFI_TILE_COLS] __attribute__((aligned(64)));
} lanes_t;

FN lanes_t lanes_of(vf x) {
    lanes_t lanes;
    v_store(lanes.v, x);
    return lanes;
}

/* --- min/max --- */

/* Writes each column's header; returns the columns that are escaped. */
FN uint32_t tile_choose_minmax(const dafi_tile_t *tile, lanes_t *low, lanes_t *inverse) {
    vf least = tile_row(tile, 0), most = least;
    vm is_nan = v_unordered(least, least);
    for (uint32_t r = 1; r < tile->num_rows; r++) {
        vf x = tile_row(tile, r);
        least = v_min(least, x), most = v_max(most, x);
        is_nan = m_or(is_nan, v_unordered(x, x));
    }
    lanes_t lows = lanes_of(least), highs = lanes_of(most);
    uint32_t escaped = m_bits(is_nan);
    for (uint32_t c = 0; c < DAFI_TILE_COLS; c++) {
        uint16_t head[2] = {0};
        if (!(lows.v[c] > -DAFI_HUGE && highs.v[c] < DAFI_HUGE)) escaped |= 1u << c;
        if (!((escaped >> c) & 1u)) dafi_minmax_head(lows.v[c], highs.v[c], tile->job.bits, head);
        memcpy(tile->head[0] + 4 * c, head, 4);
        low->v[c] = dafi_from_bf16(head[0]);
        inverse->v[c] = dafi_minmax_inverse(dafi_from_bf16(head[1]));
    }
    return escaped;
}

FN void tile_put_codes(const dafi_tile_t *tile, uint32_t r, vi codes) {
    for (uint32_t s = 1; s <= tile->job.bits; s++)
        tile->mask[s][r] = (uint16_t)m_bits(i_test(codes, i_set1(1u << (tile->job.bits - s))));
}

FN void tile_minmax_encode(const dafi_tile_t *tile, bool is_stochastic) {
    lanes_t lows, inverses;
    uint32_t escaped = tile_choose_minmax(tile, &lows, &inverses);
    vf low = v_load(lows.v), inverse = v_load(inverses.v);
    vi most = i_set1(((1u << tile->job.bits) - 1) << 16), keys = i_load(tile->keys), round = i_set1(0x8000u);
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        if (is_stochastic) {
            vi random = random32(keys, i_set1(((r / 32) * 16 + r % 16) * DAFI_COUNTER_STEP));
            round = r & 16u ? i_srl(random, 16) : i_and(random, i_set1(0xffff));
        }
        tile_put_codes(tile, r, quantize(tile_row(tile, r), low, inverse, most, round));
    }
    for (uint32_t c = 0; escaped >> c; c++)
        if ((escaped >> c) & 1u) dafi_tile_encode_column(tile, c);
}

FN vi tile_codes(const dafi_tile_t *tile, uint32_t r) {
    vi codes = i_set1(0);
    for (uint32_t s = 1; s <= tile->job.live; s++)
        codes = i_add_where(i_add(codes, codes), m_from(tile->mask[s][r]), i_set1(1));
    return codes;
}

FN void tile_minmax_decode(const dafi_tile_t *tile) {
    lanes_t lows, steps;
    uint32_t escaped = 0;
    for (uint32_t c = 0; c < DAFI_TILE_COLS; c++) {
        uint16_t head[2];
        memcpy(head, tile->head[0] + 4 * c, 4);
        escaped |= (uint32_t)(isnan(dafi_from_bf16(head[0])) != 0) << c;
        dafi_minmax_affine(head, tile->job.bits, tile->job.live, &lows.v[c], &steps.v[c]);
    }
    vf low = v_load(lows.v), step = v_load(steps.v);
    for (uint32_t r = 0; r < tile->num_rows; r++)
        v_store(tile->x + r * DAFI_TILE_COLS, v_add(low, v_mul(step, i_to_float(tile_codes(tile, r)))));
    for (uint32_t c = 0; escaped >> c; c++)
        if ((escaped >> c) & 1u) dafi_tile_decode_column(tile, c);
}

/* --- mean-split and support --- */

/* The nodes of one level of 16 trees: node i of column c. */
typedef struct forest {
    lanes_t sum[16], count[16];
} forest_t;

/* Sums and counts of the roots; returns the columns that are escaped. */
FN uint32_t tile_roots(const dafi_tile_t *tile, bool has_support, forest_t *roots) {
    vf sum = v_set1(0.0f), most = sum;
    vi count = i_set1(0);
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        vf x = tile_row(tile, r);
        sum = v_add(sum, x), most = v_abs_max(most, x);
        if (!has_support) continue;
        tile->mask[0][r] = (uint16_t)m_bits(v_not_zero(x));
        count = i_add_where(count, v_not_zero(x), i_set1(1));
    }
    lanes_t greatest = lanes_of(most);
    roots->sum[0] = lanes_of(sum);
    roots->count[0] = lanes_of(has_support ? i_to_float(count) : v_set1((float)tile->num_rows));
    uint32_t escaped = 0;
    for (uint32_t c = 0; c < DAFI_TILE_COLS; c++)
        escaped |= (uint32_t)(isnan(roots->sum[0].v[c]) || !(greatest.v[c] < DAFI_HUGE)) << c;
    return escaped;
}

/* Each element's node of the level before, one byte an element. */
typedef uint8_t node_bytes_t[DAF_GROUP][DAFI_TILE_COLS];

/* Cuts every element at its node's mean: plane s, and the sums and counts of the upper parts. */
FN void tile_cut(const dafi_tile_t *tile, uint32_t s, bool has_support, const lanes_t *means, node_bytes_t nodes,
                 forest_t *upper) {
    uint32_t num = 1u << (s - 1);
    vf sums[8], thresholds[8];
    vi counts[8];
    for (uint32_t i = 0; i < num; i++)
        sums[i] = v_set1(0.0f), counts[i] = i_set1(0), thresholds[i] = v_load(means[i].v);
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        vf x = tile_row(tile, r), threshold = thresholds[0];
        vi node = s == 1 ? i_set1(0) : i_load_u8(nodes[r]);
        for (uint32_t i = 1; i < num; i++) threshold = v_choose(i_eq(node, i_set1(i)), thresholds[i], threshold);
        vm is_upper = v_gt(x, threshold);
        if (has_support) is_upper = m_and(is_upper, v_not_zero(x));
        tile->mask[s][r] = (uint16_t)m_bits(is_upper);
        for (uint32_t i = 0; i < num; i++) {
            vm is_mine = s == 1 ? is_upper : i_eq_where(is_upper, node, i_set1(i));
            sums[i] = v_add_where(sums[i], is_mine, x);
            counts[i] = i_add_where(counts[i], is_mine, i_set1(1));
        }
        i_store_u8(nodes[r], i_add_where(i_add(node, node), is_upper, i_set1(1)));
    }
    for (uint32_t i = 0; i < num; i++)
        upper->sum[i] = lanes_of(sums[i]), upper->count[i] = lanes_of(i_to_float(counts[i]));
}

/* Level s of column c: children of the parents' nodes, their means, and the header. */
FN void tile_split_column(const dafi_tile_t *tile, uint32_t s, uint32_t c, const forest_t *upper, forest_t *forest,
                          lanes_t *means, float *root) {
    dafi_nodes_t parents, children;
    uint32_t num = 1u << (s - 1);
    uint8_t *head = tile->head[s] + c * (s == 1 ? 2 : num);
    for (uint32_t i = 0; i < num; i++) {
        parents.sum[i] = forest->sum[i].v[c], parents.count[i] = (uint32_t)forest->count[i].v[c];
        dafi_split_nodes(&parents, i, upper->sum[i].v[c], (uint32_t)upper->count[i].v[c], &children);
        dafi_split_put(s, i, dafi_split_distance(&children, i), root, head);
    }
    for (uint32_t i = 0; i < 2 * num; i++) {
        forest->sum[i].v[c] = children.sum[i], forest->count[i].v[c] = (float)children.count[i];
        means[i].v[c] = dafi_node_mean(&children, i);
    }
}

FN void tile_meansplit_encode(const dafi_tile_t *tile, bool has_support) {
    forest_t forest, upper;
    lanes_t means[16];
    float root[DAFI_TILE_COLS] = {0};
    node_bytes_t nodes;
    uint32_t escaped = tile_roots(tile, has_support, &forest);
    for (uint32_t c = 0; c < DAFI_TILE_COLS; c++) {
        means[0].v[c] = forest.sum[0].v[c] / (forest.count[0].v[c] > 0.0f ? forest.count[0].v[c] : 1.0f);
        dafi_put16(tile->head[0] + 2 * c, dafi_to_bf16(means[0].v[c]));
    }
    for (uint32_t s = 1; s <= tile->job.bits; s++) {
        switch (s) { /* constants: the loops over nodes stay in registers */
        case 1:
            tile_cut(tile, 1, has_support, means, nodes, &upper);
            break;
        case 2:
            tile_cut(tile, 2, has_support, means, nodes, &upper);
            break;
        case 3:
            tile_cut(tile, 3, has_support, means, nodes, &upper);
            break;
        default:
            tile_cut(tile, 4, has_support, means, nodes, &upper);
            break;
        }
        for (uint32_t c = 0; c < DAFI_TILE_COLS; c++) tile_split_column(tile, s, c, &upper, &forest, means, &root[c]);
    }
    for (uint32_t c = 0; escaped >> c; c++)
        if ((escaped >> c) & 1u) dafi_tile_encode_column(tile, c);
}

/* counts[h]: per column, the elements in the upper part of node h; the nodes of level s begin at 2^(s-1). */
FN void tile_count(const dafi_tile_t *tile, bool has_support, uint32_t live, lanes_t *counts) {
    vi upper[16], support = i_set1(0);
    for (uint32_t h = 0; h < 16; h++) upper[h] = i_set1(0);
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        vi node = i_set1(1);
        vm is_in = has_support ? m_from(tile->mask[0][r]) : m_from(0xffff);
        if (has_support) support = i_add_where(support, is_in, i_set1(1));
        for (uint32_t s = 1; s <= live; s++) {
            vm is_upper = m_and(m_from(tile->mask[s][r]), is_in);
            for (uint32_t h = 1u << (s - 1); h < 1u << s; h++)
                upper[h] = i_add_where(upper[h], i_eq_where(is_upper, node, i_set1(h)), i_set1(1));
            node = i_add_where(i_add(node, node), is_upper, i_set1(1));
        }
    }
    counts[0] = lanes_of(has_support ? i_to_float(support) : v_set1((float)tile->num_rows));
    for (uint32_t h = 1; h < 1u << live; h++) counts[h] = lanes_of(i_to_float(upper[h]));
}

/* The leaves of column c: leaf[i].v[c]. */
FN void tile_leaves_column(const dafi_tile_t *tile, uint32_t c, bool has_support, uint32_t live, const lanes_t *counts,
                           lanes_t *leaf) {
    float mean[16] = {dafi_from_bf16(dafi_get16(tile->head[0] + 2 * c))}, root = 0.0f;
    uint32_t count[16] = {(uint32_t)counts[0].v[c]}, upper[8];
    for (uint32_t s = 1; s <= live; s++) {
        uint32_t num = 1u << (s - 1);
        for (uint32_t i = 0; i < num; i++) upper[i] = (uint32_t)counts[num + i].v[c];
        dafi_split_means(s, tile->head[s] + c * (s == 1 ? 2 : num), upper, count, mean, &root);
    }
    for (uint32_t i = 0; i < 1u << live; i++)
        leaf[i].v[c] = has_support ? dafi_not_zero(mean[i], tile->job.least) : mean[i];
}

FN void tile_meansplit_decode(const dafi_tile_t *tile, bool has_support, uint32_t live) {
    lanes_t counts[16], leaf[16];
    uint32_t escaped = 0;
    tile_count(tile, has_support, live, counts);
    for (uint32_t c = 0; c < DAFI_TILE_COLS; c++) {
        escaped |= (uint32_t)(isnan(dafi_from_bf16(dafi_get16(tile->head[0] + 2 * c))) != 0) << c;
        tile_leaves_column(tile, c, has_support, live, counts, leaf);
    }
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        vf x[16];
        for (uint32_t i = 0; i < 1u << live; i++) x[i] = v_load(leaf[i].v);
        for (uint32_t s = live; s >= 1; s--) /* halves the candidates by one plane after the other */
            for (uint32_t i = 0; i < 1u << (s - 1); i++)
                x[i] = v_choose(m_from(tile->mask[s][r]), x[2 * i + 1], x[2 * i]);
        if (has_support) x[0] = v_zero_unless(m_from(tile->mask[0][r]), x[0]);
        v_store(tile->x + r * DAFI_TILE_COLS, x[0]);
    }
    for (uint32_t c = 0; escaped >> c; c++)
        if ((escaped >> c) & 1u) dafi_tile_decode_column(tile, c);
}

FN void tile_meansplit_decode_any(const dafi_tile_t *tile, bool has_support) {
    switch (tile->job.live) {
    case 0:
        tile_meansplit_decode(tile, has_support, 0);
        break;
    case 1:
        tile_meansplit_decode(tile, has_support, 1);
        break;
    case 2:
        tile_meansplit_decode(tile, has_support, 2);
        break;
    case 3:
        tile_meansplit_decode(tile, has_support, 3);
        break;
    default:
        tile_meansplit_decode(tile, has_support, 4);
        break;
    }
}

static void tile_encode_minmax(const dafi_tile_t *tile) {
    tile_minmax_encode(tile, false);
}
static void tile_encode_minmax_sr(const dafi_tile_t *tile) {
    tile_minmax_encode(tile, true);
}
static void tile_encode_meansplit(const dafi_tile_t *tile) {
    tile_meansplit_encode(tile, false);
}
static void tile_encode_support(const dafi_tile_t *tile) {
    tile_meansplit_encode(tile, true);
}
static void tile_decode_minmax(const dafi_tile_t *tile) {
    tile_minmax_decode(tile);
}
static void tile_decode_meansplit(const dafi_tile_t *tile) {
    tile_meansplit_decode_any(tile, false);
}
static void tile_decode_support(const dafi_tile_t *tile) {
    tile_meansplit_decode_any(tile, true);
}

static void widen16(uint32_t dtype, const void *src, float *x) {
    v_store(x, load16(dtype, src));
}

/* Decoded values may be NaN or infinite here: what those are in 16 bits is the reference's matter. */
static void narrow16(uint32_t dtype, const float *x, void *dst) {
    vf values = v_load(x);
    if (m_bits(v_unordered(values, v_sub(values, values)))) {
        for (uint32_t c = 0; c < DAFI_TILE_COLS; c++) dafi_store(dtype, dst, c, x[c]);
    } else {
        store16(dtype, dst, values, false);
    }
}
