// Bindings of the feed-forward layers: dense_mlp, route and routed_experts.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "dense_matrices.h"
#include "kernels/dense.h"

namespace {

void check_shapes(const fs::Matrix& gate, const fs::Matrix& up, const fs::Matrix& down,
                  int64_t hidden) {
  TORCH_CHECK(gate.in == hidden && up.in == hidden && down.out == hidden,
              "gate, up and down do not fit ", hidden, " columns");
  TORCH_CHECK(gate.out == up.out && gate.out == down.in, "gate, up and down differ in width");
}

at::Tensor dense_mlp(const at::Tensor& h, const at::Tensor& gate, const at::Tensor& up,
                     const at::Tensor& down, double limit) {
  TORCH_CHECK(h.dim() == 2, "dense_mlp: h has ", h.dim(), " dims, not 2");
  fs::Expert expert{fs::plain(gate), fs::plain(up), fs::plain(down), 0, h.size(0)};
  check_shapes(expert.gate, expert.up, expert.down, h.size(1));
  at::Tensor rows = fs::rows(h), out = at::empty(h.sizes(), h.options());
  if (out.numel() == 0) return out;
  std::vector<int64_t> every(h.size(0));
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<int64_t>(i);
  fs::experts({.h = rows.const_data_ptr(),
               .y = out.mutable_data_ptr(),
               .assignments = h.size(0),
               .hidden = h.size(1),
               .h_stride = rows.stride(0),
               .row = every.data(),
               .experts = &expert,
               .count = 1,
               .limit = static_cast<float>(limit),
               .act_bf16 = fs::is_bf16(h.scalar_type())});
  return out;
}

std::tuple<at::Tensor, at::Tensor> route(const at::Tensor& h, const at::Tensor& router,
                                         const at::Tensor& bias, const at::Tensor& valid,
                                         int64_t topk, double scale) {
  TORCH_CHECK(h.dim() == 2, "route: h has ", h.dim(), " dims, not 2");
  fs::Matrix matrix = fs::plain(router);
  TORCH_CHECK(matrix.in == h.size(1), "route: router of ", matrix.in, " columns for ", h.sizes());
  TORCH_CHECK(bias.scalar_type() == at::kFloat && bias.numel() == matrix.out, "route: bias");
  TORCH_CHECK(valid.scalar_type() == at::kBool && valid.numel() == h.size(0), "route: valid");
  TORCH_CHECK(topk >= 1 && topk <= matrix.out, "route: ", topk, " of ", matrix.out, " experts");
  at::Tensor rows = fs::rows(h), b = bias.contiguous(), v = valid.contiguous();
  at::Tensor ids = at::empty({h.size(0), topk}, h.options().dtype(at::kLong));
  at::Tensor weights = at::empty({h.size(0), topk}, h.options().dtype(at::kFloat));
  if (h.size(0) == 0) return {ids, weights};
  fs::route({.h = rows.const_data_ptr(),
             .router = matrix,
             .bias = b.const_data_ptr<float>(),
             .valid = v.const_data_ptr<bool>(),
             .ids = ids.mutable_data_ptr<int64_t>(),
             .weights = weights.mutable_data_ptr<float>(),
             .rows = h.size(0),
             .h_stride = rows.stride(0),
             .topk = topk,
             .scale = static_cast<float>(scale),
             .act_bf16 = fs::is_bf16(h.scalar_type())});
  return {ids, weights};
}

// The choices of all rows, those of one expert together, in rising order of expert and row.
struct Assignments {
  std::vector<int64_t> row, place, first;

  Assignments(const int64_t* ids, int64_t rows, int64_t choices, int64_t experts)
      : place(rows * choices, -1), first(experts + 1, 0) {
    for (int64_t i = 0; i < rows * choices; ++i) {
      TORCH_CHECK(ids[i] >= -1 && ids[i] < experts, "expert ", ids[i], " of ", experts);
      if (ids[i] >= 0) ++first[ids[i] + 1];
    }
    for (int64_t e = 0; e < experts; ++e) first[e + 1] += first[e];
    row.resize(first[experts]);
    std::vector<int64_t> next(first.begin(), first.end() - 1);
    for (int64_t i = 0; i < rows * choices; ++i) {
      if (ids[i] < 0) continue;
      place[i] = next[ids[i]]++;
      row[place[i]] = i / choices;
    }
  }
};

at::Tensor routed_experts(const at::Tensor& h, const at::Tensor& ids, const at::Tensor& weights,
                          at::TensorList tensors, c10::string_view spec, double limit) {
  TORCH_CHECK(h.dim() == 2 && ids.dim() == 2 && ids.sizes() == weights.sizes() &&
                  ids.size(0) == h.size(0),
              "routed_experts: h ", h.sizes(), ", ids ", ids.sizes(), ", weights ",
              weights.sizes());
  TORCH_CHECK(ids.scalar_type() == at::kLong && weights.scalar_type() == at::kFloat,
              "routed_experts: ids are int64 and weights f32");
  auto stacks = fs::matrices(tensors, spec);
  TORCH_CHECK(stacks.size() == 3, "routed_experts: ", stacks.size(), " matrices, not 3");
  const auto &gate = stacks[0], &up = stacks[1], &down = stacks[2];
  TORCH_CHECK(gate.experts == up.experts && gate.experts == down.experts, "numbers of experts");
  check_shapes(gate.first, up.first, down.first, h.size(1));

  at::Tensor chosen = ids.contiguous(), shares = weights.contiguous(), rows = fs::rows(h);
  at::Tensor out = at::empty(h.sizes(), h.options());
  if (out.numel() == 0) return out;
  Assignments all(chosen.const_data_ptr<int64_t>(), ids.size(0), ids.size(1), gate.experts);
  std::vector<fs::Expert> experts;
  for (int64_t e = 0; e < gate.experts; ++e) {
    int64_t count = all.first[e + 1] - all.first[e];
    if (count > 0)
      experts.push_back({gate.expert(e), up.expert(e), down.expert(e), all.first[e], count});
  }
  int64_t assignments = static_cast<int64_t>(all.row.size());
  at::Tensor y = at::empty({assignments, h.size(1)}, h.options());
  bool act_bf16 = fs::is_bf16(h.scalar_type());
  if (assignments > 0)
    fs::experts({.h = rows.const_data_ptr(),
                 .y = y.mutable_data_ptr(),
                 .assignments = assignments,
                 .hidden = h.size(1),
                 .h_stride = rows.stride(0),
                 .row = all.row.data(),
                 .experts = experts.data(),
                 .count = static_cast<int64_t>(experts.size()),
                 .limit = static_cast<float>(limit),
                 .act_bf16 = act_bf16});
  fs::mix({.y = y.const_data_ptr(),
           .place = all.place.data(),
           .weights = shares.const_data_ptr<float>(),
           .out = out.mutable_data_ptr(),
           .rows = h.size(0),
           .choices = ids.size(1),
           .hidden = h.size(1),
           .act_bf16 = act_bf16});
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(fourstep, CPU, m) {
  m.impl("dense_mlp", dense_mlp);
  m.impl("route", route);
  m.impl("routed_experts", routed_experts);
}
