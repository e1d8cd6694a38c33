/* Bit-plane codecs: the public face.
 *
 * Words
 *   group   256 elements that share a header: consecutive in memory (run), or 256 rows of one column (column)
 *   plane   one bit of every element, in memory order: element i is bit i % 64 of little-endian word i / 64
 *   stream  a byte string: the bits of a plane, then that level's headers. Stream 0 is never dropped; streams 1..bits
 *           hold one plane each, most significant first
 *   unit    32 bytes: one plane of one run group. Units are 32-byte aligned in their stream, so no unit straddles pages
 *   tag     the last unit of stream 0: what was encoded, so that a foreign stash is refused
 *
 * docs/design/planes.md draws the layout. All functions may be called from any thread; none keeps a pointer, allocates
 * or prints. Sources and destinations are dense memory of `numel` elements, planes are the caller's.
 */
#ifndef DAF_PLANES_H
#define DAF_PLANES_H
#include <stddef.h>
#include <stdint.h>

#include "../daf/status.h"

/* cdef begin: cffi reads from here */
#define DAF_MAX_STREAMS 12
#define DAF_GROUP 256
#define DAF_UNIT_BYTES 32
#define DAF_MIN_PAGE_BYTES 512

typedef struct daf_planes {
    uint8_t *const *pages; /* stream s, page i: pages[first_page[s] + i] */
    uint32_t page_bytes;   /* a power of two, at least DAF_MIN_PAGE_BYTES */
    uint32_t num_streams;  /* live streams; decode uses exactly these */
    uint32_t first_page[12];
} daf_planes_t;

typedef enum daf_dtype {
    DAF_FLOAT32 = 0,
    DAF_BFLOAT16 = 1,
    DAF_FLOAT16 = 2,
    DAF_INT64 = 3,
    DAF_INT32 = 4,
    DAF_INT16 = 5,
    DAF_INT8 = 6,
    DAF_UINT8 = 7,
    DAF_BOOL = 8,
    DAF_BYTES8 = 9, /* opaque elements of 8 and 16 bytes: raw only */
    DAF_BYTES16 = 10
} daf_dtype;

typedef enum daf_shape { DAF_RUN = 0, DAF_COLUMN = 1 } daf_shape;

/* What is coded and where it lies. stream_bytes[s] = bits section + header section (+ tag in stream 0). */
typedef struct daf_coder {
    uint64_t numel;
    uint64_t cols;  /* elements of a row; 0 where rows do not matter */
    uint64_t rows;  /* rows of one map (dual); 0: all */
    uint32_t codec; /* index in the registry */
    uint32_t bits;  /* planes written */
    uint32_t shape; /* daf_shape */
    uint32_t dtype; /* daf_dtype */
    uint32_t num_streams;
    uint32_t head_bytes[12];  /* header bytes of one group, per stream: 0 or a power of two */
    uint64_t head_offset[12]; /* where a stream's header section begins */
    uint64_t stream_bytes[12];
    uint64_t num_groups;
} daf_coder_t;

/* Names of the codecs; NULL after the last. */
const char *daf_codec_at(uint32_t index);

/* Fills all of `coder` from its numel, cols, rows, bits, shape and dtype and the codec's name. */
daf_status_t daf_coder_init(daf_coder_t *coder, const char *codec);

/* Reads numel elements at `src`, writes every stream. The same source and seed give the same bytes on every
 * instruction set and number of threads. */
daf_status_t daf_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed);

/* Writes numel elements at `dst` from the live streams. */
daf_status_t daf_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes);

/* mse[k]: mean squared error with k planes, over at most max_groups evenly spaced groups. Room for bits + 1 numbers.
 * mean_square: of the same elements. */
daf_status_t daf_distortion(const daf_coder_t *coder, const void *src, uint32_t max_groups, double *mse,
                            double *mean_square);

/* The planes that codec `int` needs for these elements: 1..64. */
daf_status_t daf_choose_bits(uint32_t dtype, uint64_t numel, const void *src, uint32_t *bits);

/* Instruction set in force ("scalar", "avx2", ...), and a change of it: DAF_BAD_SPEC where this CPU has no such. */
const char *daf_isa(void);
const char *daf_isa_at(uint32_t index); /* those that this CPU has, best first; NULL after the last */
daf_status_t daf_set_isa(const char *name);
/* cdef end */
#endif
