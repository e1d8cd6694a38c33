/* Groups with NaN, infinities or values beyond DAFI_HUGE.
 *
 * Header number 0 of such a group is NaN. Plane 1 says which elements are not finite, plane 2 which of these are
 * infinite, plane 3 which of those are negative; finite elements decode to their mean, or to zero where one of them is
 * zero. Fewer planes say less, but an
 * element that was not finite never comes back finite: with no plane left the whole group is NaN. Other groups are not
 * touched by it.
 */
#include "codec.h"
#include "numbers.h"

bool dafi_is_escaped(const float *x, uint32_t num) {
    for (uint32_t j = 0; j < num; j++)
        if (!dafi_is_regular(x[j])) return true;
    return false;
}

void dafi_escape_encode(const float *x, uint32_t bits, dafi_group_t *out, uint16_t *mean) {
    float sum = 0.0f;
    uint32_t num_finite = 0;
    bool has_zero = false;
    for (uint32_t j = 0; j < out->num; j++) {
        if (dafi_is_regular(x[j])) {
            sum += x[j];
            num_finite++;
            has_zero |= x[j] == 0.0f;
            continue;
        }
        dafi_set_bit(out->plane[1], j);
        if (bits >= 2 && !isnan(x[j])) dafi_set_bit(out->plane[2], j);
        if (bits >= 3 && x[j] < 0.0f) dafi_set_bit(out->plane[3], j);
    }
    *mean = dafi_to_bf16(num_finite && !has_zero ? sum / (float)num_finite : 0.0f);
}

void dafi_escape_decode(const dafi_group_t *in, uint32_t live, uint16_t mean, float *x) {
    for (uint32_t j = 0; j < in->num; j++) {
        x[j] = live ? dafi_from_bf16(mean) : NAN;
        if (live && dafi_bit(in->plane[1], j)) {
            bool is_signed_infinity = live >= 3 && dafi_bit(in->plane[2], j);
            x[j] = is_signed_infinity ? (dafi_bit(in->plane[3], j) ? -INFINITY : INFINITY) : NAN;
        }
    }
}
