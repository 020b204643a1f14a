// The roof of scoring: how fast the pool's threads multiply.
#include <chrono>

#include "kernels/indexer.h"

// Seconds of the dot products that scoring `regions` regions for `rows` heads of rows takes.
FS_EXPORT double fourstep_dot_seconds(int64_t rows, int64_t width, int64_t regions) {
  auto start = std::chrono::steady_clock::now();
  fs::dot_products(rows, width, regions);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
