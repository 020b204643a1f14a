// A weight matrix as its checkpoint stores it, row-major [out, in], for bindings and kernels alike.
// No row is copied or repacked; tensors may lie at any 4-byte boundary of a mapped file.
#pragma once

#include <cstdint>

namespace fs {

enum class Format : int { bf16, f32, fp8, nvfp4 };

struct Matrix {
  Format format = Format::bf16;
  const char* weight = nullptr;
  // fp8: f32 [out / block_out, in / block_in], rounded up; nvfp4: e4m3 [out, in / 16].
  const char* scale = nullptr;
  float factor = 1;  // multiplies every sum: nvfp4's second scale
  int64_t out = 0, in = 0;
  int64_t block_out = 1, block_in = 1;

  int64_t row_bytes() const {
    switch (format) {
      case Format::bf16: return in * 2;
      case Format::f32: return in * 4;
      case Format::fp8: return in;
      default: return in / 2;
    }
  }
};

}  // namespace fs
