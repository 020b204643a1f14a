// Bindings of linear and rms_norm: checks of what arrives, allocation of what leaves.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "dense_matrices.h"
#include "kernels/dense.h"

namespace {

at::Tensor linear(const at::Tensor& x, at::TensorList tensors, c10::string_view spec,
                  at::ScalarType dtype) {
  TORCH_CHECK(x.dim() == 2, "linear: x has ", x.dim(), " dims, not 2");
  int64_t width = 0;
  std::vector<fs::Matrix> first;
  for (const auto& stack : fs::matrices(tensors, spec)) {
    TORCH_CHECK(stack.first.in == x.size(1), "linear: a matrix of ", stack.first.in,
                " columns for x ", x.sizes());
    first.push_back(stack.expert(0));
    width += stack.first.out;
  }
  at::Tensor rows = fs::rows(x);
  at::Tensor out = at::empty({x.size(0), width}, x.options().dtype(dtype));
  if (out.numel() == 0) return out;
  fs::linear({.x = rows.const_data_ptr(),
              .out = out.mutable_data_ptr(),
              .rows = rows.size(0),
              .in = rows.size(1),
              .x_stride = rows.stride(0),
              .matrices = first.data(),
              .count = static_cast<int64_t>(first.size()),
              .act_bf16 = fs::is_bf16(x.scalar_type()),
              .out_bf16 = fs::is_bf16(dtype)});
  return out;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                    at::ScalarType dtype) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1),
              "rms_norm: weight ", weight.sizes(), " for x ", x.sizes());
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(dtype));
  if (out.numel() == 0) return out;
  at::Tensor rows = fs::rows(x.dim() == 2 ? x : x.reshape({-1, x.size(-1)}));
  at::Tensor scale = weight.contiguous();
  fs::rms_norm({.x = rows.const_data_ptr(),
                .weight = scale.const_data_ptr(),
                .out = out.mutable_data_ptr(),
                .rows = rows.size(0),
                .width = rows.size(1),
                .x_stride = rows.stride(0),
                .eps = static_cast<float>(eps),
                .x_bf16 = fs::is_bf16(x.scalar_type()),
                .weight_bf16 = fs::is_bf16(weight.scalar_type()),
                .out_bf16 = fs::is_bf16(dtype)});
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(fourstep, CPU, m) {
  m.impl("linear", linear);
  m.impl("rms_norm", rms_norm);
}
