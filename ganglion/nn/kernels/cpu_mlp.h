// Products of matrices that are small enough for a core's cache, in tiles that fit its registers; operands are first
// copied to where they are read in order, unless they lie so. The order of every sum is fixed by the shapes.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

using Many = int64_t;

#ifdef __AVX512F__
constexpr Many WIDTH = 16, HIGH = 8;
#else
constexpr Many WIDTH = 8, HIGH = 6;
#endif
constexpr Many WIDE = 2 * WIDTH, DEEP = 256;  // columns of a tile; how much of a sum is taken at a time
constexpr Many HALF = HIGH / 2;               // rows of a tile where no more are left
constexpr Many NEAR = 64;                     // rows of no more numbers are read where they are: a cache holds them
typedef float Vector __attribute__((vector_size(WIDTH * 4), aligned(4)));
typedef uint32_t Whole __attribute__((vector_size(WIDTH * 4)));

namespace {

template <class To, class From> To as(From value) {  // the same bits
  To found;
  static_assert(sizeof found == sizeof value);
  std::memcpy(&found, &value, sizeof value);
  return found;
}

template <class Sum> Sum load(const float* at) {
  Sum value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Numbers of one by turns with those of another, from the H-th on.
#ifdef __AVX512F__
#define BY_TURNS(a, b, H)                                                                                            \
  __builtin_shufflevector(a, b, H, H + 16, H + 1, H + 17, H + 2, H + 18, H + 3, H + 19, H + 4, H + 20, H + 5, H + 21, \
                          H + 6, H + 22, H + 7, H + 23)
#else
#define BY_TURNS(a, b, H) __builtin_shufflevector(a, b, H, H + 8, H + 1, H + 9, H + 2, H + 10, H + 3, H + 11)
#endif

// WIDTH x WIDTH numbers transposed: each pass takes the upper and the lower half by turns.
inline __attribute__((always_inline)) void transpose(const float* from, Many down, float* to, Many pitch) {
  Vector rows[WIDTH], next[WIDTH];
  for (Many i = 0; i < WIDTH; i++) rows[i] = load<Vector>(from + i * down);
#pragma GCC unroll 4
  for (Many pass = 1; pass < WIDTH; pass *= 2) {
#pragma GCC unroll 8
    for (Many i = 0; i < WIDTH / 2; i++) {
      next[2 * i] = BY_TURNS(rows[i], rows[i + WIDTH / 2], 0);
      next[2 * i + 1] = BY_TURNS(rows[i], rows[i + WIDTH / 2], (WIDTH / 2));
    }
#pragma GCC unroll 16
    for (Many i = 0; i < WIDTH; i++) rows[i] = next[i];
  }
  for (Many i = 0; i < WIDTH; i++) *(Vector*)(to + i * pitch) = rows[i];
}

// A matrix as it lies in memory: element (i, j) at i * down + j * along.
struct Matrix {
  const float* at;
  Many down, along;
  Matrix part(Many i, Many j) const { return {at + i * down + j * along, down, along}; }
};

// Where a thread copies what it multiplies.
struct Room {
  std::vector<float> left, right = std::vector<float>(WIDE * DEEP), tile = std::vector<float>(HIGH * WIDE);
  float* rows(Many count) {
    left.resize(std::max<size_t>(left.size(), (count + HIGH) * DEEP));
    return left.data();
  }
};
thread_local Room room;

template <Many ROWS> void copy_left(Matrix a, Many rows, Many deep, float* to) {  // [deep][ROWS], zeros beyond the rows
  if (rows == ROWS && a.down == 1) {
    for (Many k = 0; k < deep; k++) std::memcpy(to + k * ROWS, a.at + k * a.along, ROWS * sizeof(float));
    return;
  }
  for (Many i = 0; i < ROWS; i++)
    for (Many k = 0; k < deep; k++) to[k * ROWS + i] = i < rows ? a.at[i * a.down + k * a.along] : 0.0f;
}

void copy_right(Matrix b, Many deep, Many columns, float* to) {  // [deep][WIDE], zeros beyond the columns
  if (columns == WIDE && b.along == 1) {
    for (Many k = 0; k < deep; k++) std::memcpy(to + k * WIDE, b.at + k * b.down, WIDE * sizeof(float));
    return;
  }
  if (columns == WIDE && b.down == 1 && deep % WIDTH == 0) {
    for (Many k = 0; k < deep; k += WIDTH)
      for (Many j = 0; j < WIDE; j += WIDTH) transpose(b.at + j * b.along + k, b.along, to + k * WIDE + j, WIDE);
    return;
  }
  for (Many k = 0; k < deep; k++)
    for (Many j = 0; j < WIDE; j++) to[k * WIDE + j] = j < columns ? b.at[k * b.down + j * b.along] : 0.0f;
}

// Activations: what one gives, and the gradient of what went in, from that of what it gave. Both leave what is not a
// number.
struct Relu {
  template <class Sum> static Sum of(Sum x) { return x <= 0 ? Sum{} : x; }
  template <class Sum> static Sum back(Sum grad, Sum gave) { return gave <= 0 ? Sum{} : grad; }
};

// tanh |x| = h / (h + 1), h = (exp(2 |x|) - 1) / 2. |x| is the nearest multiple of ln(2) / 2, for which exp is a power
// of two, `scale`, and a rest r, for which h is `part`, a polynomial that has the least error there; together they give
// scale * part + (scale - 1) / 2. Within 2e-7, for small x within some last bits, and never beyond 1.
struct Tanh {
  template <class Sum> static Sum of(Sum x) {
    constexpr float MOST = 10, ROUNDS = 3 << 22;  // beyond it is 1; what is added to it loses what is behind the point
    using Bits = std::conditional_t<std::is_same_v<Sum, float>, uint32_t, Whole>;
    const Bits sign = as<Bits>(x) & 0x80000000u;
    Sum r = as<Sum>(as<Bits>(x) ^ sign);
    r = r > MOST ? Sum{} + MOST : r;
    const Sum rounded = r * 2.88539008f + ROUNDS;  // 2 / ln(2)
    r -= (rounded - ROUNDS) * 0.34657359f;         // ln(2) / 2
    const Sum scale = as<Sum>((as<Bits>(rounded) << 23) + 0x3f800000u);  // the sum's low digits as an exponent
    const Sum part = r + r * r * (0.99998337f + r * (0.66667092f + r * (0.33517277f + r * 0.13352104f)));
    const Sum h = scale * part + (scale * 0.5f - 0.5f);
    return as<Sum>(as<Bits>(h / (h + 1)) | sign);
  }
  template <class Sum> static Sum back(Sum grad, Sum gave) { return grad * (1 - gave * gave); }
};

// What is made of a sum before it is kept: `done(sum, row, column)`, of a vector or of one number.
struct Kept {
  template <class Sum> Sum operator()(Sum sum, Many, Many) const { return sum; }
};

struct Moved {  // sum + bias
  const float* bias;
  template <class Sum> Sum operator()(Sum sum, Many, Many j) const { return sum + load<Sum>(bias + j); }
};

template <class Kind> struct Activated {  // of sum + bias
  const float* bias;
  template <class Sum> Sum operator()(Sum sum, Many, Many j) const { return Kind::of(sum + load<Sum>(bias + j)); }
};

template <class Kind> struct Masked {  // the gradient of what went into an activation, from that of what it gave
  const float* gave;
  Many pitch;
  template <class Sum> Sum operator()(Sum sum, Many i, Many j) const {
    return Kind::back(sum, load<Sum>(gave + i * pitch + j));
  }
};

// One tile, ROWS x WIDE, of a product: part of a sum, added to what is there unless it is the first.
template <Many ROWS, bool IN_ROWS, class Done>
__attribute__((noinline)) void tile(Many deep, const float* a, Many down, Matrix b, float* c, Many pitch, bool first,
                                    bool last, Many row, Many column, Done done) {
  Vector sum[ROWS][2];
  for (Many i = 0; i < ROWS; i++)
    for (Many j = 0; j < 2; j++) __builtin_prefetch(c + i * pitch + j * WIDTH, 1);
  for (Many i = 0; i < ROWS; i++)
    for (Many j = 0; j < 2; j++) sum[i][j] = first ? Vector{} : load<Vector>(c + i * pitch + j * WIDTH);
  for (Many k = 0; k < deep; k++) {
    const Vector b0 = load<Vector>(b.at + k * b.down), b1 = load<Vector>(b.at + k * b.down + WIDTH);
#pragma GCC unroll 16
    for (Many i = 0; i < ROWS; i++) {
      const float x = IN_ROWS ? a[k + i * down] : a[k * ROWS + i];
      sum[i][0] += x * b0;
      sum[i][1] += x * b1;
    }
  }
  for (Many i = 0; i < ROWS; i++)
    for (Many j = 0; j < 2; j++)
      *(Vector*)(c + i * pitch + j * WIDTH) = last ? done(sum[i][j], row + i, column + j * WIDTH) : sum[i][j];
}

// Asks the caches for what is copied next, the part-th of so many parts of it.
void ask(Matrix b, Many deep, Many part, Many parts) {
  const bool in_rows = b.along == 1;
  const Many strips = in_rows ? deep : WIDE, length = in_rows ? WIDE : deep, pitch = in_rows ? b.down : b.along;
  for (Many s = strips * part / parts; s < strips * (part + 1) / parts; s++)
    for (Many l = 0; l < length; l += 16) __builtin_prefetch(b.at + s * pitch + l, 0, 2);
}

struct Unseen {
  void operator()(Matrix, Many, Many, Many, bool) const {}
};

// c[rows, columns] = a[rows, depth] b[depth, columns]. `seen` looks at parts of b while they are at hand: so many rows
// of WIDE numbers, from which column on, how many of these count, and whether they are the first rows.
template <class Done, class Seen = Unseen>
void product(Many rows, Many columns, Many depth, Matrix a, Matrix b, float* c, Many pitch, Done done, Seen seen = {}) {
  const bool in_rows = a.along == 1;  // read where they are, but for the last few
  const bool there = b.along == 1 && (rows <= HIGH || b.down <= NEAR);  // and these, but for the last few columns
  const Many tiles = (rows + HIGH - 1) / HIGH;
  float *copies = room.rows(in_rows ? HIGH : rows), *apart = room.tile.data();
  for (Many k = 0; k < depth; k += DEEP) {
    const Many deep = std::min(DEEP, depth - k);
    const bool first = k == 0, last = k + deep == depth;
    for (Many i = 0; i < rows; i += HIGH)
      if (!in_rows || rows - i < HIGH) {
        const auto copy = rows - i > HALF ? copy_left<HIGH> : copy_left<HALF>;
        copy(a.part(i, k), std::min(HIGH, rows - i), deep, copies + (in_rows ? 0 : i * DEEP));
      }
    for (Many j = 0; j < columns; j += WIDE) {
      const Many wide = std::min(WIDE, columns - j);
      const bool copied = !there || wide < WIDE;
      if (copied) copy_right(b.part(k, j), deep, wide, room.right.data());
      const Matrix right = copied ? Matrix{room.right.data(), WIDE, 1} : b.part(k, j);
      seen(right, deep, j, wide, first);
      for (Many i = 0; i < rows; i += HIGH) {
        const Many high = std::min(HIGH, rows - i);
        const float* left = copies + (in_rows ? 0 : i * DEEP);
        const auto compute = [&](float* to, Many down, bool fresh, bool over, auto finish) {
          if (in_rows && high == HIGH)
            tile<HIGH, true>(deep, a.part(i, k).at, a.down, right, to, down, fresh, over, i, j, finish);
          else
            tile<HIGH, false>(deep, left, 0, right, to, down, fresh, over, i, j, finish);
        };
        if (j + 2 * WIDE <= columns) ask(b.part(k, j + WIDE), deep, i / HIGH, tiles);
        float* into = c + i * pitch + j;
        if (high == HIGH && wide == WIDE) {
          compute(into, pitch, first, last, done);
          continue;
        }
        if (high > HALF)
          compute(apart, WIDE, true, false, Kept{});
        else
          tile<HALF, false>(deep, left, 0, right, apart, WIDE, true, false, i, j, Kept{});
        for (Many r = 0; r < high; r++)
          for (Many s = 0; s < wide; s++) {
            const float sum = apart[r * WIDE + s] + (first ? 0.0f : into[r * pitch + s]);
            into[r * pitch + s] = last ? done(sum, i + r, j + s) : sum;
          }
      }
    }
  }
}

}  // namespace
