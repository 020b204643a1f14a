// Rows times one or several matrices, in one parallel pass over blocks of their outputs.
#include "kernels/dense.h"
#include "kernels/product.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

inline int64_t blocks(const Matrix& m) { return (m.out + kBlock - 1) / kBlock; }

template <typename X>
struct Linear {
  const LinearJob& job;
  Inputs<X> x{};
  int64_t width = 0;  // outputs of all matrices

  // Block `piece` of the blocks of all matrices in turn.
  void block(int64_t piece) const {
    const Matrix* m = job.matrices;
    int64_t column = 0;
    for (; piece >= blocks(*m); ++m) {
      piece -= blocks(*m);
      column += m->out;
    }
    int64_t begin = piece * kBlock, end = begin + kBlock < m->out ? begin + kBlock : m->out;
    float* y = (float*)scratch(Use::sums, job.rows * kBlock * sizeof(float));
    const Matrix* then = m + 1 < job.matrices + job.count ? m + 1 : nullptr;
    product<X>(x.of(*m), *m, then, begin, end, y, kBlock);
    for (int64_t row = 0; row < job.rows; ++row) {
      int64_t at = row * width + column + begin;
      if (job.out_bf16) write(y + row * kBlock, end - begin, (bf16*)job.out + at);
      else write(y + row * kBlock, end - begin, (float*)job.out + at);
    }
  }

  void pack(Order order) {
    PackedRows<X>& rows = x.in_order[static_cast<int>(order)];
    if (rows.data != nullptr) return;
    rows = {nullptr, job.rows, job.in, order};
    rows.data = input_scratch<X>(rows);
    pack_rows<X, X>(rows, [&](int64_t i) { return (const X*)job.x + i * job.x_stride; });
  }

  void run() {
    int64_t pieces = 0, bytes = 0;
    for (int64_t i = 0; i < job.count; ++i) {
      const Matrix& m = job.matrices[i];
      width += m.out;
      pieces += blocks(m);
      bytes += m.out * m.row_bytes();
      pack(order_of<X>(m));
    }
    int64_t grain = pieces_at_once(pieces, bytes, job.rows);
    parallel_for(pieces, grain, [&](int64_t piece, int64_t end) {
      for (; piece < end; ++piece) block(piece);
    });
  }
};

}  // namespace

void linear(const LinearJob& job) {
  job.act_bf16 ? Linear<bf16>{job}.run() : Linear<float>{job}.run();
}

}  // namespace fs::FS_ISA
