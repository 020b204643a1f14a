// The rotary kernels as the bindings call them.
#pragma once

#include "isa.h"
#include "kernels/attention.h"

namespace fs {

struct RotaryTableJob {
  const int64_t* position;
  const float* inv;  // [half]
  float* out;        // [rows, 2 * half]
  int64_t rows, half;
  bool round_bf16;
};

// qkv [T, heads + 2 * groups heads of `width`] with strided rows; q [T, heads, width] and the pool
// whole.
struct RopeWriteJob {
  const void* qkv;
  const float* q_norm;  // [width]
  const float* k_norm;
  const float* rotary;  // [T, 2 * half]
  void* q;
  void* pool;
  int64_t qkv_stride, heads, half;
  PoolShape shape;
  float eps;
  Places places;
  int64_t padding;  // the slot whose rows write nothing
  bool act_bf16;
};

}  // namespace fs

FS_KERNEL(rotary_table, (const RotaryTableJob& job), (job))
FS_KERNEL(rope_write, (const RopeWriteJob& job), (job))
