// The roof of every memory-bound kernel: how fast the pool's threads read plain memory.
#include <chrono>
#include <cstdint>

#include "isa.h"
#include "pool.h"

namespace {

constexpr int64_t kPiece = 1 << 18;

// The compiler makes wide loads of it.
uint64_t read_piece(const uint64_t* p, int64_t words) {
  uint64_t lanes[32] = {};
  for (int64_t i = 0; i + 32 <= words; i += 32)
    for (int j = 0; j < 32; ++j) lanes[j] ^= p[i + j];
  uint64_t all = 0;
  for (uint64_t lane : lanes) all ^= lane;
  return all;
}

}  // namespace

// Seconds to read `bytes` bytes once with the pool's threads.
FS_EXPORT double fourstep_read_seconds(const void* data, int64_t bytes) {
  auto start = std::chrono::steady_clock::now();
  fs::parallel_for(bytes, kPiece, [&](int64_t begin, int64_t end) {
    uint64_t all = read_piece((const uint64_t*)((const char*)data + begin), (end - begin) / 8);
    asm volatile("" : : "r"(all));
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
