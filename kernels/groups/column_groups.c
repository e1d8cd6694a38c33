/* Column groups: cuts a matrix into bands of 256 rows, these into strips of 64 columns, and these into tiles of 16,
 * each column of a tile a group. Bits stand in memory order, so a row of a strip is 64 consecutive bits of every plane.
 * Where a band is only 16 or 32 columns wide, four or two of them make a strip. */
#include "numbers.h"
#include "groups/span.h"
#include "threads.h"

#define STRIP_COLS (DAFI_STRIP_TILES * DAFI_TILE_COLS)

static uint16_t *mask_at(const dafi_tile_t *tile, uint32_t s, uint32_t r) {
    return &tile->mask[s][r * DAFI_STRIP_TILES];
}

void dafi_tile_encode_column(const dafi_tile_t *tile, uint32_t c) {
    float x[DAF_GROUP];
    dafi_group_t stored = {0};
    dafi_group_job_t job = tile->job;
    stored.num = tile->num_rows;
    job.key = dafi_group_key(tile->seed, tile->first_group + c);
    for (uint32_t j = 0; j < stored.num; j++) x[j] = dafi_load(tile->dtype, tile->src + j * tile->stride_bytes, c);
    tile->codec->encode(&job, x, &stored);
    for (uint32_t s = 0; s <= job.bits; s++) {
        uint32_t head_bytes = tile->codec->head_bytes(s), bit = 1u << c;
        if (head_bytes) memcpy(tile->head[s] + c * head_bytes, stored.head[s], head_bytes);
        for (uint32_t j = 0; tile->mask[s] && j < stored.num; j++) {
            uint32_t others = *mask_at(tile, s, j) & ~bit;
            *mask_at(tile, s, j) = (uint16_t)(others | (dafi_bit(stored.plane[s], j) ? bit : 0));
        }
    }
}

void dafi_tile_decode_column(const dafi_tile_t *tile, uint32_t c) {
    float x[DAF_GROUP];
    dafi_group_t stored = {0};
    stored.num = tile->num_rows;
    for (uint32_t s = 0; s <= tile->job.live; s++) {
        uint32_t head_bytes = tile->codec->head_bytes(s);
        if (head_bytes) memcpy(stored.head[s], tile->head[s] + c * head_bytes, head_bytes);
        for (uint32_t j = 0; tile->mask[s] && j < stored.num; j++)
            if ((*mask_at(tile, s, j) >> c) & 1u) dafi_set_bit(stored.plane[s], j);
    }
    tile->codec->decode(&tile->job, &stored, x);
    for (uint32_t j = 0; j < stored.num; j++) dafi_store(tile->dtype, tile->dst + j * tile->stride_bytes, c, x[j]);
}

/* A strip with the memory that its tiles point to: a thread's workspace. */
typedef struct strip {
    dafi_tile_t tile;   /* the first one */
    uint32_t num_cols;  /* of all its bands */
    uint32_t num_bands; /* 1, or so many that they have 64 columns */
    uint64_t first;     /* index of its first element */
    float x[DAF_GROUP * STRIP_COLS] __attribute__((aligned(64)));
    uint8_t edge[DAF_GROUP * DAFI_TILE_COLS * 4]; /* the elements of a tile that the matrix does not fill */
    uint16_t mask[DAFI_MAX_PLANES + 1][DAF_GROUP * DAFI_STRIP_TILES] __attribute__((aligned(64)));
    uint16_t counts[16][STRIP_COLS];
    uint8_t head[DAFI_MAX_PLANES + 1][STRIP_COLS * 8];
} strip_t;

typedef struct task {
    const daf_coder_t *coder;
    const daf_planes_t *planes;
    const uint8_t *src;
    uint8_t *dst;
    uint64_t seed;
    bool is_streaming;
} task_t;

/* How many bands from `band` on, and before `end`, make a strip. */
static uint32_t num_bands_at(const task_t *task, uint64_t band, uint64_t end) {
    uint64_t cols = task->coder->cols, num = STRIP_COLS / cols;
    if (cols != DAFI_TILE_COLS && cols != 2 * DAFI_TILE_COLS) return 1;
    return band + num <= end && (band + num) * DAF_GROUP * cols <= task->coder->numel ? (uint32_t)num : 1;
}

static void place_strip(const task_t *task, uint64_t band, uint32_t num_bands, uint64_t col, uint32_t live,
                        strip_t *strip) {
    const daf_coder_t *coder = task->coder;
    uint64_t row = band * DAF_GROUP, left_rows = coder->numel / coder->cols - row, left_cols = coder->cols - col;
    dafi_tile_t *tile = &strip->tile;
    strip->first = row * coder->cols + col;
    strip->num_bands = num_bands;
    strip->num_cols = num_bands > 1 || left_cols > STRIP_COLS ? STRIP_COLS : (uint32_t)left_cols;
    *tile = (dafi_tile_t){
        .stride_bytes = coder->cols * dafi_itemsize(coder->dtype),
        .x = strip->x,
        .counts = (const uint16_t(*)[STRIP_COLS])strip->counts,
        .first_group = band * coder->cols + col,
        .seed = task->seed,
        .num_rows = left_rows < DAF_GROUP ? (uint32_t)left_rows : DAF_GROUP,
        .dtype = coder->dtype,
        .is_streaming = task->is_streaming,
        .codec = dafi_codec_of(coder)->group,
        .job = dafi_job_of(coder, live),
    };
    for (uint32_t s = 0; s <= DAFI_MAX_PLANES; s++) {
        tile->mask[s] = s || tile->codec->has_support ? strip->mask[s] : NULL;
        tile->head[s] = strip->head[s];
    }
    for (uint32_t t = 0; t < DAFI_STRIP_TILES; t++) {
        uint64_t place = t * DAFI_TILE_COLS, below = num_bands > 1 ? place / coder->cols : 0;
        place += below * (DAF_GROUP - 1) * coder->cols; /* one band of elements, less the columns already passed */
        tile->offset[t] = place * dafi_itemsize(coder->dtype);
    }
}

/* Tile t of a strip, its elements not yet placed; returns its columns. */
static uint32_t tile_of(const task_t *task, const strip_t *strip, uint32_t t, dafi_tile_t *tile) {
    uint32_t left = strip->num_cols - t * DAFI_TILE_COLS;
    *tile = strip->tile;
    tile->first_group += t * DAFI_TILE_COLS;
    for (uint32_t s = 0; s <= DAFI_MAX_PLANES; s++) {
        if (tile->mask[s]) tile->mask[s] += t;
        tile->head[s] += t * DAFI_TILE_COLS * task->coder->head_bytes[s];
    }
    tile->counts = (const uint16_t(*)[STRIP_COLS]) & strip->counts[0][t * DAFI_TILE_COLS];
    return left < DAFI_TILE_COLS ? left : DAFI_TILE_COLS;
}

static uint64_t byte_of(const task_t *task, const strip_t *strip, uint32_t t) {
    return strip->first * dafi_itemsize(task->coder->dtype) + strip->tile.offset[t];
}

static void copy_rows(uint8_t *to, size_t to_stride, const uint8_t *from, size_t from_stride, size_t size,
                      uint32_t num_rows) {
    for (uint32_t r = 0; r < num_rows; r++) memcpy(to + r * to_stride, from + r * from_stride, size);
}

static void encode_tile(const task_t *task, strip_t *strip, uint32_t t) {
    dafi_tile_t tile;
    uint32_t num_cols = tile_of(task, strip, t, &tile);
    size_t itemsize = dafi_itemsize(tile.dtype);
    dafi_tile_fn fast = tile.codec->kernel < 0 ? NULL : dafi_isa_now()->encode_tile[tile.codec->kernel];
    tile.src = task->src + byte_of(task, strip, t);
    if (fast && num_cols < DAFI_TILE_COLS) {
        memset(strip->edge, 0, sizeof strip->edge);
        copy_rows(strip->edge, DAFI_TILE_COLS * itemsize, tile.src, tile.stride_bytes, num_cols * itemsize,
                  tile.num_rows);
        tile.src = strip->edge, tile.stride_bytes = DAFI_TILE_COLS * itemsize;
    }
    if (fast) fast(&tile);
    for (uint32_t c = 0; !fast && c < num_cols; c++) dafi_tile_encode_column(&tile, c);
}

static void decode_tile(const task_t *task, strip_t *strip, uint32_t t) {
    dafi_tile_t tile;
    uint32_t num_cols = tile_of(task, strip, t, &tile);
    size_t itemsize = dafi_itemsize(tile.dtype), stride_bytes = tile.stride_bytes;
    uint8_t *dst = tile.dst = task->dst + byte_of(task, strip, t);
    dafi_tile_fn fast = tile.codec->kernel < 0 ? NULL : dafi_isa_now()->decode_tile[tile.codec->kernel];
    bool is_edge = fast && num_cols < DAFI_TILE_COLS;
    if (is_edge) tile.dst = strip->edge, tile.stride_bytes = DAFI_TILE_COLS * itemsize, tile.is_streaming = false;
    if (fast) fast(&tile);
    for (uint32_t c = 0; !fast && c < num_cols; c++) dafi_tile_decode_column(&tile, c);
    if (is_edge) copy_rows(dst, stride_bytes, strip->edge, tile.stride_bytes, num_cols * itemsize, tile.num_rows);
}

static void move_heads(const task_t *task, strip_t *strip, bool to_planes) {
    for (uint32_t s = 0; s < task->planes->num_streams; s++) {
        uint32_t head_bytes = task->coder->head_bytes[s];
        uint64_t offset = task->coder->head_offset[s] + strip->tile.first_group * head_bytes;
        dafi_copy(task->planes, s, offset, strip->head[s], head_bytes * strip->num_cols, to_planes);
    }
}

/* Bits of one row of a strip. Any row may begin anywhere in a byte; whole bytes of one page are the common case. */
static bool is_whole(const daf_planes_t *planes, uint64_t index, uint32_t num) {
    return num % 8 == 0 && index % 8 == 0 && (index / 8 & (planes->page_bytes - 1)) + num / 8 <= planes->page_bytes;
}

static void copy_bits(void *to, const void *from, uint32_t num) {
    if (num == 64)
        memcpy(to, from, 8); /* a size that the compiler knows: one move */
    else
        memcpy(to, from, num / 8);
}

static void put_row(const daf_planes_t *planes, uint32_t s, uint64_t index, uint32_t num, const uint16_t *row) {
    uint64_t mask;
    memcpy(&mask, row, sizeof mask);
    if (is_whole(planes, index, num)) {
        copy_bits(dafi_at(planes, s, index / 8), row, num);
        return;
    }
    for (uint32_t c = 0; c < num;) {
        uint32_t shift = (uint32_t)((index + c) % 8), part = 8 - shift < num - c ? 8 - shift : num - c;
        uint8_t keep = (uint8_t) ~(((1u << part) - 1) << shift), *byte = dafi_at(planes, s, (index + c) / 8);
        *byte = (uint8_t)((*byte & keep) | (uint8_t)(((mask >> c) & ((1u << part) - 1)) << shift));
        c += part;
    }
}

static void get_row(const daf_planes_t *planes, uint32_t s, uint64_t index, uint32_t num, uint16_t *row) {
    uint64_t mask = 0;
    if (is_whole(planes, index, num)) {
        copy_bits(row, dafi_at(planes, s, index / 8), num);
        return;
    }
    for (uint32_t c = 0; c < num;) {
        uint32_t shift = (uint32_t)((index + c) % 8), part = 8 - shift < num - c ? 8 - shift : num - c;
        mask |= (uint64_t)((*dafi_at(planes, s, (index + c) / 8) >> shift) & ((1u << part) - 1)) << c;
        c += part;
    }
    memcpy(row, &mask, sizeof mask);
}

static uint16_t *row_at(strip_t *strip, uint32_t s, uint32_t r) {
    return &strip->mask[s][r * DAFI_STRIP_TILES];
}

/* Whether every row of a band in the strip is one aligned word of a plane, and so in one page. */
static bool has_words(const task_t *task, const strip_t *strip) {
    return strip->num_bands > 1 || (strip->num_cols == STRIP_COLS && task->coder->cols % STRIP_COLS == 0);
}

/* The rows of plane s, in words of `size` bytes a band, between the planes and the strip. */
static inline __attribute__((always_inline)) void move_words(const task_t *task, strip_t *strip, uint32_t s,
                                                             size_t size, bool to_planes) {
    const daf_planes_t *planes = task->planes;
    uint8_t *const *pages = planes->pages + planes->first_page[s];
    uint32_t shift = (uint32_t)__builtin_ctz(planes->page_bytes), num_rows = strip->tile.num_rows;
    uint64_t step = task->coder->cols / 8, rest = planes->page_bytes - 1;
    for (uint32_t band = 0; band < 8 / size; band++) {
        uint64_t offset = strip->first / 8 + band * DAF_GROUP * step;
        uint8_t *row = (uint8_t *)strip->mask[s] + band * size;
        for (uint32_t r = 0; r < num_rows; r++, offset += step, row += 8) {
            uint8_t *word = pages[offset >> shift] + (offset & rest);
            if (to_planes)
                memcpy(word, row, size);
            else
                memcpy(row, word, size);
        }
    }
}

static void move_rows(const task_t *task, strip_t *strip, uint32_t s, bool to_planes) {
    if (!strip->tile.mask[s]) return;
    if (has_words(task, strip)) {
#define MOVE(size)                                                                                                     \
    if (to_planes)                                                                                                     \
        move_words(task, strip, s, size, true);                                                                        \
    else                                                                                                               \
        move_words(task, strip, s, size, false)
        switch (strip->num_bands) { /* constants, for moves of one instruction */
        case 1:
            MOVE(8);
            return;
        case 2:
            MOVE(4);
            return;
        default:
            MOVE(2);
            return;
        }
#undef MOVE
    }
    for (uint32_t r = 0; r < strip->tile.num_rows; r++) {
        uint64_t index = strip->first + r * task->coder->cols;
        if (to_planes)
            put_row(task->planes, s, index, strip->num_cols, row_at(strip, s, r));
        else
            get_row(task->planes, s, index, strip->num_cols, row_at(strip, s, r));
    }
}

/* What codes all 64 columns at once, if there is such. */
static dafi_tile_fn strip_fn(const strip_t *strip, const dafi_tile_fn *by_kernel) {
    int kernel = strip->tile.codec->kernel;
    return kernel < 0 || strip->num_cols < STRIP_COLS ? NULL : by_kernel[kernel];
}

static void encode_strip(const task_t *task, strip_t *strip) {
    dafi_tile_fn whole = strip_fn(strip, dafi_isa_now()->encode_strip);
    strip->tile.src = task->src + byte_of(task, strip, 0);
    if (whole) whole(&strip->tile);
    for (uint32_t t = 0; !whole && t * DAFI_TILE_COLS < strip->num_cols; t++) encode_tile(task, strip, t);
    move_heads(task, strip, true);
    for (uint32_t s = 0; s <= task->coder->bits; s++) move_rows(task, strip, s, true);
}

static void decode_strip(const task_t *task, strip_t *strip) {
    move_heads(task, strip, false);
    for (uint32_t s = 0; s < task->planes->num_streams; s++) move_rows(task, strip, s, false);
    if (dafi_isa_now()->count_strip && strip->tile.codec->kernel >= DAFI_FIRST_TREE)
        dafi_isa_now()->count_strip(&strip->tile, strip->counts);
    dafi_tile_fn whole = strip_fn(strip, dafi_isa_now()->decode_strip);
    strip->tile.dst = task->dst + byte_of(task, strip, 0);
    if (whole) whole(&strip->tile);
    for (uint32_t t = 0; !whole && t * DAFI_TILE_COLS < strip->num_cols; t++) decode_tile(task, strip, t);
}

static inline __attribute__((always_inline)) void over_strips(const task_t *task, uint64_t first, uint64_t last,
                                                              uint32_t live,
                                                              void (*work)(const task_t *task, strip_t *strip)) {
    strip_t strip;
    for (uint64_t band = first, num; band < last; band += num) {
        num = num_bands_at(task, band, last);
        for (uint64_t col = 0; col < task->coder->cols; col += STRIP_COLS) {
            place_strip(task, band, (uint32_t)num, col, live, &strip);
            work(task, &strip);
        }
    }
}

static void encode_bands(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    over_strips(task, (uint64_t)first, (uint64_t)last, task->coder->bits, encode_strip);
}

static void decode_bands(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    over_strips(task, (uint64_t)first, (uint64_t)last, task->planes->num_streams - 1, decode_strip);
    if (task->is_streaming) dafi_stream_fence();
}

static void over_bands(task_t task, void (*work)(void *context, int64_t first, int64_t last)) {
    uint64_t num_bands = task.coder->cols ? dafi_div_up(task.coder->numel / task.coder->cols, DAF_GROUP) : 0;
    uint64_t grain = task.coder->cols ? dafi_div_up(DAFI_GRAIN_ELEMENTS, task.coder->cols * DAF_GROUP) : 1;
    dafi_parallel_for((int64_t)num_bands, (int64_t)grain, work, &task);
}

void dafi_column_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    over_bands((task_t){coder, planes, src, NULL, seed, false}, encode_bands);
}

void dafi_column_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    uint64_t row_bytes = coder->cols * dafi_itemsize(coder->dtype);
    bool is_streaming = dafi_is_streaming(coder, dst) && row_bytes % DAFI_STREAMING_ALIGN == 0;
    over_bands((task_t){coder, planes, NULL, dst, 0, is_streaming}, decode_bands);
}
