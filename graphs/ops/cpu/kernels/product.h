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

// The order of a packed row's elements: as they are, or woven for nvfp4 (woven.h).
enum class Order : int { plain, woven, count };
constexpr int64_t kKnot = 256;  // elements that are woven together
constexpr int64_t kSharedBlocks = 8;  // two rows of weights share a last knot of so many blocks

// The order in which products with m read rows.
template <typename X>
inline Order order_of(const Matrix& m) {
  return sizeof(Packed<X>) == 2 && m.format == Format::nvfp4 ? Order::woven : Order::plain;
}

template <typename X>
struct PackedRows {
  Packed<X>* data = nullptr;
  int64_t rows = 0, in = 0;
  Order order = Order::plain;
  int64_t groups = 0, least = 0, larger = 0;  // rows of a group; the first have one more
  int64_t steps = 0;

  PackedRows() = default;
  PackedRows(Packed<X>* data, int64_t rows, int64_t in, Order order)
      : data(data), rows(rows), in(in), order(order), groups((rows + kRows - 1) / kRows) {
    if (groups > 1) least = rows / groups, larger = rows % groups;
    else least = rows;
    steps = (in + unit() - 1) / unit() * (unit() / kStep<X>);
  }

  // Elements that end a row together, the last of them zeros where the row is shorter.
  int64_t unit() const { return order == Order::woven ? kKnot : kStep<X>; }
  int64_t first(int64_t group) const { return group * least + (group < larger ? group : larger); }
  int64_t size(int64_t group) const { return least + (group < larger); }
  Packed<X>* group(int64_t g) const { return data + first(g) * steps * kStep<X>; }
  int64_t elements() const { return rows * steps * kStep<X>; }

  // Stores elements [k, k + 16) of row i of group g, for a k that is a multiple of sixteen.
  void put(int64_t g, int64_t i, int64_t k, V values) const {
    if (order == Order::plain) {
      Packed<X>* step = group(g) + (k / kStep<X> * size(g) + i) * kStep<X>;
      store_packed<X>(values, step + k % kStep<X>);
      return;
    }
    // Elements m and m + 4 of each half of the block are neighbours, in step 4 * half + m.
    Packed<X> block[kLanes], pairs[kLanes];
    store_packed<X>(values, block);
    for (int j = 0; j < kLanes; ++j) pairs[j] = block[j / 8 * 8 + j % 2 * 4 + j / 2 % 4];
    Packed<X>* to = group(g) + (k / kKnot * (kKnot / kStep<X>) * size(g) + i) * kStep<X>;
    to += k % kKnot / 8;
    int64_t last = in % kKnot;
    bool twice = k >= in - last && last <= kSharedBlocks * kLanes;  // once for each row that shares
    for (int step = 0; step < 8; ++step, to += size(g) * kStep<X>) {
      std::memcpy(to, pairs + 2 * step, 2 * sizeof(Packed<X>));
      if (twice) std::memcpy(to + kKnot / 16, pairs + 2 * step, 2 * sizeof(Packed<X>));
    }
  }
  // Zeros in the last, incomplete unit of every row, before what there is of it is put.
  void clear_end() const {
    if (in % unit() == 0) return;
    for (int64_t g = 0; g < groups; ++g) {
      int64_t end = steps * size(g) * kStep<X>, last = unit() * size(g);
      std::memset(group(g) + end - last, 0, last * sizeof(Packed<X>));
    }
  }
};

// Packs all groups; row(i) is the address of row i of x.
template <typename X, typename T, typename RowAt>
void pack_rows(const PackedRows<X>& x, const RowAt& row) {
  x.clear_end();
  bool plain = x.order == Order::plain;
  int64_t at_once = plain ? kStep<X> : kLanes, whole = x.in / at_once * at_once;
  for (int64_t g = 0; g < x.groups; ++g) {
    int64_t size = x.size(g);
    for (int64_t i = 0; i < size; ++i) {
      const T* from = row(x.first(g) + i);
      Packed<X>* to = x.group(g) + i * kStep<X>;
      for (int64_t k = 0; k < whole; k += at_once) {
        if (plain) store_operand(operand_of<X>(from + k), to + k * size);
        else x.put(g, i, k, load(from + k));
      }
      for (int64_t k = whole; k < x.in; k += kLanes) {
        int64_t there = x.in - k < kLanes ? x.in - k : kLanes;
        x.put(g, i, k, load_part(from + k, there));
      }
    }
  }
}

// Where a kernel's input goes, for each order its own place.
template <typename X>
Packed<X>* input_scratch(const PackedRows<X>& x) {
  Use use = x.order == Order::plain ? Use::rows : Use::woven;
  return (Packed<X>*)scratch(use, x.elements() * sizeof(Packed<X>));
}

// The rows of x in every order that products with the matrices will ask for.
template <typename X>
struct Inputs {
  PackedRows<X> in_order[static_cast<int>(Order::count)];

  const PackedRows<X>& of(const Matrix& m) const { return in_order[(int)order_of<X>(m)]; }
};

// y[row * ys + out - begin] = x[row] . m[out] for outs [begin, end), at most kBlock of them. A row
// of y has kBlock places, of which those after the last out are written too. `then`: the matrix
// that this thread reads after m, if any; its beginning is fetched in time.
template <typename X>
void product(const PackedRows<X>& x, const Matrix& m, const Matrix* then, int64_t begin,
             int64_t end, float* y, int64_t ys);

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
