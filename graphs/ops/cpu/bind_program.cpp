// Compiled programs as objects that Python calls without arguments: each is bound to its tensors
// once, and several run one after another in one call. Such a call leaves Python to other threads
// while it computes, which torch's own loader does not.
//
// The operators of a program are called here too. Torch's way of it copies an operator's schema at
// every call, which takes longer than a small operator does.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using torch::aot_inductor::ProxyExecutor;
using torch::aot_inductor::tensor_handle_to_tensor_pointer;
using torch::inductor::AOTIModelContainerRunner;

// An argument of a call: its tensors or its integer come with each call, else it is a value.
struct Argument {
  enum Kind { tensor, tensors, integer, value } kind;
  int64_t count;
  c10::IValue fixed;

  explicit Argument(const c10::IValue& told) {
    const auto& pair = told.toTupleRef().elements();
    const std::string& name = pair[0].toStringRef();
    kind = name == "tensor" ? tensor : name == "tensors" ? tensors : name == "int" ? integer : value;
    TORCH_CHECK(kind != value || name == "value", "an argument is of kind ", name);
    count = kind == value ? 0 : pair[1].toInt();
    if (kind == value) fixed = pair[1];
  }
};

// One call of an operator, as graphs/compile/externs.py tells it; one that it does not know has no
// operator.
struct External {
  std::optional<c10::OperatorHandle> op;
  std::vector<Argument> arguments;
  int64_t outputs;

  explicit External(const c10::IValue& told) {
    const auto& parts = told.toTupleRef().elements();
    const std::string& name = parts[0].toStringRef();
    if (!name.empty()) op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
    for (const auto& argument : parts[1].toTupleRef().elements()) arguments.emplace_back(argument);
    outputs = parts[2].toInt();
  }

  void call(int num_ints, const int64_t* ints, int num_tensors, AtenTensorHandle* handles) const {
    static thread_local std::vector<c10::IValue> stack;
    stack.clear();
    const AtenTensorHandle *next = handles, *end = handles + num_tensors;
    const int64_t* last = ints + num_ints;
    for (const Argument& argument : arguments) {
      switch (argument.kind) {
        case Argument::value: stack.push_back(argument.fixed); break;
        case Argument::integer: stack.emplace_back(*ints++); break;
        case Argument::tensor: stack.emplace_back(*tensor_handle_to_tensor_pointer(*next++)); break;
        case Argument::tensors: {
          c10::List<at::Tensor> list;
          list.reserve(argument.count);
          for (int64_t i = 0; i < argument.count; ++i)
            list.push_back(*tensor_handle_to_tensor_pointer(*next++));
          stack.emplace_back(std::move(list));
        }
      }
    }
    TORCH_CHECK(next + outputs == end && ints == last, "a call's arguments are not as they were told");
    op->callBoxed(stack);
    for (c10::IValue& output : stack)
      *tensor_handle_to_tensor_pointer(*next++) = std::move(output).toTensor();
  }
};

// A protected member of torch's runner: what its program calls for operators.
struct Runner : AOTIModelContainerRunner {
  static AOTIProxyExecutorHandle& calls_of(AOTIModelContainerRunner& runner) {
    return runner.*(&Runner::proxy_executor_handle_);
  }
};

struct Calls : ProxyExecutor {
  void call_function(int index, int num_ints, int64_t* ints, int num_tensors,
                     AtenTensorHandle* tensors) override {
    const External& external = externals.at(index);
    if (external.op) external.call(num_ints, ints, num_tensors, tensors);
    else torchs->call_function(index, num_ints, ints, num_tensors, tensors);
  }

  std::vector<External> externals;
  ProxyExecutor* torchs = nullptr;
};

struct Program : torch::CustomClassHolder {
  Program(const std::string& path, std::vector<at::Tensor> tensors,
          const std::vector<c10::IValue>& externals)
      : loader(path, "model", /*run_single_threaded=*/true), bound(std::move(tensors)) {
    for (const auto& external : externals) calls.externals.emplace_back(external);
    AOTIProxyExecutorHandle& handle = Runner::calls_of(*loader.get_runner());
    calls.torchs = reinterpret_cast<ProxyExecutor*>(handle);
    handle = reinterpret_cast<AOTIProxyExecutorHandle>(static_cast<ProxyExecutor*>(&calls));
  }

  void run() { loader.run(bound); }

  Calls calls;
  torch::inductor::AOTIModelPackageLoader loader;
  std::vector<at::Tensor> bound;
};

struct Chain : torch::CustomClassHolder {
  explicit Chain(std::vector<c10::intrusive_ptr<Program>> steps) : programs(std::move(steps)) {}

  void run() {
    for (const auto& program : programs) program->run();
  }

  std::vector<c10::intrusive_ptr<Program>> programs;
};

TORCH_LIBRARY_FRAGMENT(fourstep, m) {
  m.class_<Program>("Program")
      .def(torch::init<const std::string&, std::vector<at::Tensor>,
                       const std::vector<c10::IValue>&>())
      .def("run", &Program::run);
  m.class_<Chain>("Chain")
      .def(torch::init<std::vector<c10::intrusive_ptr<Program>>>())
      .def("run", &Chain::run);
}

}  // namespace
