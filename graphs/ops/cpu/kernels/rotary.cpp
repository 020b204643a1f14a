// Tables of cosines and sines, and q, k, v from projection to their places.
//
// Keeps true: heads are independent of each other, so that how they are cut into pieces is not seen;
// padding rows write nothing.
#include "kernels/rotary.h"

#include "kernels/head.h"
#include "kernels/scratch.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

constexpr int64_t kHeadsAtOnce = 32;
constexpr int64_t kAnglesAtOnce = 1024;

// Where row's key or value of a group lies in a pool.
template <typename X>
X* stored(void* pool, const RopeWriteJob& job, int64_t row, int64_t group) {
  int64_t position = job.places.position[row], block = job.places.block;
  int64_t place = job.places.blocks(row)[position / block] * block + position % block;
  return (X*)pool + (place * job.groups + group) * job.width;
}

template <typename X>
void rope_head(const RopeWriteJob& job, int64_t row, int64_t head, float* y) {
  const X* x = (const X*)job.qkv + row * job.qkv_stride + head * job.width;
  int64_t group = head - job.heads;
  if (group >= 0 && job.places.slot[row] == job.padding) return;
  if (group >= job.groups) {
    std::memcpy(stored<X>(job.v, job, row, group - job.groups), x, job.width * sizeof(X));
    return;
  }
  rms_norm_head<X>(x, group < 0 ? job.q_norm : job.k_norm, job.width, job.eps, y);
  rotate_head(y, job.rotary + row * 2 * job.half, job.half);
  X* out = group < 0 ? (X*)job.q + (row * job.heads + head) * job.width
                     : stored<X>(job.k, job, row, group);
  store_head(y, job.width, out);
}

template <typename X>
void run(const RopeWriteJob& job) {
  int64_t heads = job.heads + 2 * job.groups;
  parallel_for(job.places.rows * heads, kHeadsAtOnce, [&](int64_t begin, int64_t end) {
    float* y = (float*)scratch(Use::rows, job.width * sizeof(float));
    for (int64_t i = begin; i < end; ++i) rope_head<X>(job, i / heads, i % heads, y);
  });
}

}  // namespace

void rotary_table(const RotaryTableJob& job) {
  parallel_for(job.rows * job.half, kAnglesAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t row = i / job.half, pair = i % job.half;
      // The float32 angle is the model's; its cosine is exact to rounding through double.
      double angle = (float)job.position[row] * job.inv[pair];
      float c = (float)std::cos(angle), s = (float)std::sin(angle);
      float* out = job.out + row * 2 * job.half + pair;
      out[0] = job.round_bf16 ? rounded<bf16>(c) : c;
      out[job.half] = job.round_bf16 ? rounded<bf16>(s) : s;
    }
  });
}

void rope_write(const RopeWriteJob& job) { job.act_bf16 ? run<bf16>(job) : run<float>(job); }

}  // namespace fs::FS_ISA
