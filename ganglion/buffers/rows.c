/* The inner loops of a replay. Everything here is also written in numpy, and gives the same numbers to the last bit:
 * doubles are added in the same order, nothing is contracted (-ffp-contract=off), no power is taken.
 * Positions are flat, time * slots + slot, and within the ring. */

#include <stdint.h>
#include <string.h>

#define FAN 8    /* masses under one sum: a line of memory */
#define AHEAD 12 /* how many rows early memory is asked for one */

static inline void copy_row(uint8_t *to, const uint8_t *from, int64_t width) {
    switch (width) { /* sizes known when compiled become a few moves */
    case 16: memcpy(to, from, 16); break;
    case 32: memcpy(to, from, 32); break;
    case 64: memcpy(to, from, 64); break;
    case 128: memcpy(to, from, 128); break;
    case 192: memcpy(to, from, 192); break;
    case 256: memcpy(to, from, 256); break;
    default: memcpy(to, from, width);
    }
}

static inline void ask(const uint8_t *at, int64_t width) {
    for (int64_t k = 0; k < width && k < 512; k += 64) __builtin_prefetch(at + k);
}

/* So many records, put together from leaves [count, ...] that each have a place in them: first byte, bytes; and from
 * flags among them (terminated, truncated, valid) what follows: the discount, 0 where terminated, 1 where alive, and
 * whether the episode ended. */
void store(uint8_t *record, int64_t width, int64_t count, const uint8_t *const *from, const int64_t *places,
           int64_t leaves, const int64_t *flags, double gamma) {
    const float discount = (float)gamma;
    for (int64_t s = 0; s < count; s++, record += width) {
        for (int64_t i = 0; i < leaves; i++) {
            int64_t size = places[2 * i + 1];
            memcpy(record + places[2 * i], from[i] + s * size, size);
        }
        float follows[] = {record[flags[0]] ? 0.0f : discount, record[flags[2]] ? 1.0f : 0.0f};
        memcpy(record + flags[3], follows, sizeof(float));
        memcpy(record + flags[4], follows + 1, sizeof(float));
        record[flags[5]] = record[flags[0]] | record[flags[1]];
    }
}

/* Positions drawn uniformly from the `count` that follow `first`. */
void draw(const double *uniform, int64_t n, int64_t count, int64_t first, int64_t size, int64_t *index) {
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (int64_t)(uniform[i] * (double)count) + first;
        index[i] = at < size ? at : at - size;
    }
}

/* The records at each index and at the rows - 1 that follow it in the same slot: out [rows, n, width]. */
void fetch(const uint8_t *records, int64_t width, int64_t size, int64_t slots, const int64_t *index, int64_t n,
           int64_t rows, uint8_t *out) {
    int64_t early = n < AHEAD ? n : AHEAD;
    for (int64_t i = 0; i < early; i++) ask(records + index[i] * width, width);
    for (int64_t r = 0, shift = 0; r < rows; r++, shift += slots) {
        if (shift >= size) shift -= size;
        for (int64_t i = 0; i < n; i++) {
            int64_t at = index[i] + shift, next = i + AHEAD;
            if (next < n) {
                int64_t to = index[next] + shift;
                ask(records + (to < size ? to : to - size) * width, width);
            }
            at = at < size ? at : at - size;
            copy_row(out + (r * n + i) * width, records + at * width, width);
        }
    }
}

/* Of fetched records [n rows and more, count, width]: the sums over n steps from the first row on, which end where an
 * episode does, the product of their discounts, and the record of the row that they are bootstrapped from. `places`:
 * where reward, discount and cut lie in a record. */
void fold(const uint8_t *rows, int64_t width, int64_t count, int64_t n, const int64_t *places, float *reward,
          float *discount, uint8_t *later) {
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *at = rows + i * width;
        float total = 0.0f, product = 1.0f, gain, rest;
        for (int64_t k = 0; k < n; k++, at += count * width) {
            memcpy(&gain, at + places[0], sizeof(float));
            memcpy(&rest, at + places[1], sizeof(float));
            total = k ? total + product * gain : gain;
            product = k ? product * rest : rest;
            if (at[places[2]]) {
                at += count * width;
                break;
            }
        }
        reward[i] = total;
        discount[i] = product;
        copy_row(later + i * width, at, width);
    }
}

/* Where the frames of each stack lie, the oldest first and then the frame that follows, counted slot after slot:
 * out [n, count + 1]. A stack reaches `back` rows back at most (one byte every `step`); its first frame is repeated. */
void frames(const int64_t *index, int64_t n, int64_t slots, int64_t length, const uint8_t *back, int64_t step,
            int64_t count, int64_t *out) {
    for (int64_t i = 0; i < n; i++, out += count + 1) {
        int64_t time = index[i] / slots, slot = index[i] - time * slots, first = slot * length;
        for (int64_t k = 0; k < count; k++) {
            int64_t ago = count - 1 - k < back[i * step] ? count - 1 - k : back[i * step];
            out[k] = first + (time >= ago ? time - ago : time - ago + length);
        }
        out[count] = first + (time + 1 < length ? time + 1 : 0);
    }
}

/* Counts a use of each row; returns how many updates ago they were stored, summed. */
int64_t use(int32_t *uses, const int64_t *born, int64_t slots, const int64_t *index, int64_t n, int64_t now) {
    int64_t ages = 0;
    for (int64_t i = 0; i < n; i++) {
        uses[index[i]]++;
        ages += now - born[(uint32_t)index[i] / (uint32_t)slots]; /* four times as fast as with 64 bits */
    }
    return ages;
}

/* ---------------------------------------------------------------- the sum tree: levels[0] are masses, each
 * level above holds the sums of FAN of the one below, added from the left */

static void sum_up(double **levels, int64_t height, const int64_t *index, int64_t n) {
    for (int64_t k = 1; k <= height; k++) {
        const double *low = levels[k - 1];
        int64_t last = -1;
        for (int64_t i = 0; i < n; i++) {
            int64_t at = index[i] >> (3 * k);
            if (at == last) continue;
            double sum = low[at * FAN];
            for (int64_t j = 1; j < FAN; j++) sum += low[at * FAN + j];
            levels[k][at] = sum;
            last = at;
        }
    }
}

/* Sets masses; of a position that is named twice, the last or (largest) the largest counts. */
void set(double **levels, int64_t height, const int64_t *index, const double *mass, int64_t n, int64_t largest) {
    double *leaf = levels[0];
    if (largest) {
        for (int64_t i = 0; i < n; i++) leaf[index[i]] = -1.0;
        for (int64_t i = 0; i < n; i++)
            if (!(mass[i] <= leaf[index[i]])) leaf[index[i]] = mass[i];
    } else {
        for (int64_t i = 0; i < n; i++) leaf[index[i]] = mass[i];
    }
    sum_up(levels, height, index, n);
}

/* Sets `count` positions from `first` on, going round: to `mass` where their flag (that of position 0, the next `step`
 * bytes on) is set, else to nothing. */
void fill(double **levels, int64_t height, int64_t size, int64_t first, int64_t count, const uint8_t *flags,
          int64_t step, double mass) {
    for (int64_t i = 0, at = first; i < count; i++, at = at + 1 < size ? at + 1 : 0)
        levels[0][at] = flags && flags[at * step] ? mass : 0.0;
    for (int64_t i = 0, at = first; i < count; i++, at = at + 1 < size ? at + 1 : 0) {
        if (i && at % FAN) continue; /* all of a line have the same sums above them */
        sum_up(levels, height, &at, 1);
    }
}

/* Positions in proportion to their mass, and their masses. `spread`: the i-th number is of the i-th of n equal parts.
 * `below` is room for top + 1 numbers, `left` for n. */
void find(double **levels, int64_t height, int64_t top, double *restrict below, const double *restrict uniform,
          int64_t n, int64_t spread, double *restrict left, int64_t *restrict index, double *restrict mass) {
    const double *high = levels[height];
    below[0] = 0.0;
    for (int64_t k = 0; k < top; k++) below[k + 1] = below[k] + high[k];
    double all = below[top] * (1 - 0x1p-52); /* less than all of it */
    for (int64_t i = 0; i < n; i++) {
        double share = spread ? (uniform[i] + (double)i) / (double)n : uniform[i], want = share * all;
        int64_t at = 0, span = top + 1;
        while (span > 1) { /* the last k with below[k] <= want */
            int64_t half = span / 2;
            at = below[at + half] <= want ? at + half : at;
            span -= half;
        }
        left[i] = want - below[at];
        index[i] = at;
        if (height) __builtin_prefetch(levels[height - 1] + at * FAN);
    }
    for (int64_t k = height; k-- > 0;) {
        const double *low = levels[k];
        for (int64_t i = 0; i < n; i++) {
            const double *part = low + index[i] * FAN;
            double sums[FAN + 1] = {0.0}, rest = left[i];
            for (int64_t j = 0; j < FAN; j++) sums[j + 1] = sums[j] + part[j];
            int64_t at = 0; /* the last sum is never passed, so that what is found has mass, whatever the rounding */
            for (int64_t j = 1; j < FAN; j++) at += (sums[j] <= rest) & (sums[j] < sums[FAN]);
            left[i] = rest - sums[at];
            index[i] = index[i] * FAN + at;
            if (k) __builtin_prefetch(levels[k - 1] + index[i] * FAN);
        }
    }
    for (int64_t i = 0; i < n; i++) mass[i] = levels[0][index[i]];
}

/* Each number over the least of them. */
void over_least(double *x, int64_t n) {
    double least = n ? x[0] : 1.0;
    for (int64_t i = 1; i < n; i++) least = x[i] < least ? x[i] : least;
    for (int64_t i = 0; i < n; i++) x[i] = x[i] / least;
}

/* Priorities as finite urgencies; what is not finite is as urgent as the most urgent so far, which is brought up to date. */
void urgency(const float *priority, int64_t n, double floor, double *largest, double *out) {
    double before = *largest, most = before;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)priority[i] + floor;
        x = x < __builtin_inf() ? x : before;
        most = x > most ? x : most;
        out[i] = x;
    }
    *largest = most;
}
