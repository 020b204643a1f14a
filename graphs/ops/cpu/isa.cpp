// Detection of the instruction set, and the C entry points that Python reaches through ctypes.
#include "isa.h"

#include <atomic>

namespace fs {

Isa best_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::scalar;
}

static std::atomic<Isa>& chosen() {
  static std::atomic<Isa> value{best_isa()};
  return value;
}

Isa isa() { return chosen().load(std::memory_order_relaxed); }

}  // namespace fs

FS_EXPORT int fourstep_isa() { return static_cast<int>(fs::isa()); }

// Returns 0 and changes nothing when the machine lacks the set.
FS_EXPORT int fourstep_set_isa(int wanted) {
  if (wanted < 0 || wanted > static_cast<int>(fs::best_isa())) return 0;
  fs::chosen().store(static_cast<fs::Isa>(wanted));
  return 1;
}
