// Compiled programs as objects that Python calls without arguments: each is bound to its tensors
// once, and several run one after another in one call. Such a call leaves Python to other threads
// while it computes, which torch's own loader does not. A program's library is loaded where it lies:
// however many calls it serves, its code is in memory once.
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Program : torch::CustomClassHolder {
  Program(const std::string& path, std::vector<at::Tensor> tensors)
      : runner(path, /*num_models=*/1, /*run_single_threaded=*/true), bound(std::move(tensors)) {}

  void run() {
    c10::InferenceMode nothing_is_recorded;  // views cost less
    runner.run(bound);
  }

  torch::inductor::AOTIModelContainerRunnerCpu runner;
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
      .def(torch::init<const std::string&, std::vector<at::Tensor>>())
      .def("run", &Program::run);
  m.class_<Chain>("Chain")
      .def(torch::init<std::vector<c10::intrusive_ptr<Program>>>())
      .def("run", &Chain::run);
}

}  // namespace
