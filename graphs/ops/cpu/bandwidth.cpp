// The roofs of the kernels: how fast the pool's threads read plain memory, and multiply.
#include <chrono>

#include "kernels/dense.h"
#include "kernels/indexer.h"
#include "pool.h"

// Seconds to read `bytes` bytes once with the pool's threads.
FS_EXPORT double fourstep_read_seconds(const void* data, int64_t bytes) {
  auto start = std::chrono::steady_clock::now();
  fs::parallel_for(bytes, 1 << 18, [&](int64_t begin, int64_t end) {
    fs::read((const char*)data + begin, end - begin);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds of the dot products that scoring `regions` regions for `rows` heads of rows takes.
FS_EXPORT double fourstep_dot_seconds(int64_t rows, int64_t width, int64_t regions) {
  auto start = std::chrono::steady_clock::now();
  fs::dot_products(rows, width, regions);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
