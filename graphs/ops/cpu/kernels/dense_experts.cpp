// Feed-forward layers: every expert over the rows that chose it, and the weighted sum of choices.
//
// Two parallel passes over all experts at once: gate, up and activation, then down. A dense layer
// is one expert that every row chose. Keeps true: an expert's weights are read once for all of its
// rows.
#include "kernels/dense.h"
#include "kernels/decode.h"
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
  int64_t width;      // of the intermediate activations
  Inputs<X> h{};      // of all assignments, as gate and up read them
  PackedRows<X> act;  // what down reads

  explicit Layer(const ExpertsJob& j) : job(j), width(j.experts[0].gate.out) {
    const Expert& e = job.experts[0];
    for (Order order : {order_of<X>(e.gate), order_of<X>(e.up)}) {
      PackedRows<X>& rows = h.in_order[static_cast<int>(order)];
      rows = {nullptr, job.assignments, job.hidden, order};
      rows.data = input_scratch<X>(rows);
    }
    act = {nullptr, job.assignments, width, order_of<X>(e.down)};
    act.data = (Packed<X>*)scratch(Use::act, act.elements() * sizeof(Packed<X>));
  }
  // The rows of one expert, in groups of their own.
  static PackedRows<X> part(const PackedRows<X>& all, const Expert& e) {
    return {all.data + all.steps() * kStep<X> * e.first, e.count, all.in, all.order};
  }

  void pack(const Expert& e) const {
    for (const PackedRows<X>& all : h.in_order)
      if (all.data != nullptr)
        pack_rows<X, X>(part(all, e), [&](int64_t i) {
          return (const X*)job.h + job.row[e.first + i] * job.h_stride;
        });
    part(act, e).clear_end();
  }

  // Outputs [begin, end) of gate and up, and the activation where down will read it.
  void up(const Expert& e, int64_t begin, int64_t end) const {
    float* gate_y = (float*)scratch(Use::sums, 2 * e.count * kBlock * sizeof(float));
    float* up_y = gate_y + e.count * kBlock;
    product<X>(part(h.of(e.gate), e), e.gate, begin, end, gate_y, kBlock);
    product<X>(part(h.of(e.up), e), e.up, begin, end, up_y, kBlock);
    PackedRows<X> to = part(act, e);
    for (int64_t g = 0; g < to.groups(); ++g) {
      for (int64_t row = to.first(g); row < to.first(g + 1); ++row) {
        for (int64_t k = begin; k < end; k += kLanes) {
          int64_t at = row * kBlock + k - begin;
          bool all = end - k >= kLanes;
          V a = all ? load(gate_y + at) : load_part(gate_y + at, end - k);
          V b = all ? load(up_y + at) : load_part(up_y + at, end - k);
          V both = swiglu(rounded_to<X>(a), rounded_to<X>(b), job.limit);
          to.put(g, row - to.first(g), k, both);
        }
      }
    }
  }

  void down(const Expert& e, int64_t begin, int64_t end) const {
    float* y = (float*)scratch(Use::sums, e.count * kBlock * sizeof(float));
    product<X>(part(act, e), e.down, begin, end, y, kBlock);
    for (int64_t row = 0; row < e.count; ++row)
      write(y + row * kBlock, end - begin, (X*)job.y + (e.first + row) * job.hidden + begin);
  }

  // Pieces of `pieces` to take at a time, when together they read all the experts' weights.
  int64_t at_once(int64_t pieces) const {
    const Expert& e = job.experts[0];
    int64_t bytes = e.gate.row_bytes() + e.up.row_bytes() + e.down.row_bytes() * job.hidden / width;
    return pieces_at_once(pieces, bytes * width * job.count, job.assignments / job.count);
  }

  // Begins to bring in what the first tiles of m read: prefetching within a walk reaches no further
  // than its own matrix.
  static void soon(const Matrix& m) {
    int64_t bytes = m.out * m.row_bytes();
    if (bytes > kSoon) bytes = kSoon;
    for (int64_t i = 0; i < bytes; i += 64) prefetch(m.weight, i);
    if (m.format != Format::nvfp4) return;
    for (int64_t i = 0; i < bytes / 8; i += 64) prefetch(m.scale, i);
  }

  // step(expert, begin, end) over all blocks of `outs` outputs of all experts, in parallel.
  template <typename Soon, typename Step>
  void each_block(int64_t outs, const Soon& next, const Step& step) const {
    int64_t blocks = (outs + kBlock - 1) / kBlock, pieces = job.count * blocks;
    parallel_for(pieces, at_once(pieces), [&](int64_t piece, int64_t last) {
      for (; piece < last; ++piece) {
        int64_t begin = piece % blocks * kBlock, end = begin + kBlock;
        int64_t after = piece / blocks + 1;
        if (piece % blocks == blocks - 1 && after < job.count) next(job.experts[after]);
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
    each_block(width, [](const Expert& e) { soon(e.gate); soon(e.up); },
               [&](const Expert& e, int64_t b, int64_t end) { up(e, b, end); });
    each_block(job.hidden, [](const Expert& e) { soon(e.down); },
               [&](const Expert& e, int64_t b, int64_t end) { down(e, b, end); });
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
