/* Log-probabilities: rows of log-softmax outputs, `cols` classes each. What their reader makes of them is p - y, with
 * p = exp(x): an error d of x is an error of d * p. So the likeliest of each row is exact, and so is the second; then 1
 * - p of a class that is nearly certain keeps its digits. The others stand on a grid of logarithms that is fine where p
 * is large: t = second - x, the distance below the second, is depth * (code / most)^2.
 *
 * Stream 0:  a head of 16 bytes for each row
 *            | likeliest, float | its index | second, float | depth, float; sign: the row has infinities |
 * Stream s:  plane s of the codes, in blocks of 4096 elements (512 bytes)
 *
 * What is further below the second than DEPTH counts as if it were there: e^-16 of the second's probability. Where a
 * row has minus infinities, these alone have the last code. A code with k planes dropped stands for 2^k codes. A cell
 * decodes to the logarithm of its mean probability (if x is spread evenly in it), so that probabilities are not biased.
 * A row that is not of log-probabilities (NaN, plus infinity) decodes to NaN.
 */
#include "numbers.h"
#include "groups/span.h"
#include "threads.h"

#define BLOCK_BYTES (DAFI_BLOCK / 8)
#define DEPTH 16.0f
#define LANES 16u
#define MAX_LEVELS 256u

typedef struct head {
    float likeliest;
    uint32_t index; /* of the likeliest in its row */
    float second;
    float depth; /* of the least likely below the second; negative: code `most` is minus infinity */
} head_t;
_Static_assert(sizeof(head_t) == 16, "a power of two: a head lies in one page");

typedef struct task {
    const daf_coder_t *coder;
    const daf_planes_t *planes;
    const uint8_t *src;
    uint8_t *dst;
} task_t;

static daf_status_t plan(daf_coder_t *coder) {
    if (coder->dtype > DAF_FLOAT16 || coder->shape != DAF_RUN) return DAF_BAD_SPEC;
    if (coder->cols == 0 || coder->cols > UINT32_MAX || coder->numel % coder->cols) return DAF_BAD_SPEC;
    coder->num_streams = coder->bits + 1;
    coder->num_groups = coder->numel / coder->cols;
    coder->head_bytes[0] = sizeof(head_t);
    coder->stream_bytes[0] = dafi_whole_units(coder->num_groups * sizeof(head_t));
    for (uint32_t s = 1; s <= coder->bits; s++)
        coder->stream_bytes[s] = dafi_div_up(coder->numel, DAFI_BLOCK) * BLOCK_BYTES;
    return DAF_OK;
}

/* What a pass over a row finds, in lanes that a compiler makes vectors of. */
typedef struct scan {
    float most[LANES], second[LANES], least[LANES]; /* least: of the finite ones */
    uint32_t num_infinite[LANES], num_bad[LANES];   /* minus infinity; what no logarithm of a probability is */
} scan_t;

static void scan_lanes(const float *x, uint32_t num, scan_t *scan) {
    for (uint32_t lane = 0; lane < num; lane++) {
        float value = x[lane], most = scan->most[lane], lower = value < most ? value : most;
        scan->second[lane] = lower > scan->second[lane] ? lower : scan->second[lane];
        scan->most[lane] = value > most ? value : most;
        bool is_finite = value > -INFINITY, is_infinite = value == -INFINITY;
        scan->least[lane] = is_finite && value < scan->least[lane] ? value : scan->least[lane];
        scan->num_infinite[lane] += is_infinite;
        scan->num_bad[lane] += !(value < DAFI_HUGE);
    }
}

static head_t head_of(const scan_t *scan) {
    head_t head = {scan->most[0], 0, scan->second[0], 0.0f};
    float least = scan->least[0];
    uint32_t num_infinite = scan->num_infinite[0], num_bad = scan->num_bad[0];
    for (uint32_t lane = 1; lane < LANES; lane++) {
        float lower = scan->most[lane] < head.likeliest ? scan->most[lane] : head.likeliest;
        head.likeliest = scan->most[lane] > head.likeliest ? scan->most[lane] : head.likeliest;
        head.second = lower > head.second ? lower : head.second;
        head.second = scan->second[lane] > head.second ? scan->second[lane] : head.second;
        least = scan->least[lane] < least ? scan->least[lane] : least;
        num_infinite += scan->num_infinite[lane], num_bad += scan->num_bad[lane];
    }
    if (num_bad || !(head.likeliest > -DAFI_HUGE)) return (head_t){.depth = NAN};
    if (!(head.second > -DAFI_HUGE)) head.second = head.likeliest;
    float depth = head.second - least;
    depth = depth > DEPTH ? DEPTH : depth > 0.0f ? depth : 0.0f;
    head.depth = num_infinite ? -depth : depth;
    return head;
}

#define CHUNK 1024u /* elements that are made float32 at a time */

static void load(const task_t *task, uint64_t first, uint32_t num, float *x) {
    static const float none[CHUNK];
    dafi_isa_now()->widen(task->coder->dtype, task->src + first * dafi_itemsize(task->coder->dtype), none, num, x);
}

static uint32_t smaller(uint64_t left, uint32_t most) {
    return left < most ? (uint32_t)left : most;
}

static void scan_row(const task_t *task, uint64_t row, head_t *head) {
    uint64_t cols = task->coder->cols;
    float x[CHUNK];
    scan_t scan = {0};
    for (uint32_t lane = 0; lane < LANES; lane++)
        scan.most[lane] = scan.second[lane] = -INFINITY, scan.least[lane] = INFINITY;
    for (uint64_t first = 0; first < cols; first += CHUNK) {
        uint32_t num = smaller(cols - first, CHUNK), j = 0;
        load(task, row * cols + first, num, x);
        for (; j + LANES <= num; j += LANES) scan_lanes(x + j, LANES, &scan);
        scan_lanes(x + j, num - j, &scan);
    }
    *head = head_of(&scan);
}

/* The first element of the row that is the likeliest. */
static uint32_t find_likeliest(const task_t *task, uint64_t row, float likeliest) {
    uint64_t cols = task->coder->cols;
    float x[CHUNK];
    for (uint64_t first = 0; first < cols; first += CHUNK) {
        uint32_t num = smaller(cols - first, CHUNK);
        load(task, row * cols + first, num, x);
        for (uint32_t j = 0; j < num; j++)
            if (x[j] == likeliest) return (uint32_t)first + j;
    }
    return 0;
}

static void encode_heads(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    for (uint64_t row = (uint64_t)first; row < (uint64_t)last; row++) {
        head_t head;
        scan_row(task, row, &head);
        if (!isnan(head.depth)) head.index = find_likeliest(task, row, head.likeliest);
        memcpy(dafi_at(task->planes, 0, row * sizeof head), &head, sizeof head);
    }
}

/* The codes of neighbours in one row. */
static void quantize(const head_t *head, const float *x, uint32_t num, uint32_t bits, uint8_t *codes) {
    float depth = fabsf(head->depth), most = (float)((1u << bits) - 1), inverse = depth > 0.0f ? 1.0f / depth : 0.0f;
    float last = signbit(head->depth) ? most - 1.0f : most;
    if (isnan(head->depth)) last = inverse = 0.0f;
    for (uint32_t j = 0; j < num; j++) {
        float t = (head->second - x[j]) * inverse; /* of the likeliest: below zero */
        float code = sqrtf(t > 0.0f ? t < 1.0f ? t : 1.0f : 0.0f) * most + 0.5f;
        code = code < last ? code : last;
        codes[j] = (uint8_t)(x[j] == -INFINITY ? most : code);
    }
}

typedef struct piece {
    uint64_t row, col; /* of its first element */
    uint32_t num;
} piece_t;

/* The elements from `index` on that are of one row, at most `left`. */
static piece_t piece_at(const daf_coder_t *coder, uint64_t index, uint32_t left) {
    uint64_t row = index / coder->cols, col = index % coder->cols;
    return (piece_t){row, col, smaller(coder->cols - col, left)};
}

static head_t load_head(const task_t *task, uint64_t row) {
    head_t head;
    memcpy(&head, dafi_at(task->planes, 0, row * sizeof head), sizeof head);
    return head;
}

static void encode_blocks(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    const daf_coder_t *coder = task->coder;
    dafi_slice_t slice = {.num_planes = coder->bits};
    for (uint64_t block = (uint64_t)first; block < (uint64_t)last; block++) {
        uint64_t begin = block * DAFI_BLOCK;
        uint32_t num = smaller(coder->numel - begin, DAFI_BLOCK);
        uint8_t codes[DAFI_BLOCK];
        piece_t piece;
        for (uint32_t j = 0; j < num; j += piece.num) {
            float x[CHUNK];
            piece = piece_at(coder, begin + j, smaller(num - j, CHUNK));
            head_t head = load_head(task, piece.row);
            load(task, begin + j, piece.num, x);
            quantize(&head, x, piece.num, coder->bits, codes + j);
        }
        dafi_isa_now()->exact->take(DAF_UINT8, codes, num, 0, &slice);
        for (uint32_t s = 1; s <= coder->bits; s++)
            memcpy(dafi_at(task->planes, s, block * BLOCK_BYTES), slice.words[s - 1], BLOCK_BYTES);
    }
}

/* ln(sinh(h) / h) to a few hundredths: how far the mean of e^x over [-h, h] is above e^0, as a logarithm. */
static float mean_above_centre(float h) {
    float square = h * h;
    return h < 2.5f ? square * (1.0f / 6.0f - square * (1.0f / 180.0f)) : 0.83f + (h - 2.5f) * 0.72f;
}

/* What each code of `live` of the planes decodes to. A cell reaches from (centre - width / 2)^2 to (centre + width /
 * 2)^2 of depth. */
static void levels_of(const head_t *head, uint32_t bits, uint32_t live, float *level) {
    uint32_t num = 1u << live, width = 1u << (bits - live);
    float most = (float)((1u << bits) - 1), depth = fabsf(head->depth) / (most * most);
    for (uint32_t c = 0; c < num; c++) {
        float centre = (float)(c * width) + (float)(width - 1) * 0.5f;
        float middle = depth * (centre * centre + (float)(width * width) * 0.25f);
        float below = middle - mean_above_centre(depth * centre * (float)width);
        level[c] = head->second - (below > 0.0f ? below : 0.0f);
    }
    if (live && width == 1) level[0] = head->second;
    if (live && signbit(head->depth)) level[num - 1] = -INFINITY;
    for (uint32_t c = 0; isnan(head->depth) && c < num; c++) level[c] = NAN;
}

static void decode_piece(const task_t *task, const piece_t *piece, const uint8_t *codes, uint8_t *dst) {
    static const float none[DAFI_BLOCK];
    const daf_coder_t *coder = task->coder;
    float level[MAX_LEVELS], x[DAFI_BLOCK];
    head_t head = load_head(task, piece->row);
    levels_of(&head, coder->bits, task->planes->num_streams - 1, level);
    for (uint32_t j = 0; j < piece->num; j++) x[j] = level[codes[j]];
    if (head.index >= piece->col && head.index - piece->col < piece->num && !isnan(head.depth))
        x[head.index - piece->col] = head.likeliest;
    dafi_isa_now()->narrow(coder->dtype, x, none, piece->num, dst, false);
}

static void decode_blocks(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    const daf_coder_t *coder = task->coder;
    const uint64_t base = 0;
    dafi_slice_t slice = {.num_planes = task->planes->num_streams - 1};
    for (uint64_t block = (uint64_t)first; block < (uint64_t)last; block++) {
        uint64_t begin = block * DAFI_BLOCK;
        uint32_t num = smaller(coder->numel - begin, DAFI_BLOCK);
        uint8_t codes[DAFI_BLOCK] = {0};
        piece_t piece;
        for (uint32_t s = 1; s <= slice.num_planes; s++)
            memcpy(slice.words[s - 1], dafi_at(task->planes, s, block * BLOCK_BYTES), BLOCK_BYTES);
        if (slice.num_planes) dafi_isa_now()->exact->give(DAF_UINT8, codes, num, &base, &slice);
        for (uint32_t j = 0; j < num; j += piece.num) {
            piece = piece_at(coder, begin + j, num - j);
            decode_piece(task, &piece, codes + j, task->dst + (begin + j) * dafi_itemsize(coder->dtype));
        }
    }
}

static void over_blocks(task_t *task, dafi_span_task_t work) {
    int64_t num_blocks = (int64_t)dafi_div_up(task->coder->numel, DAFI_BLOCK);
    dafi_parallel_for(num_blocks, DAFI_GRAIN_ELEMENTS / DAFI_BLOCK, work, task);
}

static daf_status_t encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    (void)seed;
    task_t task = {.coder = coder, .planes = planes, .src = src};
    uint64_t used = coder->num_groups * sizeof(head_t);
    if (used % DAF_UNIT_BYTES) memset(dafi_at(planes, 0, used), 0, DAF_UNIT_BYTES - used % DAF_UNIT_BYTES);
    dafi_parallel_for((int64_t)coder->num_groups, (int64_t)dafi_div_up(DAFI_GRAIN_ELEMENTS, coder->cols), encode_heads,
                      &task);
    over_blocks(&task, encode_blocks);
    return DAF_OK;
}

static daf_status_t decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    task_t task = {.coder = coder, .planes = planes, .dst = dst};
    over_blocks(&task, decode_blocks);
    return DAF_OK;
}

const dafi_codec_t dafi_codec_logprob = {"logprob", 2, 8, plan, encode, decode, NULL, NULL};
