// Tensors to matrices, with every shape and dtype checked: a kernel trusts what it gets.
#include "dense_matrices.h"

#include <ATen/core/Tensor.h>

namespace fs {
namespace {

// A tensor of a stack, [E, ...], or of a matrix, which is a stack of one.
struct Part {
  const at::Tensor& tensor;
  int64_t experts;

  Part(const at::Tensor& t, int64_t dims, const char* what)
      : tensor(t), experts(t.dim() == dims ? 1 : t.size(0)) {
    TORCH_CHECK(t.is_contiguous(), what, " of a matrix is not contiguous");
    TORCH_CHECK(t.dim() == dims || t.dim() == dims + 1, what, " has ", t.dim(), " dims");
  }
  void check(at::IntArrayRef shape, at::ScalarType dtype, const char* what) const {
    at::IntArrayRef own = tensor.sizes().slice(tensor.dim() + 1 - shape.size());
    TORCH_CHECK(experts == shape[0] && own == shape.slice(1), what, " has shape ", tensor.sizes(),
                ", not ", shape);
    TORCH_CHECK(tensor.scalar_type() == dtype, what, " is ", tensor.scalar_type(), ", not ", dtype);
  }
};

Stack plain_stack(const at::Tensor& weight) {
  Part w(weight, 2, "weight");
  Stack s;
  s.first.format = is_bf16(weight.scalar_type()) ? Format::bf16 : Format::f32;
  s.first.out = weight.size(-2);
  s.first.in = weight.size(-1);
  s.experts = w.experts;
  s.weight_bytes = s.first.out * s.first.in * weight.element_size();
  s.first.weight = static_cast<const char*>(weight.const_data_ptr());
  return s;
}

Stack fp8_stack(const at::Tensor& weight, const at::Tensor& scale, std::string_view block) {
  Part w(weight, 2, "weight"), s(scale, 2, "scale_inv");
  Stack stack;
  Matrix& m = stack.first;
  m.format = Format::fp8;
  size_t cross = block.find('x');
  TORCH_CHECK(cross != std::string_view::npos, "fp8 needs a block, like fp8:128x128");
  m.block_out = std::stoll(std::string(block.substr(0, cross)));
  m.block_in = std::stoll(std::string(block.substr(cross + 1)));
  m.out = weight.size(-2);
  m.in = weight.size(-1);
  TORCH_CHECK(m.block_out > 0 && m.block_in > 0 && m.in * m.block_in < int64_t{1} << 32,
              "fp8 block ", block, " for ", m.in, " columns");
  int64_t down = (m.out + m.block_out - 1) / m.block_out;
  int64_t across = (m.in + m.block_in - 1) / m.block_in;
  w.check({w.experts, m.out, m.in}, at::kFloat8_e4m3fn, "weight");
  s.check({w.experts, down, across}, at::kFloat, "scale_inv");
  stack.experts = w.experts;
  stack.weight_bytes = m.out * m.in;
  stack.scale_bytes = down * across * 4;
  m.weight = static_cast<const char*>(weight.const_data_ptr());
  m.scale = static_cast<const char*>(scale.const_data_ptr());
  return stack;
}

Stack nvfp4_stack(const at::Tensor& weight, const at::Tensor& scale, const at::Tensor& scale_2) {
  Part w(weight, 2, "weight"), s(scale, 2, "scale"), second(scale_2, 0, "scale_2");
  Stack stack;
  Matrix& m = stack.first;
  m.format = Format::nvfp4;
  m.out = weight.size(-2);
  m.in = weight.size(-1) * 2;
  TORCH_CHECK(m.in % 16 == 0, "nvfp4 needs a multiple of 16 columns, not ", m.in);
  w.check({w.experts, m.out, m.in / 2}, at::kByte, "weight");
  s.check({w.experts, m.out, m.in / 16}, at::kFloat8_e4m3fn, "scale");
  second.check({w.experts}, at::kFloat, "scale_2");
  stack.experts = w.experts;
  stack.weight_bytes = m.out * m.in / 2;
  stack.scale_bytes = m.out * m.in / 16;
  stack.factors = scale_2.const_data_ptr<float>();
  m.weight = static_cast<const char*>(weight.const_data_ptr());
  m.scale = static_cast<const char*>(scale.const_data_ptr());
  return stack;
}

}  // namespace

bool is_bf16(at::ScalarType dtype) {
  TORCH_CHECK(dtype == at::kBFloat16 || dtype == at::kFloat, "bf16 or f32 expected, not ", dtype);
  return dtype == at::kBFloat16;
}

at::Tensor rows(const at::Tensor& x) {
  is_bf16(x.scalar_type());
  return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
}

std::vector<Stack> matrices(at::TensorList tensors, c10::string_view spec) {
  std::vector<Stack> found;
  size_t next = 0;
  auto take = [&]() -> const at::Tensor& {
    TORCH_CHECK(next < tensors.size(), "spec ", spec, " needs more than ", next, " tensors");
    return tensors[next++];
  };
  for (std::string_view rest(spec.data(), spec.size()); !rest.empty();) {
    std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(word.size() < rest.size() ? word.size() + 1 : rest.size());
    std::string_view name = word.substr(0, word.find(':'));
    const at::Tensor& weight = take();
    if (name == "bf16" || name == "f32") {
      found.push_back(plain_stack(weight));
    } else if (name == "fp8") {
      found.push_back(fp8_stack(weight, take(), word.substr(name.size() + 1)));
    } else {
      TORCH_CHECK(name == "nvfp4", "no format is called ", std::string(name));
      const at::Tensor& scale = take();
      found.push_back(nvfp4_stack(weight, scale, take()));
    }
  }
  TORCH_CHECK(next == tensors.size(), "spec ", spec, " does not name ", tensors.size(), " tensors");
  return found;
}

Matrix plain(const at::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2, "a plain matrix has ", weight.dim(), " dims");
  return plain_stack(weight).first;
}

}  // namespace fs
