// Bindings of update_summaries and select_regions.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "attention_checks.h"
#include "kernels/indexer.h"

namespace {

using at::Tensor;

constexpr int64_t kLongestRegion = 16;

fs::Vector vector(const Tensor& x, const char* name, int64_t width) {
  fs::whole(x, name, {width}, x.scalar_type());
  return {.data = x.const_data_ptr(), .bf16 = fs::acts_bf16(x, name)};
}

void check_rotary(const Tensor& rotary, int64_t rows, int64_t width) {
  TORCH_CHECK(rotary.dim() == 2 && rotary.size(1) <= width, "rotary has shape ", rotary.sizes());
  fs::whole(rotary, "rotary", {rows, rotary.size(1)}, at::kFloat);
}

// The positions a block holds, from the summaries it has.
int64_t check_summary(const Tensor& summary, int64_t width, int64_t region) {
  TORCH_CHECK(summary.dim() == 3, "summary has ", summary.dim(), " dims, not 3");
  TORCH_CHECK(region > 0 && region <= kLongestRegion, "regions of ", region, " tokens");
  fs::whole(summary, "summary", {summary.size(0), summary.size(1), width}, at::kFloat8_e4m3fn);
  return summary.size(1) * region;
}

void update_summaries(const Tensor& kz, const Tensor& k_norm, const Tensor& k_bias,
                      const Tensor& rotary, const Tensor& slot, const Tensor& position,
                      const Tensor& table, const Tensor& summary, const Tensor& ring_k,
                      const Tensor& ring_z, int64_t region, double eps) {
  TORCH_CHECK(kz.dim() == 2 && ring_k.dim() == 3, "kz or ring_k of a wrong rank");
  int64_t rows = kz.size(0), width = kz.size(1) / 2;
  fs::rows_of(kz, "kz", {rows, 2 * width}, at::kBFloat16);
  check_rotary(rotary, rows, width);
  int64_t block = check_summary(summary, width, region);
  fs::whole(ring_k, "ring_k", {table.size(0), ring_k.size(1), width}, at::kBFloat16);
  fs::whole(ring_z, "ring_z", ring_k.sizes(), at::kBFloat16);
  fs::update_summaries({.kz = static_cast<const uint16_t*>(kz.const_data_ptr()),
                        .kz_stride = kz.stride(0),
                        .width = width,
                        .half = rotary.size(1) / 2,
                        .norm = vector(k_norm, "k_norm", width),
                        .bias = vector(k_bias, "k_bias", width),
                        .rotary = rotary.const_data_ptr<float>(),
                        .summary = static_cast<uint8_t*>(summary.mutable_data_ptr()),
                        .ring_k = static_cast<uint16_t*>(ring_k.mutable_data_ptr()),
                        .ring_z = static_cast<uint16_t*>(ring_z.mutable_data_ptr()),
                        .ring = ring_k.size(1),
                        .region = region,
                        .padding = table.size(0) - 1,
                        .eps = static_cast<float>(eps),
                        .places = fs::places(slot, position, table, rows, block)});
}

// h times a weight that is used as bf16, by the operator that knows how.
Tensor project(const Tensor& h, const Tensor& weight) {
  using Linear = Tensor(const Tensor&, at::TensorList, c10::string_view, at::ScalarType);
  static auto linear =
      c10::Dispatcher::singleton().findSchemaOrThrow("fourstep::linear", "").typed<Linear>();
  return linear.call(h, {weight.to(at::kBFloat16)}, "bf16", h.scalar_type());
}

Tensor select_regions(const Tensor& h, const Tensor& q_weight, const Tensor& w_weight,
                      const Tensor& q_norm, const Tensor& rotary, const Tensor& slot,
                      const Tensor& position, const Tensor& table, const Tensor& summary,
                      int64_t heads, int64_t groups, int64_t topk, int64_t region, double eps) {
  TORCH_CHECK(h.dim() == 2 && summary.dim() == 3, "h or summary of a wrong rank");
  bool bf16 = fs::acts_bf16(h, "h");
  int64_t rows = h.size(0), width = summary.size(2);
  TORCH_CHECK(groups > 0 && heads % groups == 0 && topk > 0, heads, " heads in ", groups,
              " groups, topk ", topk);
  TORCH_CHECK(q_weight.sizes() == at::IntArrayRef({heads * width, h.size(1)}) &&
                  w_weight.sizes() == at::IntArrayRef({heads, h.size(1)}),
              "q_weight or w_weight does not fit h and summary");
  check_rotary(rotary, rows, width);
  int64_t block = check_summary(summary, width, region);
  fs::Places places = fs::places(slot, position, table, rows, block);
  int64_t kept = std::min(topk, table.size(1) * summary.size(1));
  Tensor out = at::empty({rows, groups, kept}, slot.options()), q, w;
  fs::RegionsJob job{.q = nullptr,
                     .w = nullptr,
                     .norm = vector(q_norm, "q_norm", width),
                     .rotary = rotary.const_data_ptr<float>(),
                     .summary = static_cast<const uint8_t*>(summary.const_data_ptr()),
                     .out = out.mutable_data_ptr<int64_t>(),
                     .heads = heads,
                     .groups = groups,
                     .width = width,
                     .half = rotary.size(1) / 2,
                     .region = region,
                     .kept = kept,
                     .eps = static_cast<float>(eps),
                     .places = places,
                     .act_bf16 = bf16};
  bool scored = false;
  for (int64_t row = 0; row < rows; ++row) scored = scored || job.past(row) > kept;
  if (scored) {
    q = project(h, q_weight);
    w = project(h, w_weight);
    job.q = q.const_data_ptr();
    job.w = w.const_data_ptr();
  }
  fs::select_regions(job);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(fourstep, CPU, m) {
  m.impl("update_summaries", update_summaries);
  m.impl("select_regions", select_regions);
}
