/* What the fast paths work on: plain pointers, with pages, headers' places and tensor ends taken care of.
 *
 *   span  up to 16 consecutive run groups. Their bits are 512 contiguous bytes of one page in every stream
 *   tile  256 rows (or fewer) of 16 columns; one mask of 16 bits per row and plane
 *   strip up to four tiles of consecutive groups, side by side or, in a matrix of 16 or 32 columns, below each other:
 *         their masks of row r are one word
 */
#ifndef DAF_SPAN_H
#define DAF_SPAN_H
#include "recompute/attention.h"
#include "codec.h"
#include "codecs/exact_bits.h"

#define DAFI_SPAN_GROUPS 16
#define DAFI_TILE_COLS 16
#define DAFI_STREAMING_ALIGN 64 /* bytes */
#define DAFI_STRIP_TILES 4

typedef struct dafi_span {
    const uint8_t *src;   /* encode: the first element */
    uint8_t *dst;         /* decode: the first element */
    uint64_t numel;       /* elements; only the tensor's last group may be cut short */
    uint64_t first_group; /* index in the tensor: decides the random numbers */
    uint64_t seed;
    const dafi_group_codec_t *codec;
    dafi_group_job_t job;
    uint32_t dtype;
    bool is_streaming;                   /* store past the caches: decode elements, encode planes */
    uint8_t *plane[DAFI_MAX_PLANES + 1]; /* stream s: 32 bytes a group; NULL where the stream has no plane */
    uint8_t *head[DAFI_MAX_PLANES + 1];  /* stream s: head_bytes a group */
} dafi_span_t;

/* Row r is at src or dst + r * stride_bytes, its mask of stream s at mask[s][r * DAFI_STRIP_TILES]. */
typedef struct dafi_tile {
    const uint8_t *src; /* encode: the first element */
    uint8_t *dst;       /* decode: the first element */
    size_t stride_bytes;
    size_t offset[DAFI_STRIP_TILES];     /* of a strip's first tile: where tile t begins, in bytes from src or dst */
    float *x;                            /* encode: room for the strip as float32, tile by tile, for the fast paths */
    uint16_t *mask[DAFI_MAX_PLANES + 1]; /* NULL where the stream has no plane */
    uint8_t *head[DAFI_MAX_PLANES + 1];  /* stream s: head_bytes a column */
    const uint16_t (*counts)[64];        /* decode: what count_strip found, from this tile's first column on */
    uint64_t first_group;                /* of column 0: decides the random numbers */
    uint64_t seed;
    uint32_t num_rows;
    uint32_t dtype;
    bool is_streaming; /* decode: store past the caches */
    const dafi_group_codec_t *codec;
    dafi_group_job_t job;
} dafi_tile_t;

/* The reference on group g of a span, on column c of a tile. */
void dafi_span_encode_group(const dafi_span_t *span, uint32_t g);
void dafi_span_decode_group(const dafi_span_t *span, uint32_t g);
void dafi_span_encode_groups(const dafi_span_t *span); /* all groups, by the fast path where there is one */
void dafi_span_decode_groups(const dafi_span_t *span);
void dafi_tile_encode_column(const dafi_tile_t *tile, uint32_t c);
void dafi_tile_decode_column(const dafi_tile_t *tile, uint32_t c);

typedef void (*dafi_span_fn)(const dafi_span_t *span);
typedef void (*dafi_tile_fn)(const dafi_tile_t *tile);

/* Which fast path a group codec has. */
enum { DAFI_NO_KERNEL = -1, DAFI_MINMAX, DAFI_MINMAX_SR, DAFI_MEANSPLIT, DAFI_SUPPORT, DAFI_NUM_KERNELS };
#define DAFI_FIRST_TREE DAFI_MEANSPLIT

typedef struct dafi_isa {
    const char *name;
    bool (*is_available)(void);
    dafi_span_fn encode[DAFI_NUM_KERNELS]; /* NULL: the reference does it */
    dafi_span_fn decode[DAFI_NUM_KERNELS];
    dafi_tile_fn encode_tile[DAFI_NUM_KERNELS];
    dafi_tile_fn decode_tile[DAFI_NUM_KERNELS];
    dafi_tile_fn encode_strip[DAFI_NUM_KERNELS]; /* of a strip's first tile, all 64 columns; NULL: tile by tile */
    dafi_tile_fn decode_strip[DAFI_NUM_KERNELS];
    void (*count_strip)(const dafi_tile_t *first, uint16_t (*counts)[64]); /* of each node of a tree, per column */
    const dafi_exact_t *exact;
    /* sum and count of the regular elements at each place; x = elements - less; elements = plus + x. */
    void (*add_regular)(uint32_t dtype, const void *src, uint64_t num, float *sum, uint32_t *count);
    void (*widen)(uint32_t dtype, const void *src, const float *less, uint64_t num, float *x);
    void (*narrow)(uint32_t dtype, const float *x, const float *plus, uint64_t num, void *dst, bool is_streaming);
    void (*attend)(const dafi_attention_job_t *job, const dafi_attention_item_t *item);
    void (*stream)(void *to, const void *from, size_t size); /* whole lines past the caches; NULL: there is no such */
} dafi_isa_t;

const dafi_isa_t *dafi_isa_now(void);

/* run_groups.c and column_groups.c: a whole tensor; and one span of a coder's, for codecs that bring their own
 * elements. */
void dafi_run_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed);
void dafi_run_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes);
void dafi_column_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed);
void dafi_column_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes);
dafi_span_t dafi_span_of(const daf_coder_t *coder, uint64_t index, uint32_t live, uint64_t seed);
void dafi_span_encode(const daf_coder_t *coder, const daf_planes_t *planes, dafi_span_t *span);
void dafi_span_decode(const daf_coder_t *coder, const daf_planes_t *planes, dafi_span_t *span);
/* Whether a tensor is too big for a core's caches; and whether its decoded elements are stored past them: they must
 * also begin on a line. */
bool dafi_is_big(const daf_coder_t *coder);
bool dafi_is_streaming(const daf_coder_t *coder, const void *dst);
void dafi_stream_fence(void); /* makes streaming stores of this thread visible before what follows */

#define DAFI_GRAIN_ELEMENTS 32768 /* what torch gives a thread at least */
#endif
