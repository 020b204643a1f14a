// Feed-forward layers: every expert over the rows that chose it, and the weighted sum of choices.
//
// Passes over all experts at once: gate and up, activation, down. A dense layer is one expert that
// every row chose. Keeps true: an expert's weights are read once for all of its rows, and every
// matrix from its first row to its last, which is how memory is fast.
#include "kernels/dense.h"
#include "kernels/decode.h"
#include "kernels/product.h"
#include "kernels/rows.h"
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
  X *gate, *up;       // what they say, [assignments, width]

  explicit Layer(const ExpertsJob& j) : job(j), width(j.experts[0].gate.out) {
    const Expert& e = job.experts[0];
    for (Order order : {order_of<X>(e.gate), order_of<X>(e.up)}) {
      PackedRows<X>& rows = h.in_order[static_cast<int>(order)];
      rows = {nullptr, job.assignments, job.hidden, order};
      rows.data = input_scratch<X>(rows);
    }
    act = {nullptr, job.assignments, width, order_of<X>(e.down)};
    act.data = (Packed<X>*)scratch(Use::act, act.elements() * sizeof(Packed<X>));
    gate = (X*)scratch(Use::partial, 2 * job.assignments * width * sizeof(X));
    up = gate + job.assignments * width;
  }
  // The rows of one expert, in groups of their own.
  static PackedRows<X> part(const PackedRows<X>& all, const Expert& e) {
    return {all.data + all.steps * kStep<X> * e.first, e.count, all.in, all.order};
  }

  void pack(const Expert& e) const {
    for (const PackedRows<X>& all : h.in_order)
      if (all.data != nullptr)
        pack_rows<X, X>(part(all, e), [&](int64_t i) {
          return (const X*)job.h + job.row[e.first + i] * job.h_stride;
        });
  }

  void activate(const Expert& e) const {
    PackedRows<X> to = part(act, e);
    to.clear_end();
    for (int64_t g = 0; g < to.groups; ++g) {
      for (int64_t row = to.first(g); row < to.first(g + 1); ++row) {
        const X *a = gate + (e.first + row) * width, *b = up + (e.first + row) * width;
        each_step(width, [&](int64_t k, int64_t count) {
          V both = swiglu(load_some(a + k, count), load_some(b + k, count), job.limit);
          to.put(g, row - to.first(g), k, both);
        });
      }
    }
  }

  // One of the matrices of every expert, what it reads, and where [assignments, out] it writes.
  struct Product {
    Matrix Expert::*matrix;
    const PackedRows<X>& x;
    X* y;
  };

  void block(const Product& p, const Expert& e, const Matrix* then, int64_t begin,
             int64_t end) const {
    const Matrix& m = e.*p.matrix;
    float* sums = (float*)scratch(Use::sums, e.count * kBlock * sizeof(float));
    product<X>(part(p.x, e), m, then, begin, end, sums, kBlock);
    for (int64_t row = 0; row < e.count; ++row)
      write(sums + row * kBlock, end - begin, p.y + (e.first + row) * m.out + begin);
  }

  // The products with every expert, in parallel over blocks of outputs; all have as many outputs.
  template <int count>
  void products(const Product (&all)[count]) const {
    const Matrix& any = job.experts[0].*all[0].matrix;
    int64_t blocks = (any.out + kBlock - 1) / kBlock, matrices = job.count * count;
    int64_t bytes = matrices * any.out * any.row_bytes();
    int64_t grain = pieces_at_once(matrices * blocks, bytes, job.assignments / job.count);
    auto matrix = [&](int64_t i) {
      return i < matrices ? &(job.experts[i / count].*all[i % count].matrix) : nullptr;
    };
    parallel_for(matrices * blocks, grain, [&](int64_t piece, int64_t last) {
      for (; piece < last; ++piece) {
        int64_t i = piece / blocks, begin = piece % blocks * kBlock, end = begin + kBlock;
        if (end > any.out) end = any.out;
        block(all[i % count], job.experts[i / count], matrix(i + 1), begin, end);
      }
    });
  }

  // body(expert) for all of them; few rows are done before another thread would hear of it.
  template <typename Body>
  void each(int64_t elements, const Body& body) const {
    parallel_for(job.count, job.assignments * elements < 1 << 12 ? job.count : 1,
                 [&](int64_t e, int64_t end) {
                   for (; e < end; ++e) body(job.experts[e]);
                 });
  }

  void run() const {
    const Expert& any = job.experts[0];
    each(job.hidden, [&](const Expert& e) { pack(e); });
    products<2>({{&Expert::gate, h.of(any.gate), gate}, {&Expert::up, h.of(any.up), up}});
    each(width, [&](const Expert& e) { activate(e); });
    products<1>({{&Expert::down, act, (X*)job.y}});
  }
};

template <typename X>
void mix_rows(const MixJob& job) {
  parallel_for(job.rows, 1 + (1 << 14) / (job.choices * job.hidden), [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      const int64_t* place = job.place + row * job.choices;
      const float* weights = job.weights + row * job.choices;
      X* out = (X*)job.out + row * job.hidden;
      each_step(job.hidden, [&](int64_t i, int64_t count) {
        V total = splat(0);
        for (int64_t k = 0; k < job.choices; ++k) {
          if (place[k] < 0) continue;
          const X* y = (const X*)job.y + place[k] * job.hidden + i;
          total = add(total, mul(splat(weights[k]), load_some(y, count)));
        }
        store_some(total, out + i, count);
      });
    }
  });
}

}  // namespace

void experts(const ExpertsJob& job) {
  job.act_bf16 ? Layer<bf16>(job).run() : Layer<float>(job).run();
}
void mix(const MixJob& job) { job.act_bf16 ? mix_rows<bf16>(job) : mix_rows<float>(job); }

}  // namespace fs::FS_ISA
