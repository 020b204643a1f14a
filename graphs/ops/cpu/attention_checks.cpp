// Checks of what the attention operators get: the kernels trust every shape, dtype and stride.
#include "attention_checks.h"

#include <ATen/core/Tensor.h>

namespace fs {
namespace {

void shaped(const at::Tensor& x, const char* name, at::IntArrayRef shape, at::ScalarType dtype) {
  TORCH_CHECK(x.device().is_cpu(), name, " is on ", x.device(), ", not on the CPU");
  TORCH_CHECK(x.sizes() == shape, name, " has shape ", x.sizes(), ", not ", shape);
  TORCH_CHECK(x.scalar_type() == dtype, name, " is ", x.scalar_type(), ", not ", dtype);
}

}  // namespace

void whole(const at::Tensor& x, const char* name, at::IntArrayRef shape, at::ScalarType dtype) {
  shaped(x, name, shape, dtype);
  TORCH_CHECK(x.is_contiguous(), name, " is not contiguous");
}

void rows_of(const at::Tensor& x, const char* name, at::IntArrayRef shape, at::ScalarType dtype) {
  shaped(x, name, shape, dtype);
  TORCH_CHECK(x.size(1) <= 1 || x.stride(1) == 1, name, " has gaps within its rows");
}

bool acts_bf16(const at::Tensor& x, const char* name) {
  at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK(dtype == at::kBFloat16 || dtype == at::kFloat, name, " is ", dtype,
              ", neither bf16 nor f32");
  return dtype == at::kBFloat16;
}

Places places(const at::Tensor& slot, const at::Tensor& position, const at::Tensor& table,
              int64_t rows, int64_t block) {
  whole(slot, "slot", {rows}, at::kLong);
  whole(position, "position", {rows}, at::kLong);
  TORCH_CHECK(table.dim() == 2, "table has ", table.dim(), " dims, not 2");
  whole(table, "table", table.sizes(), at::kLong);
  return {.slot = slot.const_data_ptr<int64_t>(),
          .position = position.const_data_ptr<int64_t>(),
          .rows = rows,
          .table = table.const_data_ptr<int64_t>(),
          .columns = table.size(1),
          .block = block};
}

}  // namespace fs
