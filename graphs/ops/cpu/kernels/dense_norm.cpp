// RMSNorm with a zero-centred weight: x * (mean(x^2) + eps)^(-1/2) * (1 + weight), row by row.
#include "kernels/dense.h"
#include "kernels/vec.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

constexpr int64_t kSerial = 1 << 16;  // elements that are not worth another thread

template <typename T, typename W, typename Out>
void norm_row(const T* x, const W* weight, int64_t width, float eps, Out* out) {
  int64_t whole = width / kLanes * kLanes, rest = width - whole;
  V squares = splat(0);
  for (int64_t i = 0; i < whole; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  if (rest) {
    V last = load_part(x + whole, rest);
    squares = fma(last, last, squares);
  }
  V scale = splat(1 / std::sqrt(sum(squares) / static_cast<float>(width) + eps));
  auto scaled = [&](V a, V w) { return mul(mul(a, scale), add(splat(1), w)); };
  for (int64_t i = 0; i < whole; i += kLanes)
    store(scaled(load(x + i), load(weight + i)), out + i);
  if (rest) {
    Out last[kLanes];
    store(scaled(load_part(x + whole, rest), load_part(weight + whole, rest)), last);
    std::memcpy(out + whole, last, rest * sizeof(Out));
  }
}

template <typename T, typename W, typename Out>
void run(const NormJob& job) {
  bool alone = job.rows * job.width <= kSerial;
  int64_t grain = alone ? job.rows : (kSerial / 4 + job.width) / job.width;
  parallel_for(job.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      norm_row((const T*)job.x + row * job.x_stride, (const W*)job.weight, job.width, job.eps,
               (Out*)job.out + row * job.width);
  });
}

template <typename T, typename W>
void by_out(const NormJob& job) {
  job.out_bf16 ? run<T, W, bf16>(job) : run<T, W, float>(job);
}
template <typename T>
void by_weight(const NormJob& job) {
  job.weight_bf16 ? by_out<T, bf16>(job) : by_out<T, float>(job);
}

}  // namespace

void rms_norm(const NormJob& job) { job.x_bf16 ? by_weight<bf16>(job) : by_weight<float>(job); }

}  // namespace fs::FS_ISA
