// The router: sigmoid scores in float32, the experts with the largest biased ones, their weights.
#include "kernels/dense.h"
#include "kernels/product.h"
#include "kernels/rows.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

// Strictly before in the order of scores, in which a NaN comes first: it must reach the output.
inline bool outranks(float a, float b) { return !(a <= b) && b == b; }

// The `topk` largest of p + bias by falling score, the lower id first among equals.
void choose(const float* p, const float* bias, int64_t experts, int64_t topk, int64_t* ids,
            float* scores) {
  int64_t held = 0;
  for (int64_t e = 0; e < experts; ++e) {
    float score = p[e] + bias[e];
    if (held == topk && !outranks(score, scores[topk - 1])) continue;
    int64_t at = held < topk ? held++ : topk - 1;
    for (; at > 0 && outranks(score, scores[at - 1]); --at) {
      scores[at] = scores[at - 1];
      ids[at] = ids[at - 1];
    }
    scores[at] = score;
    ids[at] = e;
  }
}

void route_row(const RouteJob& job, int64_t row, float* p) {
  int64_t experts = job.router.out, topk = job.topk;
  int64_t* ids = job.ids + row * topk;
  float* weights = job.weights + row * topk;
  if (!job.valid[row]) {
    for (int64_t k = 0; k < topk; ++k) {
      ids[k] = -1;
      weights[k] = 0;
    }
    return;
  }
  each_step(experts, [&](int64_t e, int64_t count) {
    V x = load_some(p + e, count);
    store_some(div(splat(1), add(splat(1), exp(sub(splat(0), x)))), p + e, count);
  });
  choose(p, job.bias, experts, topk, ids, weights);
  float total = 0;
  for (int64_t k = 0; k < topk; ++k) total += p[ids[k]];
  for (int64_t k = 0; k < topk; ++k) weights[k] = p[ids[k]] / total * job.scale;
}

template <typename T>
void run(const RouteJob& job) {
  const Matrix& m = job.router;
  PackedRows<float> x{nullptr, job.rows, m.in, Order::plain};
  x.data = input_scratch<float>(x);
  float* p = (float*)scratch(Use::results, job.rows * m.out * sizeof(float));
  pack_rows<float, T>(x, [&](int64_t i) { return (const T*)job.h + i * job.h_stride; });
  int64_t blocks = (m.out + kBlock - 1) / kBlock;
  int64_t grain = pieces_at_once(blocks, m.out * m.row_bytes(), job.rows);
  parallel_for(blocks, grain, [&](int64_t block, int64_t last) {
    for (; block < last; ++block) {
      int64_t begin = block * kBlock, end = begin + kBlock < m.out ? begin + kBlock : m.out;
      float* y = (float*)scratch(Use::sums, job.rows * kBlock * sizeof(float));
      product<float>(x, m, nullptr, begin, end, y, kBlock);
      for (int64_t row = 0; row < job.rows; ++row)
        std::memcpy(p + row * m.out + begin, y + row * kBlock, (end - begin) * sizeof(float));
    }
  });
  parallel_for(job.rows, 16, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) route_row(job, row, p + row * m.out);
  });
}

}  // namespace

void route(const RouteJob& job) { job.act_bf16 ? run<bf16>(job) : run<float>(job); }

}  // namespace fs::FS_ISA
