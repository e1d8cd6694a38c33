/* What the fast paths work on: plain pointers, with pages, headers' places and tensor ends taken care of.
 *
 *   span  up to 16 consecutive run groups. Their bits are 512 contiguous bytes of one page in every stream
 *   tile  256 rows (or fewer) of 16 columns, as float32, row after row; one mask of 16 bits per row and plane
 */
#ifndef DAF_SPAN_H
#define DAF_SPAN_H
#include "codec.h"

#define DAFI_SPAN_GROUPS 16
#define DAFI_TILE_COLS 16

typedef struct dafi_span {
    const uint8_t *src;   /* encode: the first element */
    uint8_t *dst;         /* decode: the first element */
    uint64_t numel;       /* elements; only the tensor's last group may be cut short */
    uint64_t first_group; /* index in the tensor: decides the random numbers */
    uint64_t seed;
    const dafi_group_codec_t *codec;
    dafi_group_job_t job;
    uint32_t dtype;
    bool is_streaming;                   /* decode: store past the caches */
    uint8_t *plane[DAFI_MAX_PLANES + 1]; /* stream s: 32 bytes a group; NULL where the stream has no plane */
    uint8_t *head[DAFI_MAX_PLANES + 1];  /* stream s: head_bytes a group */
} dafi_span_t;

typedef struct dafi_tile {
    float *x;                            /* x[row * 16 + col]: read by encode, written by decode */
    uint16_t *mask[DAFI_MAX_PLANES + 1]; /* stream s, one mask per row */
    uint8_t *head[DAFI_MAX_PLANES + 1];  /* stream s, head_bytes a column */
    uint32_t keys[DAFI_TILE_COLS];       /* of the columns' random numbers */
    uint32_t num_rows;
    uint32_t num_cols; /* columns that count, 1..16; the others are zero */
    const dafi_group_codec_t *codec;
    dafi_group_job_t job;
} dafi_tile_t;

/* The reference on group g of a span, on column c of a tile. */
void dafi_span_encode_group(const dafi_span_t *span, uint32_t g);
void dafi_span_decode_group(const dafi_span_t *span, uint32_t g);
void dafi_tile_encode_column(const dafi_tile_t *tile, uint32_t c);
void dafi_tile_decode_column(const dafi_tile_t *tile, uint32_t c);

typedef void (*dafi_span_fn)(const dafi_span_t *span);
typedef void (*dafi_tile_fn)(const dafi_tile_t *tile);

/* Which fast path a group codec has. */
enum { DAFI_NO_KERNEL = -1, DAFI_MINMAX, DAFI_MINMAX_SR, DAFI_MEANSPLIT, DAFI_SUPPORT, DAFI_NUM_KERNELS };

typedef struct dafi_isa {
    const char *name;
    bool (*is_available)(void);
    dafi_span_fn encode[DAFI_NUM_KERNELS][3]; /* by dtype; NULL: the reference does it */
    dafi_span_fn decode[DAFI_NUM_KERNELS][3];
    dafi_tile_fn encode_tile[DAFI_NUM_KERNELS];
    dafi_tile_fn decode_tile[DAFI_NUM_KERNELS];
    void (*widen16)(uint32_t dtype, const void *src, float *x); /* 16 elements to float32, and back */
    void (*narrow16)(uint32_t dtype, const float *x, void *dst);
} dafi_isa_t;

const dafi_isa_t *dafi_isa_now(void);

/* run.c and column.c: a whole tensor; and one span of a coder's, for codecs that bring their own elements. */
void dafi_run_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed);
void dafi_run_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes);
void dafi_column_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed);
void dafi_column_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes);
dafi_span_t dafi_span_of(const daf_coder_t *coder, uint64_t index, uint32_t live, uint64_t seed);
void dafi_span_encode(const daf_coder_t *coder, const daf_planes_t *planes, dafi_span_t *span);
void dafi_span_decode(const daf_coder_t *coder, const daf_planes_t *planes, dafi_span_t *span);
void dafi_stream_fence(void); /* makes streaming stores of this thread visible before what follows */

#define DAFI_GRAIN_ELEMENTS 32768 /* what torch gives a thread at least */
#endif
