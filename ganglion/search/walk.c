// Trees of slots walked one by one, on a CPU: the same as tree.py does with tensors for all nodes at once.

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef int64_t Int;

// The library's allow for NaN, and are calls.
static inline float most_of(float a, float b) { return a > b ? a : b; }
static inline float least_of(float a, float b) { return a < b ? a : b; }

// e^x for x <= 0, within 2e-7 of itself: 2^k times a polynomial of what is left, |r| <= log(2) / 2, which compilers
// make vectors of.
static inline float exponential(float x) {
  x = most_of(x, -87.0f);
  const float k = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounded
  const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  const float p = 1 + r * (1 + r * (0.5f + r * (1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r / 720)))));
  const int32_t bits = ((int32_t)k + 127) << 23;
  float power;
  memcpy(&power, &bits, 4);
  return p * power;
}

// Tensors of a search, as tree.py has them: [B, N], [B, N, A] and [B, N * A + 1]; then what a rule adds at the root.
typedef struct {
  float *logits, *probs, *raw, *value, *visits;
  Int *came;
  float *reward, *discount;
  Int* child;
  float *counts, *q;
  const uint8_t* legal;                // [B, A]
  const float *shaken, *plan;          // [B, A] Gumbel numbers and the prior; [B, simulations]
} Search;

typedef struct {
  const float *logits, *probs, *counts, *q;
  float raw, value, visits;
} Node;

static Node node_at(const Search* s, Int N, Int A, Int b, Int n) {
  const Int edge = b * (N * A + 1) + n * A, row = b * N + n;
  return (Node){s->logits + row * A, s->probs + row * A, s->counts + edge, s->q + edge,
                s->raw[row], s->value[row], s->visits[row]};
}

// The action of the highest score, the first of equal ones.
static Int best(const float* score, const uint8_t* legal, Int A) {
  Int found = 0;
  float most = -INFINITY;
  for (Int a = 0; a < A; a++)
    if ((!legal || legal[a]) && score[a] > most) most = score[a], found = a;
  return found;
}

// puct.py, PuctRule.scores
static void puct_scores(Node n, Int A, float c_init, float c_base, float* score) {
  float low = n.value, high = n.value;
  for (Int a = 0; a < A; a++)
    if (n.counts[a] > 0) low = least_of(low, n.q[a]), high = most_of(high, n.q[a]);
  const float width = most_of(high - low, 1e-8f);
  const float c = sqrtf(n.visits) * (c_init + logf((n.visits + (c_base + 1)) / c_base));
  for (Int a = 0; a < A; a++) {
    const float q = n.counts[a] > 0 ? (n.q[a] - low) / width : 0.0f;
    score[a] = q + c * n.probs[a] / (n.counts[a] + 1);
  }
}

// gumbel.py, GumbelRule.completed
static void completed(Node n, Int A, float scale, float base, float* sigma) {
  float total = 0, most = 0, share = 0, mean = 0;
  for (Int a = 0; a < A; a++) {
    total += n.counts[a];
    most = most_of(most, n.counts[a]);
    if (n.counts[a] > 0) {
      const float p = most_of(n.probs[a], FLT_MIN);
      share += p;
      mean += p * n.q[a];
    }
  }
  const float mixed = (n.raw + total * (total > 0 ? mean / share : 0)) / (total + 1);
  float low = INFINITY, high = -INFINITY;
  for (Int a = 0; a < A; a++) {
    sigma[a] = n.counts[a] > 0 ? n.q[a] : mixed;
    low = least_of(low, sigma[a]);
    high = most_of(high, sigma[a]);
  }
  const float width = most_of(high - low, 1e-8f), all = (base + most) * scale;
  for (Int a = 0; a < A; a++) sigma[a] = all * ((sigma[a] - low) / width);
}

static void below(Node n, Int A, float scale, float base, float* score) {
  completed(n, A, scale, base, score);
  float high = -INFINITY, sum = 0, total = 0;
  for (Int a = 0; a < A; a++) {
    score[a] += n.logits[a];
    high = most_of(high, score[a]);
    total += n.counts[a];
  }
  for (Int a = 0; a < A; a++) score[a] = exponential(score[a] - high);
  for (Int a = 0; a < A; a++) sum += score[a];
  for (Int a = 0; a < A; a++) score[a] = score[a] / sum - n.counts[a] / (1 + total);
}

static void at_root(Node n, Int A, float scale, float base, const float* shaken, float visited, float* score) {
  completed(n, A, scale, base, score);
  for (Int a = 0; a < A; a++)
    score[a] = n.counts[a] == visited ? most_of(shaken[a] + score[a], -1e9f) : -INFINITY;
}

// From every root along the edges of the highest score to one that was never taken: the row of its node,
// b * N + n, and its action. one, two: c_init and c_base, or value_scale and visit_base.
void descend(const Search* s, Int B, Int N, Int A, Int gumbel, Int number, Int simulations, double one, double two,
             float* score, Int* row, Int* action) {
  for (Int b = 0; b < B; b++) {
    const uint8_t* legal = s->legal ? s->legal + b * A : 0;
    for (Int n = 0, a;; n = s->child[b * (N * A + 1) + n * A + a]) {
      const Node node = node_at(s, N, A, b, n);
      if (!gumbel)
        puct_scores(node, A, one, two, score);
      else if (n)
        below(node, A, one, two, score);
      else
        at_root(node, A, one, two, s->shaken + b * A, s->plan[b * simulations + number - 1], score);
      a = best(score, n ? 0 : legal, A);
      if (!s->child[b * (N * A + 1) + n * A + a]) {
        row[b] = b * N + n, action[b] = a;
        break;
      }
    }
  }
}

static void predicted(Int A, const float* logits, float* kept, float* probs) {
  float high = logits[0], sum = 0;
  for (Int a = 1; a < A; a++) high = most_of(high, logits[a]);
  for (Int a = 0; a < A; a++) kept[a] = logits[a], probs[a] = exponential(logits[a] - high);
  for (Int a = 0; a < A; a++) sum += probs[a];
  for (Int a = 0; a < A; a++) probs[a] = logits[a] - high < -87 ? 0 : probs[a] / sum;
}

// A new node in every slot, and its value taken back to the root.
void backup(const Search* s, Int B, Int N, Int A, Int number, const Int* above, const Int* action,
            const float* reward, const float* discount, const float* logits, const float* value) {
  for (Int b = 0; b < B; b++) {
    const Int row = b * N, edges = b * (N * A + 1), edge = (above[b] - row) * A + action[b];
    predicted(A, logits + b * A, s->logits + (row + number) * A, s->probs + (row + number) * A);
    s->raw[row + number] = value[b];
    s->child[edges + edge] = number;
    s->came[row + number] = edge;
    s->reward[row + number] = reward[b];
    s->discount[row + number] = discount[b];
    s->value[row + number] = value[b];
    s->visits[row + number] = 1;
    float worth = value[b];
    for (Int n = number; n;) {
      const Int from = s->came[row + n], up = from / A;
      s->counts[edges + from] = s->visits[row + n];
      s->q[edges + from] = s->reward[row + n] + s->discount[row + n] * s->value[row + n];
      worth = s->reward[row + n] + s->discount[row + n] * worth;
      s->visits[row + up] += 1;
      s->value[row + up] += (worth - s->value[row + up]) / s->visits[row + up];
      n = up;
    }
  }
}
