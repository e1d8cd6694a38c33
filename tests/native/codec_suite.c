/* Codecs on cases drawn at random: every instruction set must give the reference's bytes, every number of planes must
 * decode, and sanitizers must find nothing. Usage: codec_suite CASES SEED
 */
#define _POSIX_C_SOURCE 200112L
#include <stdbool.h>
#include <stdio.h>
#include "heap_planes.h"

static const struct codec {
    const char *name;
    uint32_t min_bits, max_bits;
} codecs[] = {{"raw", 0, 0},       {"int", 1, 64},      {"bool", 1, 1},    {"mask", 1, 1}, {"minmax", 1, 8},
              {"minmax-sr", 1, 8}, {"meansplit", 1, 4}, {"support", 0, 4}, {"dual", 1, 4}, {"logprob", 2, 8}};

#define BIG_ELEMENTS 1100000u

static uint64_t state;

static uint32_t below(uint32_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % limit;
}

typedef struct test_case {
    const char *codec;
    daf_coder_t coder;
    uint32_t page_bytes, kind;
    size_t src_bytes, skew; /* skew: the source's distance from an aligned address */
} test_case_t;

static size_t itemsize(uint32_t dtype) {
    static const uint8_t sizes[] = {4, 2, 2, 8, 4, 2, 1, 1, 1, 8, 16};
    return sizes[dtype];
}

static bool draw(test_case_t *test) {
    const struct codec *codec = &codecs[below(sizeof codecs / sizeof *codecs)];
    bool is_big = below(600) == 0; /* stored past the caches */
    uint64_t cols = 1 + below(below(2) ? 20 : 200), rows = below(below(3) ? 40 : 700), maps = 1 + below(3);
    if (is_big) rows = BIG_ELEMENTS / cols, maps = 1;
    *test =
        (test_case_t){.codec = codec->name, .page_bytes = below(2) ? 512 : 4096, .kind = below(6), .skew = below(4)};
    test->coder = (daf_coder_t){
        .numel = is_big ? rows * cols : rows * cols * maps % 40000 / (rows * cols ? rows * cols : 1) * rows * cols,
        .cols = cols,
        .rows = rows,
        .bits = codec->min_bits + below(codec->max_bits - codec->min_bits + 1),
        .shape = below(2),
        .dtype = below(3) ? below(3) : below(11),
    };
    test->src_bytes = test->coder.numel * itemsize(test->coder.dtype);
    return daf_coder_init(&test->coder, codec->name) == DAF_OK;
}

static float value_of(uint32_t kind) {
    static const float wild[] = {0.0f, -0.0f, 1e-45f, -1e-39f, 3e38f, 1e36f, -1e30f, 65504.0f};
    float x = ((float)below(20001) - 10000.0f) / 3000.0f;
    if (kind == 1) return x > 0.0f ? x : 0.0f;
    if (kind == 2) return below(3) ? -7.5f : 0.0f;
    if (kind == 3) return x * 1e-38f;
    if (kind == 4 && below(100) == 0) return wild[below(8)];
    return x;
}

static void fill(const test_case_t *test, uint8_t *src) {
    if (test->coder.dtype > DAF_FLOAT16 || test->kind == 5) {
        uint32_t limit =
            1 + below(256); /* of each byte: NaN and infinities among the floats, narrow and wide integers */
        for (size_t i = 0; i < test->src_bytes; i++) src[i] = (uint8_t)below(limit);
        return;
    }
    for (uint64_t i = 0; i < test->coder.numel; i++) {
        float x = value_of(test->kind);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t half = (uint16_t)(test->coder.dtype == DAF_BFLOAT16 ? bits >> 16 : bits & 0xbbff);
        if (test->coder.dtype == DAF_FLOAT32)
            memcpy(src + 4 * i, &bits, 4);
        else
            memcpy(src + 2 * i, &half, 2);
    }
}

/* All that a codec makes of a source: its streams, and what comes back from every number of them. */
typedef struct result {
    daf_status_t status;
    uint8_t *bytes;
    size_t size, room;
} result_t;

static void append(void *context, const uint8_t *bytes, size_t size) {
    result_t *result = context;
    if (result->size + size > result->room) {
        result->room = 2 * (result->size + size);
        result->bytes = realloc(result->bytes, result->room);
    }
    memcpy(result->bytes + result->size, bytes, size);
    result->size += size;
}

static result_t run(const test_case_t *test, const uint8_t *src, const char *isa) {
    result_t result = {0};
    double mse[DAF_MAX_STREAMS], mean_square;
    daf_set_isa(isa);
    daf_planes_t planes = make_planes(&test->coder, test->page_bytes);
    result.status = daf_encode(&test->coder, src, &planes, test->page_bytes + test->kind);
    for (uint32_t s = 0; result.status == DAF_OK && s < planes.num_streams; s++)
        each_part(&test->coder, &planes, s, append, &result);
    void *back = NULL;
    if (posix_memalign(&back, 64, test->src_bytes + test->skew) != 0) exit(2);
    uint8_t *at = (uint8_t *)back + test->skew;
    for (; result.status == DAF_OK && planes.num_streams >= 1; planes.num_streams--) {
        result.status = daf_decode(&test->coder, at, &planes);
        append(&result, at, test->src_bytes);
    }
    if (result.status == DAF_OK) result.status = daf_distortion(&test->coder, src, 20, mse, &mean_square);
    free(back);
    free_planes(&planes);
    return result;
}

/* Whether all instruction sets agree with the reference. */
static bool agree(const test_case_t *test) {
    bool is_right = true;
    uint8_t *memory = malloc(test->src_bytes + test->skew), *src = memory + test->skew;
    fill(test, src);
    result_t expected = run(test, src, "scalar");
    for (uint32_t i = 0; daf_isa_at(i); i++) {
        result_t found = run(test, src, daf_isa_at(i));
        is_right = is_right && found.status == expected.status && found.size == expected.size &&
                   (!found.size || memcmp(found.bytes, expected.bytes, found.size) == 0);
        free(found.bytes);
    }
    free(expected.bytes);
    free(memory);
    return is_right;
}

int main(int argc, char **argv) {
    uint32_t num_cases = argc > 1 ? (uint32_t)atoi(argv[1]) : 1000, num_failures = 0;
    state = argc > 2 ? (uint64_t)atoi(argv[2]) : 1;
    for (uint32_t done = 0; done < num_cases;) {
        test_case_t test;
        if (!draw(&test)) continue;
        done++;
        if (agree(&test)) continue;
        const daf_coder_t *c = &test.coder;
        num_failures++;
        printf("%s bits %u shape %u dtype %u numel %llu cols %llu rows %llu page %u kind %u\n", test.codec, c->bits,
               c->shape, c->dtype, (unsigned long long)c->numel, (unsigned long long)c->cols,
               (unsigned long long)c->rows, test.page_bytes, test.kind);
    }
    printf("%u codec cases, %u failures\n", num_cases, num_failures);
    return num_failures != 0;
}
