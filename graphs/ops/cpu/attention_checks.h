// What the attention bindings share: tensors of rows and tables checked, turned into places.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/attention.h"

namespace fs {

// slot and position int64 [rows], table int64 [slots, columns] of blocks of `block` positions.
Places places(const at::Tensor& slot, const at::Tensor& position, const at::Tensor& table,
              int64_t rows, int64_t block);

// Refuses another shape, dtype, or gaps between elements.
void whole(const at::Tensor& x, const char* name, at::IntArrayRef shape, at::ScalarType dtype);

// As whole(), but rows may be apart.
void rows_of(const at::Tensor& x, const char* name, at::IntArrayRef shape, at::ScalarType dtype);

// Refuses what is neither bf16 nor f32; true for bf16.
bool acts_bf16(const at::Tensor& x, const char* name);

}  // namespace fs
