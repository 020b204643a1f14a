// What the dense bindings share: rows of activations, and matrices from a tensor list and its spec.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/matrix.h"

namespace fs {

// E matrices of one format and shape; a plain matrix is a stack of one.
struct Stack {
  Matrix first;
  int64_t experts = 1;
  int64_t weight_bytes = 0, scale_bytes = 0;  // from one expert to the next
  const float* factors = nullptr;             // nvfp4: one an expert

  Matrix expert(int64_t e) const {
    Matrix m = first;
    m.weight += e * weight_bytes;
    if (m.scale != nullptr) m.scale += e * scale_bytes;
    if (factors != nullptr) m.factor = factors[e];
    return m;
  }
};

// bf16 or not; refuses what is neither bf16 nor f32.
bool is_bf16(at::ScalarType dtype);

// x [T, I], bf16 or f32, with neighbouring elements in a row.
at::Tensor rows(const at::Tensor& x);

// The matrices of `spec` (graphs/ops/matrices.py).
std::vector<Stack> matrices(at::TensorList tensors, c10::string_view spec);

// One plain bf16 or f32 matrix.
Matrix plain(const at::Tensor& weight);

}  // namespace fs
