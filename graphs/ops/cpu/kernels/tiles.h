// The inner loops of a product: tiles of kOuts weight rows and at most kRows activation rows.
//
// Few rows: the weight is decoded in registers and read once, at the speed of memory. Many: a tile
// of it is decoded into a buffer, which every group of rows reads from the cache. Keeps true:
// either way one output element is the same sequence of operations.
#pragma once

#include "kernels/decode.h"
#include "kernels/product.h"

namespace fs::FS_ISA {

// kOuts weight rows in a buffer, step by step.
template <typename X>
struct BufferRows {
  static constexpr bool kStreams = false;
  const Packed<X>* data;
  Operand<X> at(int i, int64_t s) const {
    return load_operand<X>(data + (s * kOuts + i) * kStep<X>);
  }
  Operand<X> part(int i, int64_t s, int64_t) const { return at(i, s); }
  void ahead(int64_t) const {}
};

template <int R>
FS_INLINE void clear(V (&acc)[R][kOuts]) {
#pragma GCC unroll 8
  for (auto& row : acc)
    for (V& a : row) a = splat(0);
}

// The last, incomplete step of a tile, and the sums.
template <typename X, int R, typename Rows>
FS_INLINE void finish(const Packed<X>* x, const Rows& w, int64_t whole, int64_t rest, float factor,
                      float* y, int64_t ys, V (&acc)[R][kOuts]) {
  if (rest) {
#pragma GCC unroll 8
    for (int o = 0; o < kOuts; ++o) {
      Operand<X> b = w.part(o, whole, rest);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        acc[r][o] = mac(acc[r][o], b, load_operand<X>(x + (whole * R + r) * kStep<X>));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sums<kOuts>(acc[r], factor, y + r * ys);
}

// One group of R rows times the kOuts rows of w, step by step: `whole` steps and `rest` elements.
// `first` of the groups that read w, which fetches what comes later.
template <typename X, int R, typename Rows>
void tile(const Packed<X>* x, const Rows& w, bool first, int64_t whole, int64_t rest, float factor,
          float* y, int64_t ys) {
  V acc[R][kOuts];
  clear(acc);
  for (int64_t s = 0; s < whole; ++s) {
    if (first) w.ahead(s);
    Operand<X> b[kOuts];
#pragma GCC unroll 8
    for (int o = 0; o < kOuts; ++o) b[o] = w.at(o, s);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Operand<X> a = load_operand<X>(x + (s * R + r) * kStep<X>);
      for (int o = 0; o < kOuts; ++o) acc[r][o] = mac(acc[r][o], b[o], a);
    }
  }
  finish<X, R>(x, w, whole, rest, factor, y, ys, acc);
}

// The same, weight row after weight row, as much of each in its turn as activations leave room for
// in the first cache: memory is read nearly in its order, which is faster. With one activation the
// processor itself runs far ahead, but not into another matrix; with more of them what the next
// turn reads is fetched.
template <typename X, int R, typename Rows>
void stream(const Packed<X>* x, const Rows& w, int64_t whole, int64_t rest, float factor, float* y,
            int64_t ys) {
  V acc[R][kOuts];
  clear(acc);
  constexpr int64_t kMost = (R == 1 ? 32 : 12) * 1024 / (R * 64);  // steps
  int64_t turns = (whole + kMost - 1) / kMost;
  int64_t turn = turns > 1 ? (whole + turns - 1) / turns : whole;
  for (int64_t first = 0; first < whole; first += turn) {
    int64_t end = first + turn < whole ? first + turn : whole;
    bool last = end == whole, fetches = R > 1 || (last && w.distance.beyond);
    int64_t ahead = last ? w.distance.weight - first * Rows::kStepBytes : turn * Rows::kStepBytes;
#pragma GCC unroll 8
    for (int o = 0; o < kOuts; ++o) {
      V row[R];
      for (int r = 0; r < R; ++r) row[r] = acc[r][o];
      for (int64_t s = first; s < end; ++s) {
        if (fetches) prefetch(w.row[o] + s * kStep<X>, ahead);
        Operand<X> b = w.at(o, s);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
          row[r] = mac(row[r], b, load_operand<X>(x + (s * R + r) * kStep<X>));
      }
      for (int r = 0; r < R; ++r) acc[r][o] = row[r];
    }
  }
  finish<X, R>(x, w, whole, rest, factor, y, ys, acc);
}

// Calls body with Count<R> for R = rows, in 1..most.
template <int R>
struct Count {
  static constexpr int value = R;
};
template <int most, int R = 1, typename Body>
inline void with_count(int64_t rows, const Body& body) {
  if constexpr (R < most) {
    if (rows != R) return with_count<most, R + 1>(rows, body);
  }
  body(Count<R>{});
}

// Groups [first, last) times one tile of weight rows.
template <typename X, typename Rows>
inline void groups_tile(const PackedRows<X>& x, int64_t first, int64_t last, const Rows& w,
                        int64_t whole, int64_t rest, float factor, float* y, int64_t ys) {
  for (int64_t g = first; g < last; ++g) {
    int64_t row = x.first(g), rows = x.first(g + 1) - row;
    with_count<kRows>(rows, [&](auto count) {
      constexpr int R = decltype(count)::value;
      if constexpr (Rows::kStreams) {
        if (x.groups == 1)
          return stream<X, R>(x.group(g), w, whole, rest, factor, y + row * ys, ys);
      }
      tile<X, R>(x.group(g), w, g == first, whole, rest, factor, y + row * ys, ys);
    });
  }
}

// kOuts rows decoded into a buffer.
template <typename X, typename Rows>
void fill(const Rows& w, int64_t whole, int64_t rest, Packed<X>* to) {
  for (int64_t s = 0; s < whole; ++s) {
    w.ahead(s);
    for (int i = 0; i < kOuts; ++i, to += kStep<X>) store_operand(w.at(i, s), to);
  }
  for (int i = 0; rest && i < kOuts; ++i, to += kStep<X>) store_operand(w.part(i, whole, rest), to);
}

}  // namespace fs::FS_ISA
