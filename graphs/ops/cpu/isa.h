// Which instruction set the kernels use: the best one this machine has, or a lower one that a test
// asked for. Every file in kernels/ is compiled once per set, in a namespace of that name; FS_ISA
// is the namespace of the file being compiled.
#pragma once

// What Python calls; everything else stays inside the library.
#define FS_EXPORT extern "C" __attribute__((visibility("default")))

namespace fs {

enum class Isa : int { scalar = 0, avx2 = 1, avx512 = 2 };

Isa best_isa();
Isa isa();

}  // namespace fs

// Declares one kernel for every instruction set and a dispatcher of the same name in fs::.
#if defined(__x86_64__)
#define FS_KERNEL(name, params, args)                        \
  namespace fs {                                             \
  namespace scalar { void name params; }                     \
  namespace avx2 { void name params; }                       \
  namespace avx512 { void name params; }                     \
  inline void name params {                                  \
    switch (isa()) {                                         \
      case Isa::avx512: return avx512::name args;            \
      case Isa::avx2: return avx2::name args;                \
      default: return scalar::name args;                     \
    }                                                        \
  }                                                          \
  }
#else
#define FS_KERNEL(name, params, args)                        \
  namespace fs {                                             \
  namespace scalar { void name params; }                     \
  inline void name params { return scalar::name args; }      \
  }
#endif
