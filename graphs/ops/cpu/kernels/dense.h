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

// One expert and the assignments (a row and one of its choices) that go to it.
struct Expert {
  Matrix gate, up, down;
  int64_t first, count;  // its assignments, neighbours in the job's list
};

struct ExpertsJob {
  const void* h;
  void* y;  // [assignments, hidden], whole: what each assignment's expert says
  int64_t assignments, hidden, h_stride;
  const int64_t* row;  // [assignments]: the row of h that an assignment reads
  const Expert* experts;
  int64_t count;
  float limit;  // 0: no clamp
  bool act_bf16;
};

struct MixJob {
  const void* y;           // [assignments, hidden]
  const int64_t* place;    // [rows, choices]: the assignment of a choice, -1 for none
  const float* weights;    // [rows, choices], whole
  void* out;               // [rows, hidden], whole
  int64_t rows, choices, hidden;
  bool act_bf16;
};

struct RouteJob {
  const void* h;
  Matrix router;
  const float* bias;
  const bool* valid;
  int64_t* ids;    // [rows, topk], whole
  float* weights;  // [rows, topk], whole
  int64_t rows, h_stride, topk;
  float scale;
  bool act_bf16;
};

}  // namespace fs

FS_KERNEL(experts, (const ExpertsJob& job), (job))
FS_KERNEL(mix, (const MixJob& job), (job))
FS_KERNEL(route, (const RouteJob& job), (job))
FS_KERNEL(rms_norm, (const NormJob& job), (job))
FS_KERNEL(linear, (const LinearJob& job), (job))
