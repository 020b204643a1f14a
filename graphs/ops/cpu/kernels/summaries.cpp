// Raw indexer rows into the ring, and the summaries of the regions they complete (architecture 4).
//
// Keeps true: every summary is made before any ring row is overwritten; a summary is a function of
// its region's rows, wherever they come from; padding rows write nothing.
#include "kernels/e4m3.h"
#include "kernels/head.h"
#include "kernels/indexer.h"
#include "kernels/scratch.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

constexpr int64_t kRowsAtOnce = 16;
constexpr int64_t kLongest = 16;  // tokens a region at most

// (x - mean) * rsqrt(var + eps) * weight + bias, rotated, rounded to bf16 after either.
void key_row(const SummariesJob& job, int64_t row, const float* weight, const float* bias,
             float* y, bf16* out) {
  const bf16* x = job.kz + row * job.kz_stride;
  V total = splat(0), squares = splat(0);
  each_step(job.width, [&](int64_t i, int64_t count) {
    total = add(total, load_some(x + i, count));
  });
  V mean = splat(sum(total) / job.width);
  each_step(job.width, [&](int64_t i, int64_t count) {
    float centred[kLanes];
    store(sub(load_some(x + i, count), mean), centred);
    store_some(load(centred), y + i, count);
    V part = load_part(centred, count);
    squares = fma(part, part, squares);
  });
  V scale = splat(1 / std::sqrt(sum(squares) / job.width + job.eps));
  each_step(job.width, [&](int64_t i, int64_t count) {
    bf16 rounded[kLanes];
    V scaled = mul(mul(load_some(y + i, count), scale), load_some(weight + i, count));
    store(add(scaled, load_some(bias + i, count)), rounded);
    store_some(load(rounded), y + i, count);
  });
  rotate_head(y, job.rotary + row * 2 * job.half, job.half);
  store_head(y, job.width, out);
}

// The rows of a region, oldest first: of this call where it has them, else of the ring.
struct RegionRows {
  const bf16 *k[kLongest], *z[kLongest];

  RegionRows(const SummariesJob& job, int64_t row, const bf16* keys) {
    const int64_t *slot = job.places.slot, *position = job.places.position;
    for (int64_t token = 0; token < job.region; ++token) {
      int64_t back = job.region - 1 - token, source = row - back;
      int64_t wanted = position[row] - back;
      if (source >= 0 && slot[source] == slot[row] && position[source] == wanted) {
        k[token] = keys + source * job.width;
        z[token] = job.kz + source * job.kz_stride + job.width;
      } else {
        int64_t place = (slot[row] * job.ring + wanted % job.ring) * job.width;
        k[token] = job.ring_k + place;
        z[token] = job.ring_z + place;
      }
    }
  }
};

// Weighted mean of each dim, token by token; bf16, then e4m3.
void summarise(const RegionRows& rows, int64_t region, int64_t width, uint8_t* out) {
  each_step(width, [&](int64_t i, int64_t count) {
    V most = load_some(rows.z[0] + i, count);
    for (int64_t t = 1; t < region; ++t) most = max(most, load_some(rows.z[t] + i, count));
    V total = splat(0), norm = splat(0);
    for (int64_t t = 0; t < region; ++t) {
      V weight = exp(sub(load_some(rows.z[t] + i, count), most));
      total = add(total, mul(weight, load_some(rows.k[t] + i, count)));
      norm = add(norm, weight);
    }
    bf16 mean[kLanes];
    store(div(total, norm), mean);
    for (int64_t lane = 0; lane < count; ++lane) out[i + lane] = to_e4m3(widen(mean[lane]));
  });
}

void close_region(const SummariesJob& job, int64_t row, const bf16* keys) {
  const Places& at = job.places;
  int64_t position = at.position[row];
  if (at.slot[row] == job.padding || position % job.region != job.region - 1) return;
  int64_t block = at.blocks(row)[position / at.block];
  int64_t place = block * (at.block / job.region) + position % at.block / job.region;
  summarise(RegionRows(job, row, keys), job.region, job.width, job.summary + place * job.width);
}

void write_ring(const SummariesJob& job, int64_t row, const bf16* keys) {
  int64_t slot = job.places.slot[row], later = row + job.ring;
  if (slot == job.padding) return;
  if (later < job.places.rows && job.places.slot[later] == slot) return;  // overwritten anyway
  int64_t place = (slot * job.ring + job.places.position[row] % job.ring) * job.width;
  const bf16* z = job.kz + row * job.kz_stride + job.width;
  std::memcpy(job.ring_k + place, keys + row * job.width, job.width * sizeof(bf16));
  std::memcpy(job.ring_z + place, z, job.width * sizeof(bf16));
}

}  // namespace

void update_summaries(const SummariesJob& job) {
  int64_t rows = job.places.rows, width = job.width;
  bf16* keys = (bf16*)scratch(Use::results, rows * width * sizeof(bf16));
  float* weight = (float*)scratch(Use::act, 2 * width * sizeof(float));
  float* bias = weight + width;
  round_vector(job.norm.data, job.norm.bf16, width, weight);
  round_vector(job.bias.data, job.bias.bf16, width, bias);
  parallel_for(rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    float* y = (float*)scratch(Use::rows, width * sizeof(float));
    for (int64_t r = begin; r < end; ++r) key_row(job, r, weight, bias, y, keys + r * width);
  });
  parallel_for(rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) close_region(job, r, keys);
  });
  parallel_for(rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) write_ring(job, r, keys);
  });
}

}  // namespace fs::FS_ISA
