/* The fast paths of mean-split and support over whole run groups of finite elements; all others go to the reference. */

FN uint32_t count256(const uint64_t *words) {
    uint64_t a = (uint64_t)__builtin_popcountll(words[0]) + (uint64_t)__builtin_popcountll(words[1]);
    uint64_t b = (uint64_t)__builtin_popcountll(words[2]) + (uint64_t)__builtin_popcountll(words[3]);
    return (uint32_t)(a + b);
}

/* The elements of each node of a level, as bits. */
typedef struct members {
    uint64_t words[16][4];
} members_t;

/* Splits the members of the nodes of level s by its plane; returns how many are in the upper part of node i, in lane i;
 * of the root, in every lane. */
FN vf split_members(uint32_t s, const uint64_t plane[4], members_t *members) {
    uint64_t packed[2] = {0};
    UNROLL_WORDS(8)
    for (uint32_t i = 1u << (s - 1); i-- > 0;) {
        UNROLL_WORDS(4)
        for (uint32_t w = 0; w < 4; w++) {
            uint64_t all = members->words[i][w];
            members->words[2 * i + 1][w] = all & plane[w];
            members->words[2 * i][w] = all & ~plane[w];
        }
        packed[i / 4] |= (uint64_t)count256(members->words[2 * i + 1]) << (16 * (i % 4));
    }
    return s == 1 ? v_set1((float)packed[0]) : i_to_float(i_from_halves(packed[0], packed[1]));
}

/* Cuts every element at its node's threshold: the plane's words, and the sum of each node's upper part. index: each
 * element's node. */
FN void cut(uint32_t s, const vf *x, vi *index, vf thresholds, bool has_support, uint64_t plane[4], float *upper_sum) {
    uint32_t num = 1u << (s - 1);
    vf sums[8][4];
    for (uint32_t i = 0; i < num; i++)
        for (uint32_t a = 0; a < 4; a++) sums[i][a] = v_set1(0.0f);
    UNROLL(16)
    for (uint32_t k = 0; k < VECTORS; k++) {
        vm is_upper = v_gt(x[k], s == 1 ? thresholds : v_look_up8(thresholds, index[k]));
        if (has_support) is_upper = m_and(is_upper, v_not_zero(x[k]));
        plane[k / 4] = (k % 4 ? plane[k / 4] : 0) | (uint64_t)m_bits(is_upper) << (16 * (k % 4));
        UNROLL(8)
        for (uint32_t i = 0; i < num; i++) {
            vm is_mine = s == 1 ? is_upper : i_eq_where(is_upper, index[k], i_set1(i));
            sums[i][k % 4] = v_add_where(sums[i][k % 4], is_mine, x[k]);
        }
        index[k] = i_add_where(s == 1 ? i_set1(0) : i_add(index[k], index[k]), is_upper, i_set1(1));
    }
    for (uint32_t i = 0; i < num; i++)
        upper_sum[i] = v_sum(v_add(v_add(sums[i][0], sums[i][2]), v_add(sums[i][1], sums[i][3])));
}

FN void load_vectors(const uint8_t *src, uint32_t dtype, vf *x) {
    UNROLL(16)
    for (uint32_t k = 0; k < VECTORS; k++) x[k] = load16(dtype, src + k * 16 * itemsize(dtype));
}

/* Loads the group and finds its sum and largest magnitude; false where an element is not regular. */
FN bool load_group(const uint8_t *src, uint32_t dtype, vf *x, float *sum, float *largest) {
    vf sums[4], most = v_set1(0.0f);
#define LOAD(type) load_vectors(src, type, x)
    EACH_DTYPE(dtype, LOAD)
#undef LOAD
    for (uint32_t a = 0; a < 4; a++) sums[a] = v_set1(0.0f);
    UNROLL(16)
    for (uint32_t k = 0; k < VECTORS; k++) {
        sums[k % 4] = v_add(sums[k % 4], x[k]);
        most = v_abs_max(most, x[k]);
    }
    *sum = v_sum(v_add(v_add(sums[0], sums[2]), v_add(sums[1], sums[3])));
    *largest = v_most(most);
    return *sum == *sum && *largest < DAFI_HUGE;
}

FN bool has_zero_in(const vf *x) {
    vm is_not_zero = v_not_zero(x[0]);
    UNROLL(16)
    for (uint32_t k = 1; k < VECTORS; k++) is_not_zero = m_and(is_not_zero, v_not_zero(x[k]));
    return m_bits(is_not_zero) != 0xffffu;
}

FN void find_support(const vf *x, uint64_t words[4]) {
    UNROLL(16)
    for (uint32_t k = 0; k < VECTORS; k++)
        words[k / 4] = (k % 4 ? words[k / 4] : 0) | (uint64_t)m_bits(v_not_zero(x[k])) << (16 * (k % 4));
}

FN vf from_halves(vi halves) {
    return i_as_float(i_sll(halves, 16));
}
FN vf mean_of(vf sum, vf count) {
    return v_div(sum, v_max(count, v_set1(1.0f)));
}

/* dafi_split_distance: 0 where one part is empty. */
FN vf distance_of(vf lower, vf num_lower, vf upper, vf num_upper) {
    vf d = v_sub(upper, lower), zero = v_set1(0.0f);
    return v_zero_unless(m_and(m_and(v_gt(num_lower, zero), v_gt(num_upper, zero)), v_gt(d, zero)), d);
}

/* dafi_to_ratio of d / root. */
FN vi to_ratio(vf d, vf root) {
    vf ratio = v_zero_unless(v_gt(root, v_set1(0.0f)), v_div(d, root));
    vi code = i_srl(i_add(v_as_int(ratio), i_set1(1u << 19)), 20);
    return i_min(i_max(i_add(code, i_set1(-DAFI_RATIO_BIAS)), i_set1(0)), i_set1(255));
}

FN vf from_ratio(vi code) {
    return i_as_float(i_sll(i_add(code, i_set1(DAFI_RATIO_BIAS)), 20));
}

/* The lower part's mean, from the whole's and the distance of its parts. */
FN vf split_lower(vf mean, vf distance, vf num_upper, vf count) {
    return v_sub(mean, v_mul(distance, v_div(num_upper, v_max(count, v_set1(1.0f)))));
}

/* The nodes of one level, node i in lane i; and the distance of the root's parts, as stored, in every lane. mean: where
 * a group holds zeros, as a decoder has it. */
typedef struct level {
    vf sum, count, mean, root;
} level_t;

/* Splits the nodes of level s - 1 by their upper parts, and writes the header of level s. */
FN void split_level(uint32_t s, vf upper_sum, vf upper_count, bool has_zero, level_t *level, uint8_t *head) {
    uint8_t bytes[32];
    vf lower_sum = v_sub(level->sum, upper_sum), lower_count = v_sub(level->count, upper_count);
    vf lower = mean_of(lower_sum, lower_count), upper = mean_of(upper_sum, upper_count);
    vf d = distance_of(lower, lower_count, upper, upper_count), decoded;
    if (s == 1) {
        decoded = level->root = from_halves(to_bf16(d));
        i_store_u16(bytes, i_add(to_bf16(d), i_set1(has_zero ? DAFI_ZERO_FLAG : 0)));
    } else {
        vi ratio = to_ratio(d, level->root);
        decoded = v_mul(from_ratio(ratio), level->root);
        i_store_u8(bytes, ratio);
    }
    if (has_zero) lower = split_lower(level->mean, decoded, upper_count, level->count), upper = v_add(lower, decoded);
    memcpy(head, bytes, s == 1 ? 2 : 1u << (s - 1));
    level->sum = v_interleave(lower_sum, upper_sum);
    level->count = v_interleave(lower_count, upper_count);
    level->mean = v_interleave(lower, upper);
}

FN void meansplit_encode_group(const dafi_span_t *span, uint32_t g, bool has_support, uint32_t bits) {
    vf x[VECTORS];
    vi index[VECTORS];
    members_t members;
    float sum, largest, sums[16] = {0};
    if (!load_group(source_of(span, g, span->dtype), span->dtype, x, &sum, &largest)) {
        dafi_span_encode_group(span, g);
        return;
    }
    memset(members.words[0], 0xff, DAF_UNIT_BYTES);
    if (has_support) {
        find_support(x, members.words[0]);
        memcpy(span->plane[0] + g * DAF_UNIT_BYTES, members.words[0], DAF_UNIT_BYTES);
    }
    uint32_t count = has_support ? count256(members.words[0]) : DAF_GROUP;
    float mean = sum / (float)(count ? count : 1);
    bool has_zero = !has_support && largest > 0.0f && has_zero_in(x);
    dafi_put16(span->head[0] + 2 * g, dafi_to_bf16(mean));
    if (has_zero) mean = dafi_from_bf16(dafi_to_bf16(mean));
    level_t level = {v_set1(sum), v_set1((float)count), v_set1(mean), v_set1(0.0f)};
    UNROLL(4)
    for (uint32_t s = 1; s <= bits; s++) {
        uint64_t plane[4];
        cut(s, x, index, level.mean, has_support, plane, sums);
        if (s == 1 && largest > 0.0f && (count256(plane) == 0 || count256(plane) == count)) {
            dafi_span_encode_group(span, g);
            return;
        }
        memcpy(span->plane[s] + g * DAF_UNIT_BYTES, plane, DAF_UNIT_BYTES);
        vf upper_count = split_members(s, plane, &members);
        split_level(s, s == 1 ? v_set1(sums[0]) : v_load(sums), upper_count, has_zero, &level,
                    span->head[s] + g * (s == 1 ? 2 : 1u << (s - 1)));
    }
}

/* The distances of level s > 1, node i in lane i. Reads exactly the header's bytes: it may end at a page's end. */
FN vf distances_of(uint32_t s, const uint8_t *head, vf root) {
    uint64_t codes = 0;
    memcpy(&codes, head, 1u << (s - 1));
    return v_mul(from_ratio(i_from_bytes(codes)), root);
}

/* One in the lane of the node that zero is in: where it is of that node's two parts. */
FN vf split_zero(vf mean, vf zero_in) {
    vf upper = v_zero_unless(v_gt(v_set1(0.0f), mean), zero_in);
    return v_interleave(v_sub(zero_in, upper), upper);
}

/* dafi_split_means on all nodes at once. Kept in registers: a load that joins fresh narrow stores would wait for the
 * streaming stores before them. */
FN vf leaves_of(const dafi_span_t *span, uint32_t g, bool has_support, uint32_t live) {
    members_t members;
    dafi_means_t first = {.mean = {dafi_from_bf16(dafi_get16(span->head[0] + 2 * g))}};
    memset(members.words[0], 0xff, DAF_UNIT_BYTES);
    if (has_support) memcpy(members.words[0], span->plane[0] + g * DAF_UNIT_BYTES, DAF_UNIT_BYTES);
    vf count = v_set1((float)(has_support ? count256(members.words[0]) : DAF_GROUP));
    vf mean = v_set1(first.mean[0]), root = v_set1(0.0f), zero_in = v_set1(1.0f);
    UNROLL_WORDS(4)
    for (uint32_t s = 1; s <= live; s++) {
        uint64_t plane[4];
        memcpy(plane, span->plane[s] + g * DAF_UNIT_BYTES, DAF_UNIT_BYTES);
        vf num_upper = split_members(s, plane, &members);
        if (s == 1) {
            dafi_root_get(dafi_get16(span->head[1] + 2 * g), count256(members.words[1]) > 0, &first);
            mean = v_set1(first.mean[0]), root = v_set1(first.root);
        }
        if (!has_support && first.has_zero) zero_in = split_zero(mean, zero_in);
        vf distance = s == 1 ? root : distances_of(s, span->head[s] + g * (1u << (s - 1)), root);
        vf lower = split_lower(mean, distance, num_upper, count);
        mean = v_interleave(lower, v_add(lower, distance));
        count = v_interleave(v_sub(count, num_upper), num_upper);
    }
    if (!has_support) return first.has_zero ? v_zero_unless(v_gt(v_set1(1.0f), zero_in), mean) : mean;
    vf least = v_set1(span->job.least);
    return v_choose(v_gt(least, v_abs_max(v_set1(0.0f), mean)), least, mean);
}

/* The leaves of every group of a span. */
typedef struct tables {
    float leaf[DAFI_SPAN_GROUPS][16] __attribute__((aligned(64)));
    uint32_t escaped; /* a bit for each group */
} tables_t;

FN void tables_of(const dafi_span_t *span, bool has_support, uint32_t live, tables_t *tables) {
    for (uint32_t g = 0; g < span->numel / DAF_GROUP; g++) {
        tables->escaped |= (uint32_t)(isnan(dafi_from_bf16(dafi_get16(span->head[0] + 2 * g))) != 0) << g;
        v_store(tables->leaf[g], leaves_of(span, g, has_support, live));
    }
}

static __attribute__((noinline)) void find_tables(const dafi_span_t *span, bool has_support, tables_t *tables) {
#define PLAIN(live) tables_of(span, false, live, tables)
#define SUPPORT(live) tables_of(span, true, live, tables)
    tables->escaped = 0;
    if (has_support)
        EACH_WIDTH(span->job.live, SUPPORT)
    else
        EACH_WIDTH(span->job.live, PLAIN)
#undef PLAIN
#undef SUPPORT
}

FN void meansplit_decode_group(const dafi_span_t *span, uint32_t g, uint32_t dtype, bool has_support, uint32_t live,
                               const float *leaf, bool is_streaming) {
    uint8_t *dst = span->dst + (size_t)g * DAF_GROUP * itemsize(dtype);
    table_t table = table_of(v_load(leaf));
    for (uint32_t w = 0; w < 4; w++) {
        vf x[4];
        uint64_t words[4], support;
        if (has_support) memcpy(&support, span->plane[0] + g * DAF_UNIT_BYTES + w * 8, 8);
        get_words(span, g, w, words, live);
        look_up64(&table, words, live, has_support ? &support : NULL, x);
        for (uint32_t j = 0; j < 4; j++) store16(dtype, dst + (64 * w + 16 * j) * itemsize(dtype), x[j], is_streaming);
    }
}

/* First every group's table, then every group's elements: a processor that streams stores past its caches wants no
 * ordinary stores in between (measured: about four times slower). */
FN void meansplit_decode_groups(const dafi_span_t *span, uint32_t dtype, bool has_support, uint32_t live,
                                bool is_streaming) {
    tables_t tables;
    find_tables(span, has_support, &tables);
    for (uint32_t g = 0; g < span->numel / DAF_GROUP; g++) {
        if ((tables.escaped >> g) & 1u)
            dafi_span_decode_group(span, g);
        else
            meansplit_decode_group(span, g, dtype, has_support, live, tables.leaf[g], is_streaming);
    }
    if (span->numel % DAF_GROUP) dafi_span_decode_group(span, (uint32_t)(span->numel / DAF_GROUP));
}
