/* The dispatch table of one instruction set, from run_kernels.h and column_kernels.h. Included once per set. */
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* Calls `body` with g on each whole group; a last group cut short goes to the reference. */
#define EACH_GROUP(span, verb, body)                                                                                   \
    do {                                                                                                               \
        uint32_t whole = (uint32_t)((span)->numel / DAF_GROUP);                                                        \
        for (uint32_t g = 0; g < whole; g++) body;                                                                     \
        if ((span)->numel % DAF_GROUP) dafi_span_##verb##_group(span, whole);                                          \
    } while (0)

#define EACH_WIDTH(width, macro)                                                                                       \
    switch (width) {                                                                                                   \
    case 0:                                                                                                            \
        macro(0);                                                                                                      \
        break;                                                                                                         \
    case 1:                                                                                                            \
        macro(1);                                                                                                      \
        break;                                                                                                         \
    case 2:                                                                                                            \
        macro(2);                                                                                                      \
        break;                                                                                                         \
    case 3:                                                                                                            \
        macro(3);                                                                                                      \
        break;                                                                                                         \
    default:                                                                                                           \
        macro(4);                                                                                                      \
        break;                                                                                                         \
    }

FN void minmax_encode(const dafi_span_t *span, uint32_t dtype, bool is_stochastic) {
    EACH_GROUP(span, encode, minmax_encode_group(span, g, dtype, is_stochastic));
}

FN void minmax_decode(const dafi_span_t *span, uint32_t dtype) {
    if (HAS_STREAMING && dtype == DAF_FLOAT32 && span->is_streaming)
        EACH_GROUP(span, decode, minmax_decode_group(span, g, dtype, true));
    else
        EACH_GROUP(span, decode, minmax_decode_group(span, g, dtype, false));
}

FN void meansplit_encode(const dafi_span_t *span, uint32_t dtype, bool has_support){
#define ENCODE(bits) EACH_GROUP(span, encode, meansplit_encode_group(span, g, dtype, has_support, bits))
    EACH_WIDTH(span->job.bits, ENCODE)
#undef ENCODE
}

FN void meansplit_decode(const dafi_span_t *span, uint32_t dtype, bool has_support) {
#define DECODE(live) meansplit_decode_groups(span, dtype, has_support, live, false)
#define STREAM(live) meansplit_decode_groups(span, dtype, has_support, live, true)
    if (HAS_STREAMING && dtype == DAF_FLOAT32 && span->is_streaming && span->job.live <= STREAMS_TREES_TO)
        EACH_WIDTH(span->job.live, STREAM)
    else
        EACH_WIDTH(span->job.live, DECODE)
#undef DECODE
#undef STREAM
}

#define SPAN_FUNCTIONS(suffix, dtype)                                                                                  \
    static void encode_minmax_##suffix(const dafi_span_t *span) {                                                      \
        minmax_encode(span, dtype, false);                                                                             \
    }                                                                                                                  \
    static void encode_minmax_sr_##suffix(const dafi_span_t *span) {                                                   \
        minmax_encode(span, dtype, true);                                                                              \
    }                                                                                                                  \
    static void encode_meansplit_##suffix(const dafi_span_t *span) {                                                   \
        meansplit_encode(span, dtype, false);                                                                          \
    }                                                                                                                  \
    static void encode_support_##suffix(const dafi_span_t *span) {                                                     \
        meansplit_encode(span, dtype, true);                                                                           \
    }                                                                                                                  \
    static void decode_minmax_##suffix(const dafi_span_t *span) {                                                      \
        minmax_decode(span, dtype);                                                                                    \
    }                                                                                                                  \
    static void decode_meansplit_##suffix(const dafi_span_t *span) {                                                   \
        meansplit_decode(span, dtype, false);                                                                          \
    }                                                                                                                  \
    static void decode_support_##suffix(const dafi_span_t *span) {                                                     \
        meansplit_decode(span, dtype, true);                                                                           \
    }

SPAN_FUNCTIONS(f32, DAF_FLOAT32)
SPAN_FUNCTIONS(bf16, DAF_BFLOAT16)
SPAN_FUNCTIONS(f16, DAF_FLOAT16)

#define BY_DTYPE(name)                                                                                                 \
    { name##_f32, name##_bf16, name##_f16 }

const dafi_isa_t JOIN(dafi_isa_, ISA_NAME) = {
    .name = ISA_STRING,
    .is_available = is_available,
    .encode = {BY_DTYPE(encode_minmax), BY_DTYPE(encode_minmax_sr), BY_DTYPE(encode_meansplit),
               BY_DTYPE(encode_support)},
    .decode = {BY_DTYPE(decode_minmax), BY_DTYPE(decode_minmax), BY_DTYPE(decode_meansplit), BY_DTYPE(decode_support)},
    .encode_tile = {tile_encode_minmax, tile_encode_minmax_sr, tile_encode_meansplit, tile_encode_support},
    .decode_tile = {tile_decode_minmax, tile_decode_minmax, tile_decode_meansplit, tile_decode_support},
    .widen16 = widen16,
    .narrow16 = narrow16,
};
