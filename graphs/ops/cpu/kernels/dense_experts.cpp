// Feed-forward layers: every expert over the rows that chose it, and the weighted sum of choices.
//
// Two parallel passes over all experts at once: gate, up and activation, then down. A dense layer
// is one expert that every row chose. Keeps true: an expert's weights are read once for all of its
// rows.
#include "kernels/dense.h"
#include "kernels/product.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

// min(silu(gate), limit) * clamp(up, -limit, limit), of values already rounded.
inline V swiglu(V gate, V up, float limit) {
  V a = mul(gate, div(splat(1), add(splat(1), exp(sub(splat(0), gate)))));
  if (limit > 0) {
    a = min(splat(limit), a);  // a NaN comes second, so that it stays
    up = max(splat(-limit), min(splat(limit), up));
  }
  return mul(a, up);
}

template <typename X>
struct Layer {
  const ExpertsJob& job;
  int64_t width;  // of the intermediate activations
  Packed<X>*h, *act;

  explicit Layer(const ExpertsJob& j) : job(j), width(j.experts[0].gate.out) {
    PackedRows<X> in{nullptr, job.assignments, job.hidden}, mid{nullptr, job.assignments, width};
    h = (Packed<X>*)scratch(Use::rows, in.elements() * sizeof(Packed<X>));
    act = (Packed<X>*)scratch(Use::act, mid.elements() * sizeof(Packed<X>));
  }
  PackedRows<X> part(Packed<X>* data, const Expert& e, int64_t in) const {
    PackedRows<X> one{nullptr, 1, in};
    return {data + e.first * one.elements(), e.count, in};
  }
  PackedRows<X> input(const Expert& e) const { return part(h, e, job.hidden); }
  PackedRows<X> middle(const Expert& e) const { return part(act, e, width); }

  void pack(const Expert& e) const {
    PackedRows<X> x = input(e);
    for (int64_t g = 0; g < x.groups(); ++g)
      pack_group<X, X>(x, g, [&](int64_t i) {
        return (const X*)job.h + job.row[e.first + i] * job.h_stride;
      });
  }

  // Outputs [begin, end) of gate and up, and the activation where down will read it.
  void up(const Expert& e, int64_t begin, int64_t end) const {
    PackedRows<X> x = input(e), to = middle(e);
    float* gate_y = (float*)scratch(Use::sums, 2 * e.count * kBlock * sizeof(float));
    float* up_y = gate_y + e.count * kBlock;
    product<X>(x, e.gate, begin, end, gate_y, kBlock);
    product<X>(x, e.up, begin, end, up_y, kBlock);
    // The last block also clears what its last operand holds past the width.
    int64_t stop = end < width ? end : (end + kStep<X> - 1) / kStep<X> * kStep<X>;
    for (int64_t g = 0; g < to.groups(); ++g) {
      for (int64_t row = to.first(g); row < to.first(g + 1); ++row) {
        for (int64_t k = begin; k < stop; k += kLanes) {
          int64_t at = row * kBlock + k - begin, there = end - k < 0 ? 0 : end - k;
          bool all = there >= kLanes;
          V a = all ? load(gate_y + at) : load_part(gate_y + at, there);
          V b = all ? load(up_y + at) : load_part(up_y + at, there);
          V both = swiglu(rounded_to<X>(a), rounded_to<X>(b), job.limit);
          store_packed<X>(both, to.at(g, row - to.first(g), k));
        }
      }
    }
  }

  void down(const Expert& e, int64_t begin, int64_t end) const {
    float* y = (float*)scratch(Use::sums, e.count * kBlock * sizeof(float));
    product<X>(middle(e), e.down, begin, end, y, kBlock);
    for (int64_t row = 0; row < e.count; ++row)
      write(y + row * kBlock, end - begin, (X*)job.y + (e.first + row) * job.hidden + begin);
  }

  // Pieces of `pieces` to take at a time, when together they read all the experts' weights.
  int64_t at_once(int64_t pieces) const {
    const Expert& e = job.experts[0];
    int64_t bytes = e.gate.row_bytes() + e.up.row_bytes() + e.down.row_bytes() * job.hidden / width;
    return pieces_at_once(pieces, bytes * width * job.count, job.assignments / job.count);
  }

  // step(expert, begin, end) over all blocks of `outs` outputs of all experts, in parallel.
  template <typename Step>
  void each_block(int64_t outs, const Step& step) const {
    int64_t blocks = (outs + kBlock - 1) / kBlock, pieces = job.count * blocks;
    parallel_for(pieces, at_once(pieces), [&](int64_t piece, int64_t last) {
      for (; piece < last; ++piece) {
        int64_t begin = piece % blocks * kBlock, end = begin + kBlock;
        step(job.experts[piece / blocks], begin, end < outs ? end : outs);
      }
    });
  }

  void run() const {
    // Few rows are copied before another thread would hear of it.
    int64_t grain = job.assignments * job.hidden < 1 << 15 ? job.count : 1;
    parallel_for(job.count, grain, [&](int64_t e, int64_t end) {
      for (; e < end; ++e) pack(job.experts[e]);
    });
    each_block(width, [&](const Expert& e, int64_t b, int64_t end) { up(e, b, end); });
    each_block(job.hidden, [&](const Expert& e, int64_t b, int64_t end) { down(e, b, end); });
  }
};

template <typename X>
void mix_rows(const MixJob& job) {
  parallel_for(job.rows, 1 + (1 << 14) / (job.choices * job.hidden), [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      const int64_t* place = job.place + row * job.choices;
      const float* weights = job.weights + row * job.choices;
      X* out = (X*)job.out + row * job.hidden;
      for (int64_t i = 0; i < job.hidden; i += kLanes) {
        int64_t there = job.hidden - i;
        V total = splat(0);
        for (int64_t k = 0; k < job.choices; ++k) {
          if (place[k] < 0) continue;
          const X* y = (const X*)job.y + place[k] * job.hidden + i;
          V value = there >= kLanes ? load(y) : load_part(y, there);
          total = add(total, mul(splat(weights[k]), value));
        }
        store_some(total, there, out + i);
      }
    }
  });
}

}  // namespace

void experts(const ExpertsJob& job) {
  job.act_bf16 ? Layer<bf16>(job).run() : Layer<float>(job).run();
}
void mix(const MixJob& job) { job.act_bf16 ? mix_rows<bf16>(job) : mix_rows<float>(job); }

}  // namespace fs::FS_ISA
