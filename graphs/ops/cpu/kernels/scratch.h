// Memory that a thread keeps between calls, so that no kernel allocates twice for the same shapes.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace fs::FS_ISA {

// One buffer for each purpose: what one kernel holds must not move while another asks for more.
enum class Use : int { weight, sums, partial, rows, woven, act, results, count };

// At least `bytes` bytes at a multiple of 64, with what was left in them.
inline void* scratch(Use use, int64_t bytes) {
  struct Buffer {
    void* data = nullptr;
    int64_t bytes = 0;
    ~Buffer() { std::free(data); }
  };
  static thread_local Buffer buffers[static_cast<int>(Use::count)];
  Buffer& buffer = buffers[static_cast<int>(use)];
  if (buffer.bytes < bytes) {
    std::free(buffer.data);
    buffer.bytes = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    buffer.data = std::aligned_alloc(4096, buffer.bytes);
    if (buffer.data == nullptr) std::abort();
  }
  return buffer.data;
}

}  // namespace fs::FS_ISA
