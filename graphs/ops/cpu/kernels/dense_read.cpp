// Plain reading with the widest loads, for measuring memory.
#include "kernels/dense.h"
#include "kernels/vec.h"

namespace fs::FS_ISA {

void read(const char* data, int64_t bytes) {
  constexpr int64_t line = kLanes * sizeof(float);
  V all[8];
  for (V& a : all) a = splat(0);
  for (int64_t i = 0; i + 8 * line <= bytes; i += 8 * line)
    for (int64_t j = 0; j < 8; ++j) all[j] = max(load((const float*)(data + i + j * line)), all[j]);
  for (int j = 1; j < 8; ++j) all[0] = max(all[0], all[j]);
  float seen = largest(all[0]);
  asm volatile("" : : "r"(&seen) : "memory");  // the compiler must not drop the loads
}

}  // namespace fs::FS_ISA
