// RMSNorm of every row, and which threads do it.
#include "kernels/dense.h"
#include "kernels/rows.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

constexpr int64_t kSerial = 1 << 16;  // elements that are not worth another thread

template <typename T, typename W, typename Out>
void run(const NormJob& job) {
  bool alone = job.rows * job.width <= kSerial;
  int64_t grain = alone ? job.rows : (kSerial / 4 + job.width) / job.width;
  parallel_for(job.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      rms_norm_row((const T*)job.x + row * job.x_stride, (const W*)job.weight, job.width, job.eps,
                   [&](V normed, int64_t i, int64_t count) {
                     store_some(normed, (Out*)job.out + row * job.width + i, count);
                   });
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
