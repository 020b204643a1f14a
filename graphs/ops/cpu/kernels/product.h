// Rows of activations times a block of rows of a weight matrix: what kernels of layers call.
//
// Activations are packed once a call: groups of at most kRows rows, step by step, the rows of a
// group side by side. Keeps true: a row's sums do not depend on the group it is in (tiles.h).
#pragma once

#include "kernels/matrix.h"
#include "kernels/operand.h"
#include "kernels/scratch.h"

namespace fs::FS_ISA {

#if defined(__AVX512F__)
constexpr int kRows = 6;
#else
constexpr int kRows = 2;
#endif
constexpr int64_t kBlock = 32;  // outputs a product computes at most

template <typename X>
struct PackedRows {
  Packed<X>* data;
  int64_t rows, in;

  int64_t steps() const { return (in + kStep<X> - 1) / kStep<X>; }
  int64_t groups() const { return (rows + kRows - 1) / kRows; }
  int64_t first(int64_t group) const { return group * rows / groups(); }
  Packed<X>* group(int64_t g) const { return data + first(g) * steps() * kStep<X>; }
  int64_t elements() const { return rows * steps() * kStep<X>; }
  // Where element k of the row `i` of group g is; sixteen from a multiple of sixteen are together.
  Packed<X>* at(int64_t g, int64_t i, int64_t k) const {
    int64_t size = first(g + 1) - first(g);
    return group(g) + (k / kStep<X> * size + i) * kStep<X> + k % kStep<X>;
  }
};

// Packs group g; row(i) is the address of row i of x.
template <typename X, typename T, typename RowAt>
void pack_group(const PackedRows<X>& x, int64_t g, const RowAt& row) {
  int64_t begin = x.first(g), size = x.first(g + 1) - begin, whole = x.in / kStep<X>;
  for (int64_t i = 0; i < size; ++i) {
    const T* from = row(begin + i);
    Packed<X>* to = x.group(g) + i * kStep<X>;
    for (int64_t s = 0; s < whole; ++s, to += size * kStep<X>)
      store_operand(operand_of<X>(from + s * kStep<X>), to);
    if (x.in % kStep<X>)
      store_operand(operand_of<X>(from + whole * kStep<X>, x.in % kStep<X>), to);
  }
}

// y[row * ys + out - begin] = x[row] . m[out] for outs [begin, end), at most kBlock of them. A row
// of y has kBlock places, of which those after the last out are written too.
template <typename X>
void product(const PackedRows<X>& x, const Matrix& m, int64_t begin, int64_t end, float* y,
             int64_t ys);

// Pieces to take at a time: one, or all when the work is done before another thread would help.
inline int64_t pieces_at_once(int64_t pieces, int64_t weight_bytes, int64_t rows) {
  constexpr int64_t alone = 1 << 16;
  return weight_bytes * (1 + rows / 8) < alone ? pieces : 1;
}

// `count` sums, rounded to T.
template <typename T>
void write(const float* y, int64_t count, T* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(y + i), out + i);
  for (; i < count; ++i) narrow(y[i], out + i);
}

}  // namespace fs::FS_ISA
