// The dense kernels as the bindings call them. Types are given by name: `act` and `out` say whether
// activations and results are bf16 or f32.
#pragma once

#include "isa.h"
#include "kernels/matrix.h"

namespace fs {

struct LinearJob {
  const void* x;
  void* out;  // [rows, sum of outs], whole
  int64_t rows, in, x_stride;
  const Matrix* matrices;
  int64_t count;
  bool act_bf16, out_bf16;
};

struct NormJob {
  const void* x;
  const void* weight;
  void* out;  // [rows, width], whole
  int64_t rows, width, x_stride;
  float eps;
  bool x_bf16, weight_bf16, out_bf16;
};

}  // namespace fs

FS_KERNEL(rms_norm, (const NormJob& job), (job))
FS_KERNEL(linear, (const LinearJob& job), (job))
