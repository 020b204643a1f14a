// Tables of cosines and sines, and q, k, v from projection to their places.
//
// Keeps true: heads are independent of each other, so that how they are cut into pieces does not
// show; padding rows write nothing.
#include "kernels/rotary.h"

#include "kernels/head.h"
#include "kernels/scratch.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

constexpr int64_t kHeadsAtOnce = 32;
constexpr int64_t kTableRowsAtOnce = 16;

// Cosines and sines of the float32 angles, which are the model's, as good as exact for positions
// up to 2^20: a series in double around the nearest multiple of pi / 2. A plain loop, so that the
// compiler makes vectors of it.
void angles(int64_t position, const float* inv, int64_t count, float* __restrict cosines,
            float* __restrict sines) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number
  constexpr double kHigh = 0x1.921fb544p+0, kLow = 0x1.0b4611a626331p-34;  // pi / 2 in two parts
  constexpr double kSine[] = {-1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800};
  constexpr double kCosine[] = {-0.5,        1.0 / 24,       -1.0 / 720,
                                1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600};
  for (int64_t i = 0; i < count; ++i) {
    double angle = (float)position * inv[i];
    double turned = angle * 0.63661977236758134 + kRound, n = turned - kRound;
    double r = (angle - n * kHigh) - n * kLow, x = r * r;
    double s = kSine[4], c = kCosine[5];
    for (int k = 3; k >= 0; --k) s = s * x + kSine[k];
    for (int k = 4; k >= 0; --k) c = c * x + kCosine[k];
    double sine = r + r * (s * x), cosine = 1 + c * x;
    int64_t quarter;
    std::memcpy(&quarter, &turned, 8);
    double first = quarter & 1 ? sine : cosine, second = quarter & 1 ? cosine : sine;
    cosines[i] = (float)((quarter + 1) & 2 ? -first : first);
    sines[i] = (float)(quarter & 2 ? -second : second);
  }
}

// Where a row's key or value of a group lies in the pool.
template <typename X>
X* stored(Part part, const RopeWriteJob& job, int64_t row, int64_t group) {
  int64_t position = job.places.position[row];
  int64_t octet = job.shape.octet(job.places.blocks(row), position / kOctet, group);
  int64_t at = (int64_t)part * kOctet + position % kOctet;
  return (X*)job.pool + octet + at * job.shape.width;
}

template <typename X>
void rope_head(const RopeWriteJob& job, int64_t row, int64_t head, float* y) {
  const X* x = (const X*)job.qkv + row * job.qkv_stride + head * job.shape.width;
  int64_t group = head - job.heads;
  if (group >= 0 && job.places.slot[row] == job.padding) return;
  if (group >= job.shape.groups) {
    X* to = stored<X>(Part::values, job, row, group - job.shape.groups);
    std::memcpy(to, x, job.shape.width * sizeof(X));
    return;
  }
  rms_norm_head<X>(x, group < 0 ? job.q_norm : job.k_norm, job.shape.width, job.eps, y);
  rotate_head(y, job.rotary + row * 2 * job.half, job.half);
  X* out = group < 0 ? (X*)job.q + (row * job.heads + head) * job.shape.width
                     : stored<X>(Part::keys, job, row, group);
  store_head(y, job.shape.width, out);
}

template <typename X>
void run(const RopeWriteJob& job) {
  int64_t heads = job.heads + 2 * job.shape.groups;
  parallel_for(job.places.rows * heads, kHeadsAtOnce, [&](int64_t begin, int64_t end) {
    float* y = (float*)scratch(Use::rows, job.shape.width * sizeof(float));
    for (int64_t i = begin; i < end; ++i) rope_head<X>(job, i / heads, i % heads, y);
  });
}

}  // namespace

void rotary_table(const RotaryTableJob& job) {
  parallel_for(job.rows, kTableRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float *c = job.out + row * 2 * job.half, *s = c + job.half;
      angles(job.position[row], job.inv, job.half, c, s);
      if (job.round_bf16)
        for (int64_t i = 0; i < 2 * job.half; ++i) c[i] = rounded<bf16>(c[i]);
    }
  });
}

void rope_write(const RopeWriteJob& job) { job.act_bf16 ? run<bf16>(job) : run<float>(job); }

}  // namespace fs::FS_ISA
