// Products in every format: which loop a block of outputs takes.
#include "kernels/tiles.h"
#include "kernels/woven.h"

namespace fs::FS_ISA {
namespace {

// Packed rows that stay in the second cache, more of them when each round decodes again.
constexpr int64_t kPlainBytes = 384 << 10, kBufferedBytes = 640 << 10;
template <typename X>
inline int64_t groups_at_once(const PackedRows<X>& x, int64_t bytes) {
  return bytes / (kRows * x.steps * 64) + 1;
}

template <typename X, typename Rows>
void product_of(const PackedRows<X>& x, const Matrix& m, const Matrix* then, int64_t begin,
                int64_t end, float* y, int64_t ys) {
  bool buffered = x.groups > Rows::kFewGroups;
  int64_t whole = m.in / kStep<X>, rest = m.in % kStep<X>;
  int64_t at_once = groups_at_once(x, buffered ? kBufferedBytes : kPlainBytes);
  Walk walk(m, then);
  for (int64_t first = 0; first < x.groups; first += at_once) {
    int64_t last = first + at_once < x.groups ? first + at_once : x.groups;
    for (int64_t out = begin; out < end; out += kOuts) {
      Rows w(walk, out);
      float* to = y + out - begin;
      if (!buffered) {
        groups_tile<X>(x, first, last, w, whole, rest, m.factor, to, ys);
        continue;
      }
      auto* data = (Packed<X>*)scratch(Use::weight, kOuts * x.steps * 64);
      fill<X>(w, whole, rest, data);
      BufferRows<X> decoded{data};
      groups_tile<X>(x, first, last, decoded, x.steps, 0, m.factor, to, ys);
    }
  }
}

#if defined(__AVX512BF16__)
// Decoding for every group costs little more than a buffer would.
void woven_product(const PackedRows<bf16>& x, const Matrix& m, const Matrix* then, int64_t begin,
                   int64_t end, float* y, int64_t ys) {
  int64_t at_once = groups_at_once(x, kPlainBytes);
  Walk walk(m, then);
  // Several groups take turns with each tile of weights, one walks through all of them.
  int64_t outs = x.groups > 1 ? kKnotOuts : end - begin;
  for (int64_t first = 0; first < x.groups; first += at_once) {
    int64_t last = first + at_once < x.groups ? first + at_once : x.groups;
    for (int64_t out = begin; out < end; out += outs)
      for (int64_t g = first; g < last; ++g)
        with_count<kRows>(x.size(g), [&](auto count) {
          float* to = y + x.first(g) * ys + out - begin;
          constexpr int R = decltype(count)::value;
          knots_block<R>(x.group(g), walk, out, out + outs, to, ys);
        });
  }
}
#endif

}  // namespace

template <typename X>
void product(const PackedRows<X>& x, const Matrix& m, const Matrix* then, int64_t begin,
             int64_t end, float* y, int64_t ys) {
  switch (m.format) {
    case Format::bf16: return product_of<X, PlainRows<X, bf16>>(x, m, then, begin, end, y, ys);
    case Format::f32: return product_of<X, PlainRows<X, float>>(x, m, then, begin, end, y, ys);
    case Format::fp8: return product_of<X, Fp8Rows<X>>(x, m, then, begin, end, y, ys);
    case Format::nvfp4:
#if defined(__AVX512BF16__)
      if constexpr (sizeof(X) == 2) return woven_product(x, m, then, begin, end, y, ys);
#endif
      return product_of<X, Nvfp4Rows<X>>(x, m, then, begin, end, y, ys);
  }
}

template void product<bf16>(const PackedRows<bf16>&, const Matrix&, const Matrix*, int64_t, int64_t,
                            float*, int64_t);
template void product<float>(const PackedRows<float>&, const Matrix&, const Matrix*, int64_t,
                             int64_t, float*, int64_t);

}  // namespace fs::FS_ISA
