/* Column groups: cuts a matrix into tiles of 256 rows and 16 columns, each column of a tile a group. Bits stand in
 * memory order, so a row of a tile is 16 consecutive bits of every plane. */
#include "numbers.h"
#include "span.h"
#include "threads.h"

void dafi_tile_encode_column(const dafi_tile_t *tile, uint32_t c) {
    float x[DAF_GROUP];
    dafi_group_t stored = {0};
    dafi_group_job_t job = tile->job;
    stored.num = tile->num_rows;
    job.key = tile->keys[c];
    for (uint32_t j = 0; j < stored.num; j++) x[j] = tile->x[j * DAFI_TILE_COLS + c];
    tile->codec->encode(&job, x, &stored);
    for (uint32_t s = 0; s <= job.bits; s++) {
        uint32_t head_bytes = tile->codec->head_bytes(s);
        if (head_bytes) memcpy(tile->head[s] + c * head_bytes, stored.head[s], head_bytes);
        for (uint32_t j = 0; tile->mask[s] && j < stored.num; j++)
            tile->mask[s][j] =
                (uint16_t)((tile->mask[s][j] & ~(1u << c)) | (uint32_t)dafi_bit(stored.plane[s], j) << c);
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
            if ((tile->mask[s][j] >> c) & 1u) dafi_set_bit(stored.plane[s], j);
    }
    tile->codec->decode(&tile->job, &stored, x);
    for (uint32_t j = 0; j < stored.num; j++) tile->x[j * DAFI_TILE_COLS + c] = x[j];
}

/* A tile with the memory that it points to: a thread's workspace. */
typedef struct workspace {
    dafi_tile_t tile;
    float x[DAF_GROUP * DAFI_TILE_COLS] __attribute__((aligned(64)));
    uint16_t mask[DAFI_MAX_PLANES + 1][DAF_GROUP];
    uint8_t head[DAFI_MAX_PLANES + 1][DAFI_TILE_COLS * 8];
    uint64_t first_group;
    uint64_t first; /* index of the tile's first element */
} workspace_t;

typedef struct task {
    const daf_coder_t *coder;
    const daf_planes_t *planes;
    const uint8_t *src;
    uint8_t *dst;
    uint64_t seed;
} task_t;

static void place_tile(const task_t *task, uint64_t band, uint64_t col, uint32_t live, workspace_t *ws) {
    const daf_coder_t *coder = task->coder;
    uint64_t row = band * DAF_GROUP, left_rows = coder->numel / coder->cols - row, left_cols = coder->cols - col;
    dafi_tile_t *tile = &ws->tile;
    tile->codec = dafi_codec_of(coder)->group;
    tile->job = dafi_job_of(coder, live);
    tile->num_rows = left_rows < DAF_GROUP ? (uint32_t)left_rows : DAF_GROUP;
    tile->num_cols = left_cols < DAFI_TILE_COLS ? (uint32_t)left_cols : DAFI_TILE_COLS;
    tile->x = ws->x;
    for (uint32_t s = 0; s <= DAFI_MAX_PLANES; s++) {
        tile->mask[s] = s || tile->codec->has_support ? ws->mask[s] : NULL;
        tile->head[s] = ws->head[s];
    }
    ws->first_group = band * coder->cols + col;
    ws->first = row * coder->cols + col;
    for (uint32_t c = 0; c < DAFI_TILE_COLS; c++) tile->keys[c] = dafi_group_key(task->seed, ws->first_group + c);
}

/* Headers, one group at a time: 16 of them may lie in two pages. */
static void move_heads(const task_t *task, workspace_t *ws, bool to_planes) {
    for (uint32_t s = 0; s < task->planes->num_streams; s++) {
        uint32_t size = task->coder->head_bytes[s];
        for (uint32_t c = 0; size && c < ws->tile.num_cols; c++) {
            uint8_t *at = dafi_at(task->planes, s, task->coder->head_offset[s] + (ws->first_group + c) * size);
            if (to_planes)
                memcpy(at, ws->head[s] + c * size, size);
            else
                memcpy(ws->head[s] + c * size, at, size);
        }
    }
}

/* Bits of one row of a tile. Any column may begin anywhere in a byte; 16 whole bytes' worth is the common case. */
static void put_row(const daf_planes_t *planes, uint32_t s, uint64_t index, uint32_t num, uint16_t mask) {
    if (num == 16 && index % 16 == 0) {
        memcpy(dafi_at(planes, s, index / 8), &mask, 2);
        return;
    }
    for (uint32_t c = 0; c < num;) {
        uint32_t shift = (uint32_t)((index + c) % 8), part = 8 - shift < num - c ? 8 - shift : num - c;
        uint8_t keep = (uint8_t) ~(((1u << part) - 1) << shift), *byte = dafi_at(planes, s, (index + c) / 8);
        *byte = (uint8_t)((*byte & keep) | (uint8_t)((((uint32_t)mask >> c) & ((1u << part) - 1)) << shift));
        c += part;
    }
}

static uint16_t get_row(const daf_planes_t *planes, uint32_t s, uint64_t index, uint32_t num) {
    uint16_t whole;
    uint32_t mask = 0;
    if (num == 16 && index % 16 == 0) {
        memcpy(&whole, dafi_at(planes, s, index / 8), 2);
        return whole;
    }
    for (uint32_t c = 0; c < num;) {
        uint32_t shift = (uint32_t)((index + c) % 8), part = 8 - shift < num - c ? 8 - shift : num - c;
        mask |= (((uint32_t)*dafi_at(planes, s, (index + c) / 8) >> shift) & ((1u << part) - 1)) << c;
        c += part;
    }
    return (uint16_t)mask;
}

static void encode_tile(const task_t *task, uint64_t band, uint64_t col, workspace_t *ws) {
    place_tile(task, band, col, task->coder->bits, ws);
    dafi_tile_t *tile = &ws->tile;
    const dafi_isa_t *isa = dafi_isa_now();
    size_t itemsize = dafi_itemsize(task->coder->dtype);
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        const uint8_t *row = task->src + (ws->first + r * task->coder->cols) * itemsize;
        if (isa->widen16 && tile->num_cols == DAFI_TILE_COLS)
            isa->widen16(task->coder->dtype, row, ws->x + r * DAFI_TILE_COLS);
        else
            for (uint32_t c = 0; c < tile->num_cols; c++)
                ws->x[r * DAFI_TILE_COLS + c] = dafi_load(task->coder->dtype, row, c);
    }
    dafi_tile_fn fast =
        tile->codec->kernel < 0 || tile->num_cols < DAFI_TILE_COLS ? NULL : isa->encode_tile[tile->codec->kernel];
    if (fast) fast(tile);
    for (uint32_t c = 0; !fast && c < tile->num_cols; c++) dafi_tile_encode_column(tile, c);
    move_heads(task, ws, true);
    for (uint32_t s = 0; s <= task->coder->bits; s++)
        for (uint32_t r = 0; tile->mask[s] && r < tile->num_rows; r++)
            put_row(task->planes, s, ws->first + r * task->coder->cols, tile->num_cols, tile->mask[s][r]);
}

static void decode_tile(const task_t *task, uint64_t band, uint64_t col, workspace_t *ws) {
    place_tile(task, band, col, task->planes->num_streams - 1, ws);
    dafi_tile_t *tile = &ws->tile;
    const dafi_isa_t *isa = dafi_isa_now();
    size_t itemsize = dafi_itemsize(task->coder->dtype);
    move_heads(task, ws, false);
    for (uint32_t s = 0; s <= tile->job.live; s++)
        for (uint32_t r = 0; tile->mask[s] && r < tile->num_rows; r++)
            tile->mask[s][r] = get_row(task->planes, s, ws->first + r * task->coder->cols, tile->num_cols);
    dafi_tile_fn fast =
        tile->codec->kernel < 0 || tile->num_cols < DAFI_TILE_COLS ? NULL : isa->decode_tile[tile->codec->kernel];
    if (fast) fast(tile);
    for (uint32_t c = 0; !fast && c < tile->num_cols; c++) dafi_tile_decode_column(tile, c);
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        uint8_t *row = task->dst + (ws->first + r * task->coder->cols) * itemsize;
        const float *x = ws->x + r * DAFI_TILE_COLS;
        if (isa->narrow16 && tile->num_cols == DAFI_TILE_COLS)
            isa->narrow16(task->coder->dtype, x, row);
        else
            for (uint32_t c = 0; c < tile->num_cols; c++) dafi_store(task->coder->dtype, row, c, x[c]);
    }
}

static void encode_bands(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    workspace_t ws;
    for (uint64_t band = (uint64_t)first; band < (uint64_t)last; band++)
        for (uint64_t col = 0; col < task->coder->cols; col += DAFI_TILE_COLS) encode_tile(task, band, col, &ws);
}

static void decode_bands(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    workspace_t ws;
    for (uint64_t band = (uint64_t)first; band < (uint64_t)last; band++)
        for (uint64_t col = 0; col < task->coder->cols; col += DAFI_TILE_COLS) decode_tile(task, band, col, &ws);
}

static void over_bands(task_t task, void (*work)(void *context, int64_t first, int64_t last)) {
    uint64_t num_bands = task.coder->cols ? dafi_div_up(task.coder->numel / task.coder->cols, DAF_GROUP) : 0;
    uint64_t grain = task.coder->cols ? dafi_div_up(DAFI_GRAIN_ELEMENTS, task.coder->cols * DAF_GROUP) : 1;
    dafi_parallel_for((int64_t)num_bands, (int64_t)grain, work, &task);
}

void dafi_column_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    over_bands((task_t){coder, planes, src, NULL, seed}, encode_bands);
}

void dafi_column_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    over_bands((task_t){coder, planes, NULL, dst, 0}, decode_bands);
}
