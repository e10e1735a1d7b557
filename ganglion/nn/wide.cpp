// Perceptrons of two layers on a CPU: many nets at once, forward and backward.
//
// Each thread computes whole nets, or its share of the rows of every net, without waiting for the others: what one
// layer leaves in the cache of a core the next one finds there. Products are of tiles that fit the registers; both
// operands are first copied to where they are read in order. The order of every sum is fixed by the shapes and the
// number of threads, so that equal calls give equal bits.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

using torch::stable::Tensor;
using Many = int64_t;

#ifdef __AVX512F__
constexpr Many WIDTH = 16, HIGH = 8;
#else
constexpr Many WIDTH = 8, HIGH = 6;
#endif
constexpr Many WIDE = 2 * WIDTH, DEEP = 256;  // columns of a tile; how much of a sum is taken at a time
typedef float Vector __attribute__((vector_size(WIDTH * 4), aligned(4)));

namespace {

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

void copy_left(Matrix a, Many rows, Many deep, float* to) {  // [deep][HIGH], zeros beyond the rows
  if (rows == HIGH && a.down == 1) {
    for (Many k = 0; k < deep; k++) std::memcpy(to + k * HIGH, a.at + k * a.along, HIGH * sizeof(float));
    return;
  }
  for (Many i = 0; i < HIGH; i++)
    for (Many k = 0; k < deep; k++) to[k * HIGH + i] = i < rows ? a.at[i * a.down + k * a.along] : 0.0f;
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

// What is made of a sum before it is kept: `done(sum, row, column)`, of a vector or of one number.
struct Kept {
  template <class Sum> Sum operator()(Sum sum, Many, Many) const { return sum; }
};

struct Activated {  // relu(sum + bias), which leaves what is not a number
  const float* bias;
  template <class Sum> Sum operator()(Sum sum, Many, Many j) const {
    sum += load<Sum>(bias + j);
    return sum <= 0 ? Sum{} : sum;
  }
};

struct Masked {  // the gradient of what went into an activation, from that of what it gave
  const float* gave;
  Many pitch;
  template <class Sum> Sum operator()(Sum sum, Many i, Many j) const {
    return load<Sum>(gave + i * pitch + j) <= 0 ? Sum{} : sum;
  }
};

// One tile, HIGH x WIDE, of a product: part of a sum, added to what is there unless it is the first.
template <bool IN_ROWS, class Done>
__attribute__((noinline)) void tile(Many deep, const float* a, Many down, const float* b, float* c, Many pitch,
                                    bool first, bool last, Many row, Many column, Done done) {
  Vector sum[HIGH][2];
  for (Many i = 0; i < HIGH; i++)
    for (Many j = 0; j < 2; j++) __builtin_prefetch(c + i * pitch + j * WIDTH, 1);
  for (Many i = 0; i < HIGH; i++)
    for (Many j = 0; j < 2; j++) sum[i][j] = first ? Vector{} : load<Vector>(c + i * pitch + j * WIDTH);
  for (Many k = 0; k < deep; k++) {
    const Vector b0 = load<Vector>(b + k * WIDE), b1 = load<Vector>(b + k * WIDE + WIDTH);
#pragma GCC unroll 16
    for (Many i = 0; i < HIGH; i++) {
      const float x = IN_ROWS ? a[k + i * down] : a[k * HIGH + i];
      sum[i][0] += x * b0;
      sum[i][1] += x * b1;
    }
  }
  for (Many i = 0; i < HIGH; i++)
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

// c[rows, columns] = a[rows, depth] b[depth, columns]
template <class Done>
void product(Many rows, Many columns, Many depth, Matrix a, Matrix b, float* c, Many pitch, Done done) {
  const bool in_rows = a.along == 1;  // read where they are, but for the last few
  const Many tiles = (rows + HIGH - 1) / HIGH;
  float *left = room.rows(in_rows ? HIGH : rows), *right = room.right.data(), *apart = room.tile.data();
  for (Many k = 0; k < depth; k += DEEP) {
    const Many deep = std::min(DEEP, depth - k);
    const bool first = k == 0, last = k + deep == depth;
    for (Many i = 0; i < rows; i += HIGH)
      if (!in_rows || rows - i < HIGH)
        copy_left(a.part(i, k), std::min(HIGH, rows - i), deep, left + (in_rows ? 0 : i * DEEP));
    for (Many j = 0; j < columns; j += WIDE) {
      const Many wide = std::min(WIDE, columns - j);
      copy_right(b.part(k, j), deep, wide, right);
      for (Many i = 0; i < rows; i += HIGH) {
        const Many high = std::min(HIGH, rows - i);
        const auto compute = [&](float* to, Many down, bool fresh, bool over, auto finish) {
          if (in_rows && high == HIGH)
            tile<true>(deep, a.part(i, k).at, a.down, right, to, down, fresh, over, i, j, finish);
          else
            tile<false>(deep, left + (in_rows ? 0 : i * DEEP), 0, right, to, down, fresh, over, i, j, finish);
        };
        if (j + 2 * WIDE <= columns) ask(b.part(k, j + WIDE), deep, i / HIGH, tiles);
        float* into = c + i * pitch + j;
        if (high == HIGH && wide == WIDE) {
          compute(into, pitch, first, last, done);
          continue;
        }
        compute(apart, WIDE, true, false, Kept{});
        for (Many r = 0; r < high; r++)
          for (Many s = 0; s < wide; s++) {
            const float sum = apart[r * WIDE + s] + (first ? 0.0f : into[r * pitch + s]);
            into[r * pitch + s] = last ? done(sum, i + r, j + s) : sum;
          }
      }
    }
  }
}

void layer(Many rows, Many columns, Many depth, const float* x, const float* w, const float* bias, float* out) {
  product(rows, columns, depth, {x, depth, 1}, {w, columns, 1}, out, columns, Activated{bias});
}

// What a thread does of something that can be shared out in units: [from, to).
struct Part {
  Many own, all;
  std::pair<Many, Many> of(Many total, Many unit) const {
    const Many units = (total + unit - 1) / unit;
    return {std::min(total, units * own / all * unit), std::min(total, units * (own + 1) / all * unit)};
  }
};

// Work for each thread, without waiting in between: whole nets where they come out even, else a part of each.
template <class Work>
void share(Many nets, Work work) {
#pragma omp parallel
  {
    const Many own = omp_get_thread_num(), all = omp_get_num_threads();
    if (nets % all == 0)
      for (Many n = nets / all * own; n < nets / all * (own + 1); n++) work(n, Part{0, 1});
    else
      for (Many n = 0; n < nets; n++) work(n, Part{own, all});
  }
}

// Straight from the allocator: asking torch's dispatcher costs more.
Tensor made(Many nets, Many rows, Many columns) {
  const Many sizes[] = {nets, rows, columns}, strides[] = {rows * columns, columns, 1};
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(3, sizes, strides, aoti_torch_dtype_float32(),
                                                  aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}
float* of(const Tensor& x) { return static_cast<float*>(x.mutable_data_ptr()); }
const float* in(const Tensor& x) { return static_cast<const float*>(x.const_data_ptr()); }

// x [G, N, D], w1 [C, D, H], b1 [C, 1, H], w2 [C, H, W], b2 [C, 1, W] -> what both layers give [C, N, H], [C, N, W].
std::tuple<Tensor, Tensor> forward(Tensor x, Tensor w1, Tensor b1, Tensor w2, Tensor b2) {
  const Many nets = w1.size(0), each = nets / x.size(0), rows = x.size(1);
  const Many D = x.size(2), H = w1.size(2), W = w2.size(2);
  Tensor h1 = made(nets, rows, H), h2 = made(nets, rows, W);
  const float *px = in(x), *pw1 = in(w1), *pb1 = in(b1), *pw2 = in(w2), *pb2 = in(b2);
  float *p1 = of(h1), *p2 = of(h2);
  share(nets, [&](Many n, Part part) {
    const auto [from, to] = part.of(rows, HIGH);
    float *one = p1 + (n * rows + from) * H, *two = p2 + (n * rows + from) * W;
    layer(to - from, H, D, px + (n / each * rows + from) * D, pw1 + n * D * H, pb1 + n * H, one);
    layer(to - from, W, H, one, pw2 + n * H * W, pb2 + n * W, two);
  });
  return {h1, h2};
}

void mask(const float* __restrict grad, const float* __restrict gave, float* __restrict to, Many n) {
  for (Many i = 0; i < n; i++) to[i] = gave[i] <= 0 ? 0.0f : grad[i];
}

// The gradients of what goes into both activations [C, N, H], [C, N, W], and of the rows' columns from `skip` on
// [C, N, D - skip].
std::tuple<Tensor, Tensor, Tensor> inward(Tensor grad, Tensor h1, Tensor h2, Tensor w1, Tensor w2, int64_t skip) {
  const Many nets = w1.size(0), rows = h1.size(1), D = w1.size(1), H = w1.size(2), W = w2.size(2), left = D - skip;
  Tensor g1 = made(nets, rows, H), g2 = made(nets, rows, W), gx = made(nets, rows, left);
  const float *pg = in(grad), *p1 = in(h1), *p2 = in(h2), *pw1 = in(w1), *pw2 = in(w2);
  float *o1 = of(g1), *o2 = of(g2), *ox = of(gx);
  share(nets, [&](Many n, Part part) {
    const auto [from, to] = part.of(rows, HIGH);
    const Many high = to - from, at1 = (n * rows + from) * H, at2 = (n * rows + from) * W;
    mask(pg + at2, p2 + at2, o2 + at2, high * W);
    product(high, H, W, {o2 + at2, W, 1}, {pw2 + n * H * W, 1, W}, o1 + at1, H, Masked{p1 + at1, H});
    if (left > 0) {
      float* into = ox + (n * rows + from) * left;
      product(high, left, H, {o1 + at1, H, 1}, {pw1 + (n * D + skip) * H, 1, H}, into, left, Kept{});
    }
  });
  return {g1, g2, gx};
}

// The gradients of a layer's weights and bias, some columns of them.
void weights(Many rows, Many D, Many H, const float* x, const float* g, float* w, float* b, Many from, Many to) {
  product(D, to - from, rows, {x, 1, D}, {g + from, H, 1}, w + from, H, Kept{});
  Many j = from;
  for (; j + WIDE <= to; j += WIDE) {
    Vector sum[2] = {};
    for (Many r = 0; r < rows; r++)
      for (Many v = 0; v < 2; v++) sum[v] += load<Vector>(g + r * H + j + v * WIDTH);
    std::memcpy(b + j, sum, sizeof sum);
  }
  for (; j < to; j++) {
    b[j] = 0;
    for (Many r = 0; r < rows; r++) b[j] += g[r * H + j];
  }
}

// The gradients of all parameters: w1, b1, w2, b2.
std::tuple<Tensor, Tensor, Tensor, Tensor> outward(Tensor x, Tensor h1, Tensor g1, Tensor g2) {
  const Many nets = h1.size(0), each = nets / x.size(0), rows = h1.size(1);
  const Many D = x.size(2), H = h1.size(2), W = g2.size(2);
  Tensor w1 = made(nets, D, H), b1 = made(nets, 1, H);
  Tensor w2 = made(nets, H, W), b2 = made(nets, 1, W);
  const float *px = in(x), *p1 = in(h1), *pg1 = in(g1), *pg2 = in(g2);
  float *o1 = of(w1), *ob1 = of(b1), *o2 = of(w2), *ob2 = of(b2);
  share(nets, [&](Many n, Part part) {
    const auto [from2, to2] = part.of(W, WIDE);
    weights(rows, H, W, p1 + n * rows * H, pg2 + n * rows * W, o2 + n * H * W, ob2 + n * W, from2, to2);
    const auto [from1, to1] = part.of(H, WIDE);
    weights(rows, D, H, px + n / each * rows * D, pg1 + n * rows * H, o1 + n * D * H, ob1 + n * H, from1, to1);
  });
  return {w1, b1, w2, b2};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ganglion, CPU, m) {
  m.impl("wide", TORCH_BOX(&forward));
  m.impl("wide_inward", TORCH_BOX(&inward));
  m.impl("wide_outward", TORCH_BOX(&outward));
}
