/* The dispatch table of one instruction set, from the *_kernels.h. Included once per set. */
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* Calls `body` with g on each whole group; a last group cut short goes to the reference. */
#define EACH_GROUP(span, verb, body)                                                                                   \
    do {                                                                                                               \
        uint32_t whole = (uint32_t)((span)->numel / DAF_GROUP);                                                        \
        for (uint32_t g = 0; g < whole; g++) body;                                                                     \
        if ((span)->numel % DAF_GROUP) dafi_span_##verb##_group(span, whole);                                          \
    } while (0)

FN void minmax_encode(const dafi_span_t *span, bool is_stochastic) {
#define ENCODE(dtype) EACH_GROUP(span, encode, minmax_encode_group(span, g, dtype, is_stochastic))
    EACH_DTYPE(span->dtype, ENCODE)
#undef ENCODE
}

static void decode_minmax(const dafi_span_t *span) {
#define DECODE(dtype) EACH_GROUP(span, decode, minmax_decode_group(span, g, dtype, false))
    if (HAS_STREAMING && span->dtype == DAF_FLOAT32 && span->is_streaming)
        EACH_GROUP(span, decode, minmax_decode_group(span, g, DAF_FLOAT32, true));
    else
        EACH_DTYPE(span->dtype, DECODE)
#undef DECODE
}

FN void meansplit_encode(const dafi_span_t *span, bool has_support){
#define ENCODE(bits) EACH_GROUP(span, encode, meansplit_encode_group(span, g, has_support, bits))
    EACH_WIDTH(span->job.bits, ENCODE)
#undef ENCODE
}

FN void meansplit_decode(const dafi_span_t *span, bool has_support, uint32_t live) {
#define DECODE(dtype) meansplit_decode_groups(span, dtype, has_support, live, false)
    if (HAS_STREAMING && span->dtype == DAF_FLOAT32 && span->is_streaming)
        meansplit_decode_groups(span, DAF_FLOAT32, has_support, live, true);
    else
        EACH_DTYPE(span->dtype, DECODE)
#undef DECODE
}

static void encode_minmax(const dafi_span_t *span) {
    minmax_encode(span, false);
}
static void encode_minmax_sr(const dafi_span_t *span) {
    minmax_encode(span, true);
}
static void encode_meansplit(const dafi_span_t *span) {
    meansplit_encode(span, false);
}
static void encode_support(const dafi_span_t *span) {
    meansplit_encode(span, true);
}
static void decode_meansplit(const dafi_span_t *span) {
#define DECODE(live) meansplit_decode(span, false, live)
    EACH_WIDTH(span->job.live, DECODE)
#undef DECODE
}
static void decode_support(const dafi_span_t *span) {
#define DECODE(live) meansplit_decode(span, true, live)
    EACH_WIDTH(span->job.live, DECODE)
#undef DECODE
}

const dafi_isa_t JOIN(dafi_isa_, ISA_NAME) = {
    .name = ISA_STRING,
    .is_available = is_available,
    .encode = {encode_minmax, encode_minmax_sr, encode_meansplit, encode_support},
    .decode = {decode_minmax, decode_minmax, decode_meansplit, decode_support},
    .encode_tile = {tile_encode_minmax, tile_encode_minmax_sr, tile_encode_meansplit, tile_encode_support},
    .decode_tile = {tile_decode_minmax, tile_decode_minmax, tile_decode_meansplit, tile_decode_support},
    .encode_strip = {strip_encode_minmax, NULL, strip_encode_meansplit, strip_encode_support},
    .decode_strip = {strip_decode_minmax, strip_decode_minmax, strip_decode_meansplit, strip_decode_support},
    .count_strip = count_strip,
    .exact = &exact,
    .add_regular = add_regular,
    .widen = widen,
    .narrow = narrow,
    .attend = attend,
    .stream = HAS_STREAMING ? stream : NULL,
};
