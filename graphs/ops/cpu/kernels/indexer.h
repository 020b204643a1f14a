// The indexer's kernels as the bindings call them.
#pragma once

#include "isa.h"
#include "kernels/attention.h"

namespace fs {

// A vector of f32 or bf16 that is used rounded to bf16.
struct Vector {
  const void* data;
  bool bf16;
};

struct SummariesJob {
  const uint16_t* kz;  // bf16 [T, 2 * width] with strided rows: key, then weight logit
  int64_t kz_stride, width, half;
  Vector norm, bias;    // [width]
  const float* rotary;  // [T, 2 * half]
  uint8_t* summary;     // e4m3 [B, block / region, width]
  uint16_t* ring_k;     // bf16 [slots, ring, width]
  uint16_t* ring_z;
  int64_t ring, region, padding;  // rows of the slot `padding` write nothing
  float eps;
  Places places;
};

// q [T, heads * width] and w [T, heads] as projected, whole, in one dtype; both may be null when no
// row has more than `kept` past regions. out [T, groups, kept].
struct RegionsJob {
  const void* q;
  const void* w;
  Vector norm;            // [width]
  const float* rotary;    // [T, 2 * half]
  const uint8_t* summary;  // as above
  int64_t* out;
  int64_t heads, groups, width, half, region, kept;
  float eps;
  Places places;
  bool act_bf16;

  int64_t regions_a_block() const { return places.block / region; }
  // Regions strictly before the row's own.
  int64_t past(int64_t row) const { return places.position[row] / region; }
};

}  // namespace fs

FS_KERNEL(update_summaries, (const SummariesJob& job), (job))
FS_KERNEL(select_regions, (const RegionsJob& job), (job))
// As many dot products of `width` elements as scoring `regions` regions for `rows` heads of rows
// takes, of operands that are ready in the cache: what scoring cannot be faster than.
FS_KERNEL(dot_products, (int64_t rows, int64_t width, int64_t regions), (rows, width, regions))
