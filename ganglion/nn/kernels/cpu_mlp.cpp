// Perceptrons on a CPU: two wide layers and a narrow last one, or none, of many nets at once, forward and backward.
//
// Each thread computes whole nets, or its share of every net, as far as it can without waiting for the others: what one
// layer leaves in the cache of a core the next one finds there. What nobody asks for afterwards lies in memory that is
// used again and again, and so stays in the caches. The order of every sum is fixed by the shapes and the number of
// threads, so that equal calls give equal bits.

#include "cpu_mlp.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <omp.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

using torch::stable::Tensor;

namespace {

template <class Kind>
void layer(Kind, Many rows, Many columns, Many depth, const float* x, const float* w, const float* bias, float* out) {
  product(rows, columns, depth, {x, depth, 1}, {w, columns, 1}, out, columns, Activated<Kind>{bias});
}

float dot(const float* a, const float* b, Many n) {
  Vector sum[4] = {};
  Many i = 0;
  for (; i + 4 * WIDTH <= n; i += 4 * WIDTH)
    for (Many v = 0; v < 4; v++) sum[v] += load<Vector>(a + i + v * WIDTH) * load<Vector>(b + i + v * WIDTH);
  sum[0] += sum[1] + (sum[2] + sum[3]);
  float whole = 0;
  for (Many v = 0; v < WIDTH; v++) whole += sum[0][v];
  for (; i < n; i++) whole += a[i] * b[i];
  return whole;
}

// The last layer, w [O, W]: of few outputs each is a sum, for a tile would be mostly empty.
void ends(Many rows, Many O, Many W, const float* h, const float* w, const float* bias, float* out) {
  if (O > HIGH) return product(rows, O, W, {h, W, 1}, {w, 1, W}, out, O, Moved{bias});
  for (Many i = 0; i < rows; i++)
    for (Many o = 0; o < O; o++) out[i * O + o] = dot(h + i * W, w + o * W, W) + bias[o];
}

// Numbers one after the other, as vectors while they last: `sum(at, zero)` of the kind of its zero.
template <class Sum, class Done> void strip(Many count, Sum sum, float* to, Done done) {
  Many j = 0;
  for (; j + WIDTH <= count; j += WIDTH) *(Vector*)(to + j) = done(sum(j, Vector{}), 0, j);
  for (; j < count; j++) to[j] = done(sum(j, 0.0f), 0, j);
}

// What a thread does of something that can be shared out in units: [from, to).
struct Part {
  Many own, all;
  std::pair<Many, Many> of(Many total, Many unit) const {
    const Many units = (total + unit - 1) / unit;
    return {std::min(total, units * own / all * unit), std::min(total, units * (own + 1) / all * unit)};
  }
};

// Memory for what is computed on the way and not kept, of the thread that calls.
struct Scratch {
  std::unique_ptr<float[]> held;
  size_t size = 0;
  float* at(size_t wanted) {
    if (wanted > size) held.reset(new float[(size = wanted) + 16]);
    return held.get() + (64 - reinterpret_cast<uintptr_t>(held.get()) % 64) % 64 / sizeof(float);
  }
};
thread_local Scratch scratch;

struct Nothing {
  void operator()(Many, Part, float*) const {}
};

// Work for each thread: whole nets where they come out even, else a part of each. `first(net, part, room)`, then
// `second` of the same, which may read all that the first has written. A room of `size` numbers is a thread's, or where
// threads share nets a net's.
template <class First, class Second = Nothing>
void share(Many nets, Many size, First first, Second second = {}) {
  float* const rooms = scratch.at(std::max<Many>(nets, omp_get_max_threads()) * size);
#pragma omp parallel
  {
    const Many own = omp_get_thread_num(), all = omp_get_num_threads();
    if (nets % all == 0) {
      for (Many n = nets / all * own; n < nets / all * (own + 1); n++) {
        first(n, Part{0, 1}, rooms + own * size);
        second(n, Part{0, 1}, rooms + own * size);
      }
    } else {
      for (Many n = 0; n < nets; n++) first(n, Part{own, all}, rooms + n * size);
      if constexpr (!std::is_same_v<Second, Nothing>) {
#pragma omp barrier
        for (Many n = 0; n < nets; n++) second(n, Part{own, all}, rooms + n * size);
      }
    }
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

// Nets of weights w1 [C, D, H], w2 [C, H, W], w3 [C, O, W]. Without outputs (O = 0) there is no last layer, and what
// the second gives is what comes out.
struct Nets {
  const float *w1, *w2, *w3;
  Many count, D, H, W, O;
  bool tanh;

  Nets(const Tensor& one, const Tensor& two, const Tensor& three, bool tanh)
      : w1(in(one)), w2(in(two)), w3(in(three)), tanh(tanh) {
    const Many *first = one.sizes().data(), *last = three.sizes().data();
    count = first[0], D = first[1], H = first[2], O = last[1], W = last[2];
  }
  Many out() const { return O ? O : W; }

  // Work that is compiled for each kind of activation, so that its loops decide nothing.
  template <class Work> void active(Work work) const { tanh ? work(Tanh{}) : work(Relu{}); }

  // The gradients of what goes into both activations, from that of what came out.
  void back(Many n, Many rows, const float* grad, const float* h1, const float* h2, float* g1, float* g2) const {
    const float* w = w3 + n * O * W;
    active([&](auto kind) {
      using Mask = Masked<decltype(kind)>;
      if (O > HIGH)
        product(rows, W, O, {grad, O, 1}, {w, W, 1}, g2, W, Mask{h2, W});
      else if (O)
        for (Many i = 0; i < rows; i++) {
          const auto spread = [&](Many j, auto sum) {
            for (Many o = 0; o < O; o++) sum += grad[i * O + o] * load<decltype(sum)>(w + o * W + j);
            return sum;
          };
          strip(W, spread, g2 + i * W, Mask{h2 + i * W, 0});
        }
      else
        strip(rows * W, [&](Many j, auto zero) { return load<decltype(zero)>(grad + j); }, g2, Mask{h2, 0});
      product(rows, H, W, {g2, W, 1}, {w2 + n * H * W, 1, W}, g1, H, Mask{h1, H});
    });
  }
};

// Rows x [G, N, D] through nets with biases b1 [C, 1, H], b2 [C, 1, W], b3 [C, 1, O]: what comes out [C, N, O or W],
// and what both layers give [C, N, H] and [C, N, W], unless it is not to be kept.
void through(const Nets& net, const Tensor& x, const Tensor& b1, const Tensor& b2, const Tensor& b3, float* h1,
             float* h2, float* out) {
  const Many groups = x.size(0), rows = x.size(1), each = net.count / groups;
  const float *px = in(x), *p1 = in(b1), *p2 = in(b2), *p3 = in(b3);
  share(net.count, h1 ? 0 : rows * (net.H + net.W), [&](Many n, Part part, float* room) {
    const auto [from, to] = part.of(rows, HIGH);
    const Many high = to - from, at = n * rows + from;
    float* one = h1 ? h1 + at * net.H : room + from * net.H;
    float* two = !net.O ? out + at * net.W : h2 ? h2 + at * net.W : room + rows * net.H + from * net.W;
    const float *rows_ = px + (n / each * rows + from) * net.D, *w1 = net.w1 + n * net.D * net.H;
    net.active([&](auto kind) {
      layer(kind, high, net.H, net.D, rows_, w1, p1 + n * net.H, one);
      layer(kind, high, net.W, net.H, one, net.w2 + n * net.H * net.W, p2 + n * net.W, two);
    });
    if (net.O) ends(high, net.O, net.W, two, net.w3 + n * net.O * net.W, p3 + n * net.O, out + at * net.O);
  });
}

Tensor only(Tensor x, Tensor w1, Tensor b1, Tensor w2, Tensor b2, Tensor w3, Tensor b3, bool tanh) {
  const Nets net(w1, w2, w3, tanh);
  Tensor out = made(net.count, x.size(1), net.out());
  through(net, x, b1, b2, b3, nullptr, nullptr, of(out));
  return out;
}

// Without a last layer what comes out is the last of these, and the first is empty.
std::tuple<Tensor, Tensor, Tensor> forward(Tensor x, Tensor w1, Tensor b1, Tensor w2, Tensor b2, Tensor w3, Tensor b3,
                                           bool tanh) {
  const Nets net(w1, w2, w3, tanh);
  const Many rows = x.size(1);
  Tensor out = made(net.count, rows, net.O), h1 = made(net.count, rows, net.H), h2 = made(net.count, rows, net.W);
  through(net, x, b1, b2, b3, of(h1), of(h2), net.O ? of(out) : of(h2));
  return {out, h1, h2};
}

// The gradient of the rows' columns from `skip` on [C, N, D - skip].
Tensor inward(Tensor grad, Tensor h1, Tensor h2, Tensor w1, Tensor w2, Tensor w3, int64_t skip, bool tanh) {
  const Nets net(w1, w2, w3, tanh);
  const Many rows = h1.size(1), left = net.D - skip;
  Tensor gx = made(net.count, rows, left);
  const float *pg = in(grad), *p1 = in(h1), *p2 = in(h2);
  float* px = of(gx);
  share(net.count, rows * (net.H + net.W), [&](Many n, Part part, float* room) {
    const auto [from, to] = part.of(rows, HIGH);
    const Many high = to - from, at = n * rows + from;
    float *g1 = room + from * net.H, *g2 = room + rows * net.H + from * net.W;
    net.back(n, high, pg + at * net.out(), p1 + at * net.H, p2 + at * net.W, g1, g2);
    const Matrix w{net.w1 + (n * net.D + skip) * net.H, 1, net.H};
    product(high, left, net.H, {g1, net.H, 1}, w, px + at * left, left, Kept{});
  });
  return gx;
}

// The gradients of a layer's weights and bias, some columns of them.
void weights(Many rows, Many D, Many H, const float* x, const float* g, float* w, float* b, Many from, Many to) {
  const auto add = [=](Matrix part, Many deep, Many j, Many wide, bool first) {
    Vector sum[2] = {};
    for (Many r = 0; r < deep; r++)
      for (Many v = 0; v < 2; v++) sum[v] += load<Vector>(part.part(r, v * WIDTH).at);
    for (Many s = 0; s < wide; s++) b[from + j + s] = (first ? 0.0f : b[from + j + s]) + sum[s / WIDTH][s % WIDTH];
  };
  product(D, to - from, rows, {x, 1, D}, {g + from, H, 1}, w + from, H, Kept{}, add);
}

// The gradient of the last layer's weights [O, W], some columns of them.
void ends_weights(Many rows, Many O, Many W, const float* grad, const float* h, float* w, Many from, Many to) {
  if (O > HIGH) return product(O, to - from, rows, {grad, 1, O}, {h + from, W, 1}, w + from, W, Kept{});
  Many j = from;
  for (; j + WIDE <= to; j += WIDE) {
    Vector sum[HIGH][2] = {};
    for (Many i = 0; i < rows; i++)
      for (Many o = 0; o < O; o++)
        for (Many v = 0; v < 2; v++) sum[o][v] += grad[i * O + o] * load<Vector>(h + i * W + j + v * WIDTH);
    for (Many o = 0; o < O; o++) std::memcpy(w + o * W + j, sum[o], sizeof sum[o]);
  }
  for (; j < to; j++)
    for (Many o = 0; o < O; o++) {
      w[o * W + j] = 0;
      for (Many i = 0; i < rows; i++) w[o * W + j] += grad[i * O + o] * h[i * W + j];
    }
}

// The gradients of all parameters: w1, b1, w2, b2, w3, b3.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> outward(Tensor x, Tensor grad, Tensor h1, Tensor h2,
                                                                   Tensor w1, Tensor w2, Tensor w3, bool tanh) {
  const Nets net(w1, w2, w3, tanh);
  const Many nets = net.count, each = nets / x.size(0), rows = x.size(1), D = net.D, H = net.H, W = net.W, O = net.O;
  Tensor to1 = made(nets, D, H), bias1 = made(nets, 1, H), to2 = made(nets, H, W), bias2 = made(nets, 1, W);
  Tensor to3 = made(nets, O, W), bias3 = made(nets, 1, O);
  const float *px = in(x), *pg = in(grad), *p1 = in(h1), *p2 = in(h2);
  float *o1 = of(to1), *ob1 = of(bias1), *o2 = of(to2), *ob2 = of(bias2), *o3 = of(to3), *ob3 = of(bias3);
  const auto back = [&](Many n, Part part, float* room) {
    const auto [from, to] = part.of(rows, HIGH);
    const Many at = n * rows + from;
    float *g1 = room + from * H, *g2 = room + rows * H + from * W;
    net.back(n, to - from, pg + at * net.out(), p1 + at * H, p2 + at * W, g1, g2);
  };
  const auto onto = [&](Many n, Part part, float* room) {
    const float *g1 = room, *g2 = room + rows * H, *g3 = pg + n * rows * O;
    const auto [from1, to1] = part.of(H, WIDE);
    weights(rows, D, H, px + n / each * rows * D, g1, o1 + n * D * H, ob1 + n * H, from1, to1);
    const auto [from2, to2] = part.of(W, WIDE);
    weights(rows, H, W, p1 + n * rows * H, g2, o2 + n * H * W, ob2 + n * W, from2, to2);
    ends_weights(rows, O, W, g3, p2 + n * rows * W, o3 + n * O * W, from2, to2);
    for (Many o = 0; o < O && part.own == 0; o++) {
      ob3[n * O + o] = 0;
      for (Many i = 0; i < rows; i++) ob3[n * O + o] += g3[i * O + o];
    }
  };
  share(nets, rows * (H + W), back, onto);
  return {to1, bias1, to2, bias2, to3, bias3};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ganglion, CPU, m) {
  m.impl("cpu_mlp_only", TORCH_BOX(&only));
  m.impl("cpu_mlp", TORCH_BOX(&forward));
  m.impl("cpu_mlp_grad_inputs", TORCH_BOX(&inward));
  m.impl("cpu_mlp_grad_weights", TORCH_BOX(&outward));
}
