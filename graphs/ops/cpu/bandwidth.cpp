// The roof of every memory-bound kernel: how fast the pool's threads read plain memory.
#include <chrono>

#include "kernels/dense.h"
#include "pool.h"

// Seconds to read `bytes` bytes once with the pool's threads.
FS_EXPORT double fourstep_read_seconds(const void* data, int64_t bytes) {
  auto start = std::chrono::steady_clock::now();
  fs::parallel_for(bytes, 1 << 18, [&](int64_t begin, int64_t end) {
    fs::read((const char*)data + begin, end - begin);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
