/* What the exact codecs ask of an instruction set: integers, flags and masks to words of their bits, and back.
 *
 *   block  up to 4096 consecutive integers; a code is an integer less the block's base
 *   slice  up to eight neighbouring planes of a block: bits shift .. shift + num_planes - 1 of each code, most
 *          significant first; element j is bit j % 64 of word j / 64
 *
 * Sources and destinations may have any alignment.
 */
#ifndef DAF_EXACT_H
#define DAF_EXACT_H
#include <stdbool.h>
#include <stdint.h>

#define DAFI_BLOCK 4096u
#define DAFI_SLICE_PLANES 8u

typedef struct dafi_slice {
    uint32_t shift, num_planes;
    uint64_t words[DAFI_SLICE_PLANES][DAFI_BLOCK / 64];
} dafi_slice_t;

typedef struct dafi_exact {
    void (*range)(uint32_t dtype, const void *src, uint32_t num, int64_t *low, int64_t *high);
    /* Bits beyond the block's elements are zero. */
    void (*take)(uint32_t dtype, const void *src, uint32_t num, uint64_t base, dafi_slice_t *slice);
    /* dst = base + the slice's bits for a block's first slice, dst + the slice's bits for the others. */
    void (*give)(uint32_t dtype, void *dst, uint32_t num, const uint64_t *base, const dafi_slice_t *slice);
    /* 64 bytes, zero or not, and one word. */
    uint64_t (*take_flags)(const uint8_t *flags);
    void (*give_flags)(uint64_t word, uint8_t *flags);
    /* 256 elements of 2 or 4 bytes: which are not zero; returns whether one is neither zero nor `value`. */
    bool (*take_mask)(const uint8_t *src, bool is_wide, uint32_t value, uint64_t words[4]);
} dafi_exact_t;

extern const dafi_exact_t dafi_exact_reference;
#endif
