// Rows times one or several matrices, in one parallel pass over blocks of their outputs.
#include "kernels/dense.h"
#include "kernels/product.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

// A block of outputs of one matrix.
struct Cut {
  int64_t size;  // outputs a block
  int64_t blocks(const Matrix& m) const { return (m.out + size - 1) / size; }
};

template <typename X>
void run(const LinearJob& job) {
  PackedRows<X> x{nullptr, job.rows, job.in};
  x.data = (Packed<X>*)scratch(Use::rows, x.elements() * sizeof(Packed<X>));
  for (int64_t g = 0; g < x.groups(); ++g)
    pack_group<X, X>(x, g, [&](int64_t i) { return (const X*)job.x + i * job.x_stride; });
  int64_t width = 0, pieces = 0;
  Cut cut{kBlock};
  for (int64_t i = 0; i < job.count; ++i) {
    width += job.matrices[i].out;
    pieces += cut.blocks(job.matrices[i]);
  }
  parallel_for(pieces, 1, [&](int64_t piece, int64_t) {
    const Matrix* m = job.matrices;
    int64_t column = 0;
    for (; piece >= cut.blocks(*m); ++m) {
      piece -= cut.blocks(*m);
      column += m->out;
    }
    int64_t begin = piece * cut.size, end = begin + cut.size < m->out ? begin + cut.size : m->out;
    float* y = (float*)scratch(Use::sums, job.rows * kBlock * sizeof(float));
    product<X>(x, *m, begin, end, y, kBlock);
    for (int64_t row = 0; row < job.rows; ++row) {
      int64_t at = row * width + column + begin;
      if (job.out_bf16) write(y + row * kBlock, end - begin, (bf16*)job.out + at);
      else write(y + row * kBlock, end - begin, (float*)job.out + at);
    }
  });
}

}  // namespace

void linear(const LinearJob& job) { job.act_bf16 ? run<bf16>(job) : run<float>(job); }

}  // namespace fs::FS_ISA
