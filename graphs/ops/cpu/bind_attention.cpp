// Bindings of rotary_table, rope_write, window_attention and region_attention.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "attention_checks.h"
#include "kernels/attention.h"
#include "kernels/rotary.h"

namespace {

using at::Tensor;

Tensor rotary_table(const Tensor& position, const Tensor& inv, at::ScalarType rounding) {
  fs::whole(inv, "inv", {inv.numel()}, at::kFloat);
  fs::whole(position, "position", {position.numel()}, at::kLong);
  TORCH_CHECK(rounding == at::kBFloat16 || rounding == at::kFloat, "rounding is ", rounding);
  Tensor out = at::empty({position.numel(), 2 * inv.numel()}, inv.options());
  fs::rotary_table({.position = position.const_data_ptr<int64_t>(),
                    .inv = inv.const_data_ptr<float>(),
                    .out = out.mutable_data_ptr<float>(),
                    .rows = position.numel(),
                    .half = inv.numel(),
                    .round_bf16 = rounding == at::kBFloat16});
  return out;
}

// A pool [B, G, block / 8, 2, 8, D], and the positions of a block.
struct Pool {
  fs::PoolShape shape;
  int64_t block;

  Pool(const Tensor& pool, at::ScalarType act) {
    TORCH_CHECK(pool.dim() == 6 && pool.size(3) == 2 && pool.size(4) == fs::kOctet,
                "pool has shape ", pool.sizes());
    fs::whole(pool, "pool", pool.sizes(), act);
    shape = {.groups = pool.size(1), .width = pool.size(5), .per_block = pool.size(2)};
    block = shape.per_block * fs::kOctet;
  }
};

Tensor rope_write(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                  const Tensor& rotary, const Tensor& slot, const Tensor& position,
                  const Tensor& table, const Tensor& pool, int64_t heads, double eps) {
  TORCH_CHECK(qkv.dim() == 2 && rotary.dim() == 2, "qkv or rotary is not 2-dimensional");
  bool bf16 = fs::acts_bf16(qkv, "qkv");
  auto [shape, block] = Pool(pool, qkv.scalar_type());
  int64_t rows = qkv.size(0), width = shape.width;
  fs::rows_of(qkv, "qkv", qkv.sizes(), qkv.scalar_type());
  TORCH_CHECK(qkv.size(1) >= (heads + 2 * shape.groups) * width, "qkv has only ", qkv.size(1),
              " columns");
  fs::whole(q_norm, "q_norm", {width}, at::kFloat);
  fs::whole(k_norm, "k_norm", {width}, at::kFloat);
  fs::whole(rotary, "rotary", {rows, rotary.size(1)}, at::kFloat);
  TORCH_CHECK(rotary.size(1) <= width, "rotary has ", rotary.size(1), " columns for ", width);
  Tensor q = at::empty({rows, heads, width}, qkv.options());
  fs::rope_write({.qkv = qkv.const_data_ptr(),
                  .q_norm = q_norm.const_data_ptr<float>(),
                  .k_norm = k_norm.const_data_ptr<float>(),
                  .rotary = rotary.const_data_ptr<float>(),
                  .q = q.mutable_data_ptr(),
                  .pool = pool.mutable_data_ptr(),
                  .qkv_stride = qkv.stride(0),
                  .heads = heads,
                  .half = rotary.size(1) / 2,
                  .shape = shape,
                  .eps = static_cast<float>(eps),
                  .places = fs::places(slot, position, table, rows, block),
                  .padding = table.size(0) - 1,
                  .act_bf16 = bf16});
  return q;
}

// The job without its result, which is allocated here.
fs::AttentionJob job(const Tensor& q, const Tensor& gate, const Tensor& pool, const Tensor& slot,
                     const Tensor& position, const Tensor& table, Tensor& out) {
  TORCH_CHECK(q.dim() == 3, "q has ", q.dim(), " dims, not 3");
  bool bf16 = fs::acts_bf16(q, "q");
  fs::whole(q, "q", q.sizes(), q.scalar_type());
  auto [shape, block] = Pool(pool, q.scalar_type());
  int64_t rows = q.size(0), heads = q.size(1);
  TORCH_CHECK(q.size(2) == shape.width && heads % shape.groups == 0, "q of shape ", q.sizes(),
              " does not fit a pool of shape ", pool.sizes());
  fs::rows_of(gate, "gate", {rows, heads}, q.scalar_type());
  out = at::empty({rows, heads * shape.width}, q.options());
  return {.q = q.const_data_ptr(),
          .gate = gate.const_data_ptr(),
          .pool = pool.const_data_ptr(),
          .out = out.mutable_data_ptr(),
          .gate_stride = gate.stride(0),
          .heads = heads,
          .shape = shape,
          .places = fs::places(slot, position, table, rows, block),
          .act_bf16 = bf16};
}

Tensor window_attention(const Tensor& q, const Tensor& gate, const Tensor& pool, const Tensor& slot,
                        const Tensor& position, const Tensor& table, int64_t window) {
  TORCH_CHECK(window >= 0, "window is ", window);
  Tensor out;
  fs::window_attention(job(q, gate, pool, slot, position, table, out), window);
  return out;
}

Tensor region_attention(const Tensor& q, const Tensor& gate, const Tensor& pool, const Tensor& slot,
                        const Tensor& position, const Tensor& table, const Tensor& ids,
                        int64_t region) {
  TORCH_CHECK(region == fs::kOctet, "regions of ", region, " tokens; the kernel knows only 8");
  TORCH_CHECK(ids.dim() == 3, "ids has ", ids.dim(), " dims, not 3");
  Tensor out;
  fs::AttentionJob work = job(q, gate, pool, slot, position, table, out);
  fs::whole(ids, "ids", {q.size(0), work.shape.groups, ids.size(2)}, at::kLong);
  fs::region_attention(work, ids.const_data_ptr<int64_t>(), ids.size(2));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(fourstep, CPU, m) {
  m.impl("rotary_table", rotary_table);
  m.impl("rope_write", rope_write);
  m.impl("window_attention", window_attention);
  m.impl("region_attention", region_attention);
}
