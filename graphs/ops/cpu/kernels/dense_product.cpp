// Products in every format: which loop a block of outputs takes.
#include "kernels/tiles.h"

namespace fs::FS_ISA {
namespace {

// Up to here decoding a weight in registers costs less than a buffer; plain weights need no decoding.
constexpr int64_t kFewRows = 4;

template <typename X, typename Rows>
void product_of(const PackedRows<X>& x, const Matrix& m, int64_t begin, int64_t end, float* y,
                int64_t ys) {
  constexpr int64_t few = Rows::kPlain || kRows < kFewRows ? kRows : kFewRows;
  if (x.rows <= few) {
    with_count<few>(x.rows, [&](auto count) {
      direct<X, decltype(count)::value, Rows>(x.group(0), m, begin, end, y, ys);
    });
    return;
  }
  auto* w = (Packed<X>*)scratch(Use::weight, kBlock * x.steps() * kStep<X> * sizeof(Packed<X>));
  fill<X, Rows>(m, begin, end, w);
  buffered<X>(x, m, begin, end, w, y, ys);
}

}  // namespace

template <typename X>
void product(const PackedRows<X>& x, const Matrix& m, int64_t begin, int64_t end, float* y,
             int64_t ys) {
  switch (m.format) {
    case Format::bf16: return product_of<X, PlainRows<X, bf16>>(x, m, begin, end, y, ys);
    case Format::f32: return product_of<X, PlainRows<X, float>>(x, m, begin, end, y, ys);
    case Format::fp8: return product_of<X, Fp8Rows<X>>(x, m, begin, end, y, ys);
    case Format::nvfp4: return product_of<X, Nvfp4Rows<X>>(x, m, begin, end, y, ys);
  }
}

template void product<bf16>(const PackedRows<bf16>&, const Matrix&, int64_t, int64_t, float*,
                            int64_t);
template void product<float>(const PackedRows<float>&, const Matrix&, int64_t, int64_t, float*,
                             int64_t);

}  // namespace fs::FS_ISA
