// Bindings of sample, argmax and count_tokens: checks of what arrives, allocation of what leaves.
// The order of sample's arguments is that of its schema in graphs/ops/sample.py.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "kernels/sample.h"

namespace {

using at::Tensor;

void check(const Tensor& t, const char* name, at::ScalarType dtype, at::IntArrayRef shape) {
  TORCH_CHECK(t.device().is_cpu() && t.scalar_type() == dtype && t.sizes() == shape,
              "sampling: ", name, " is ", t.scalar_type(), " ", t.sizes(), ", not ", dtype, " ",
              shape);
}

void check_rows(const Tensor& logits) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0 && logits.size(1) < int64_t{1} << 31,
              "sampling: logits are ", logits.sizes(), ", not [rows, vocabulary]");
  check(logits, "logits", at::kFloat, logits.sizes());
}

// A matrix whose rows are whole, as pointers into it.
const void* check_state(const Tensor& t, const char* name, at::ScalarType dtype, int64_t rows,
                        int64_t width) {
  check(t, name, dtype, {rows, width});
  TORCH_CHECK(t.is_contiguous(), "sampling: ", name, " is not contiguous");
  return t.const_data_ptr();
}

Tensor whole_rows(const Tensor& logits) {
  return logits.stride(1) == 1 || logits.size(1) == 1 ? logits : logits.contiguous();
}

int64_t slot_at(const Tensor& slot, int64_t entry, int64_t rows) {
  int64_t value = slot.const_data_ptr<int64_t>()[entry * slot.stride(0)];
  TORCH_CHECK(value >= 0 && value < rows, "sampling: slot ", value, " is outside 0..", rows - 1);
  return value;
}

template <typename T>
T value_at(const Tensor& values, int64_t entry) {
  return values.const_data_ptr<T>()[entry * values.stride(0)];
}

std::tuple<Tensor, Tensor> sample(
    const Tensor& logits, const Tensor& tokens, const Tensor& position, const Tensor& slot,
    const Tensor& seed, const Tensor& choice, const Tensor& temperature, const Tensor& top_k,
    const Tensor& top_p, const Tensor& min_p, const Tensor& presence, const Tensor& frequency,
    const Tensor& repetition, const Tensor& flags, const Tensor& counts, const Tensor& prompt,
    const Tensor& bias, const Tensor& mask) {
  check_rows(logits);
  TORCH_CHECK(tokens.dim() == 2, "sampling: tokens are ", tokens.sizes(), ", not [entries, width]");
  int64_t count = tokens.size(0), width = tokens.size(1), vocab = logits.size(1);
  int64_t rows = count * width, slots = counts.size(0), words = (vocab + 31) / 32;
  TORCH_CHECK(logits.size(0) == rows, "sampling: ", logits.size(0), " rows of logits for ", rows);
  check(tokens, "tokens", at::kLong, tokens.sizes());
  for (const Tensor* ints : {&position, &slot, &seed, &choice, &top_k, &flags})
    check(*ints, "a parameter", at::kLong, {count});
  for (const Tensor* floats : {&temperature, &top_p, &min_p, &presence, &frequency, &repetition})
    check(*floats, "a parameter", at::kFloat, {count});
  auto* counted = (const int32_t*)check_state(counts, "counts", at::kInt, slots, vocab);
  auto* prompted = (const uint32_t*)check_state(prompt, "prompt", at::kInt, slots, words);
  auto* biased = (const float*)check_state(bias, "bias", at::kFloat, slots, vocab);
  auto* masks = (const uint32_t*)check_state(mask, "mask", at::kInt, rows, words);

  std::vector<fs::Draw> entries(count);
  for (int64_t s = 0; s < count; ++s) {
    int64_t of = slot_at(slot, s, slots);
    entries[s] = {.seed = value_at<int64_t>(seed, s),
                  .choice = value_at<int64_t>(choice, s),
                  .position = value_at<int64_t>(position, s),
                  .top_k = value_at<int64_t>(top_k, s),
                  .flags = value_at<int64_t>(flags, s),
                  .temperature = value_at<float>(temperature, s),
                  .top_p = value_at<float>(top_p, s),
                  .min_p = value_at<float>(min_p, s),
                  .presence = value_at<float>(presence, s),
                  .frequency = value_at<float>(frequency, s),
                  .repetition = value_at<float>(repetition, s),
                  .tokens = tokens.const_data_ptr<int64_t>() + s * tokens.stride(0),
                  .tokens_stride = tokens.stride(1),
                  .counts = counted + of * vocab,
                  .prompt = prompted + of * words,
                  .bias = biased + of * vocab};
  }
  Tensor x = whole_rows(logits);
  Tensor token = at::empty({count, width}, tokens.options());
  Tensor logprob = at::empty({count, width}, logits.options());
  fs::sample({.logits = x.const_data_ptr<float>(),
              .rows = rows,
              .width = width,
              .vocab = vocab,
              .stride = x.stride(0),
              .entries = entries.data(),
              .mask = masks,
              .token = token.mutable_data_ptr<int64_t>(),
              .logprob = logprob.mutable_data_ptr<float>()});
  return {token, logprob};
}

Tensor argmax(const Tensor& logits) {
  check_rows(logits);
  Tensor x = whole_rows(logits);
  Tensor token = at::empty({x.size(0)}, x.options().dtype(at::kLong));
  fs::argmax({.logits = x.const_data_ptr<float>(),
              .rows = x.size(0),
              .vocab = x.size(1),
              .stride = x.stride(0),
              .token = token.mutable_data_ptr<int64_t>()});
  return token;
}

void count_tokens(const Tensor& counts, const Tensor& slot, const Tensor& sampled,
                  const Tensor& accepted) {
  TORCH_CHECK(counts.dim() == 2 && sampled.dim() == 2, "count_tokens: counts and sampled have ",
              counts.dim(), " and ", sampled.dim(), " dims, not 2");
  int64_t entries = sampled.size(0), width = sampled.size(1), vocab = counts.size(1);
  check_state(counts, "counts", at::kInt, counts.size(0), vocab);
  check(sampled, "sampled", at::kLong, sampled.sizes());
  for (const Tensor* ints : {&slot, &accepted}) check(*ints, "an index", at::kLong, {entries});
  auto* all = static_cast<uint32_t*>(counts.mutable_data_ptr());  // the scratch row may wrap round
  for (int64_t s = 0; s < entries; ++s) {
    uint32_t* row = all + slot_at(slot, s, counts.size(0)) * vocab;
    int64_t last = std::min(value_at<int64_t>(accepted, s), width - 1);
    for (int64_t j = 0; j <= last; ++j) {
      int64_t id = sampled.const_data_ptr<int64_t>()[s * sampled.stride(0) + j * sampled.stride(1)];
      TORCH_CHECK(id < vocab, "count_tokens: token ", id, " is outside 0..", vocab - 1);
      if (id >= 0) ++row[id];
    }
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(fourstep, CPU, m) {
  m.impl("sample", sample);
  m.impl("argmax", argmax);
  m.impl("count_tokens", count_tokens);
}
