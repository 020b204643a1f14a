// The inner loops of a product: tiles of kOuts weight rows and at most kRows activation rows.
//
// Few rows: the weight is decoded in registers and read once, at the speed of memory. Many: a block
// of it is decoded into a buffer, which every group of rows reads from the cache. Keeps true: either
// way one output element is the same sequence of operations.
#pragma once

#include "kernels/decode.h"
#include "kernels/product.h"

namespace fs::FS_ISA {

// kOuts weight rows in a buffer, step by step.
template <typename X>
struct BufferRows {
  const Packed<X>* data;
  Operand<X> at(int i, int64_t s) const {
    return load_operand<X>(data + (s * kOuts + i) * kStep<X>);
  }
};

template <typename X, int R, typename Rows>
inline void tile_step(const Packed<X>* x, const Rows& w, int64_t s, V (&acc)[R][kOuts]) {
  Operand<X> b[kOuts];
  for (int o = 0; o < kOuts; ++o) b[o] = w.at(o, s);
  for (int r = 0; r < R; ++r) {
    Operand<X> a = load_operand<X>(x + (s * R + r) * kStep<X>);
    for (int o = 0; o < kOuts; ++o) acc[r][o] = mac(acc[r][o], b[o], a);
  }
}

template <int R>
inline void tile_end(const V (&acc)[R][kOuts], float factor, int64_t outs, float* y, int64_t ys) {
  for (int r = 0; r < R; ++r) {
    float out[kOuts];
    sums<kOuts>(acc[r], out);
    for (int64_t o = 0; o < outs; ++o) y[r * ys + o] = out[o] * factor;
  }
}

// One group of R rows, the weight decoded on its way.
template <typename X, int R, typename Rows>
void direct(const Packed<X>* x, const Matrix& m, int64_t begin, int64_t end, float* y, int64_t ys) {
  int64_t whole = m.in / kStep<X>, rest = m.in % kStep<X>;
  for (int64_t out = begin; out < end; out += kOuts) {
    Rows w(m, out);
    V acc[R][kOuts];
    for (auto& row : acc)
      for (V& a : row) a = splat(0);
    for (int64_t s = 0; s < whole; ++s) {
      w.ahead(s);
      tile_step<X, R>(x, w, s, acc);
    }
    if (rest) {
      for (int o = 0; o < kOuts; ++o) {
        Operand<X> b = w.part(o, whole, rest);
        for (int r = 0; r < R; ++r) {
          Operand<X> a = load_operand<X>(x + (whole * R + r) * kStep<X>);
          acc[r][o] = mac(acc[r][o], b, a);
        }
      }
    }
    tile_end<R>(acc, m.factor, end - out < kOuts ? end - out : kOuts, y + out - begin, ys);
  }
}

constexpr int64_t kChunk = 40;        // steps whose operands stay in the first cache
constexpr int64_t kGroupsAtOnce = 8;  // groups whose sums wait in the second cache

template <typename X, typename Rows>
void fill(const Matrix& m, int64_t begin, int64_t end, Packed<X>* to) {
  int64_t whole = m.in / kStep<X>, rest = m.in % kStep<X>;
  for (int64_t out = begin; out < end; out += kOuts) {
    Rows w(m, out);
    for (int64_t s = 0; s < whole; ++s)
      for (int i = 0; i < kOuts; ++i, to += kStep<X>) store_operand(w.at(i, s), to);
    for (int i = 0; rest && i < kOuts; ++i, to += kStep<X>)
      store_operand(w.part(i, whole, rest), to);
  }
}

// Steps [first, last) of one group against one buffered tile; the sums so far are in `saved`.
template <typename X, int R>
void tile(const Packed<X>* x, const Packed<X>* w, int64_t first, int64_t last, V* saved) {
  V acc[R][kOuts];
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < kOuts; ++o) acc[r][o] = first ? saved[r * kOuts + o] : splat(0);
  BufferRows<X> rows{w};
  for (int64_t s = first; s < last; ++s) tile_step<X, R>(x, rows, s, acc);
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < kOuts; ++o) saved[r * kOuts + o] = acc[r][o];
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

template <typename X>
void buffered(const PackedRows<X>& x, const Matrix& m, int64_t begin, int64_t end,
              const Packed<X>* w, float* y, int64_t ys) {
  int64_t steps = x.steps(), tiles = (end - begin + kOuts - 1) / kOuts, groups = x.groups();
  constexpr int64_t kTile = kRows * kOuts;
  V* saved = (V*)scratch(Use::partial, kGroupsAtOnce * tiles * kTile * sizeof(V));
  for (int64_t g0 = 0; g0 < groups; g0 += kGroupsAtOnce) {
    int64_t g1 = g0 + kGroupsAtOnce < groups ? g0 + kGroupsAtOnce : groups;
    for (int64_t first = 0; first < steps; first += kChunk) {
      int64_t last = steps - first < 2 * kChunk ? steps : first + kChunk;
      for (int64_t g = g0; g < g1; ++g) {
        int64_t row = x.first(g);
        with_count<kRows>(x.first(g + 1) - row, [&](auto count) {
          constexpr int R = decltype(count)::value;
          for (int64_t t = 0; t < tiles; ++t) {
            V* sums = saved + ((g - g0) * tiles + t) * kTile;
            tile<X, R>(x.group(g), w + t * steps * kOuts * kStep<X>, first, last, sums);
            if (last < steps) continue;
            int64_t out = begin + t * kOuts, outs = end - out < kOuts ? end - out : kOuts;
            tile_end<R>(*(const V(*)[R][kOuts])sums, m.factor, outs, y + row * ys + out - begin, ys);
          }
        });
      }
      if (last == steps) break;
    }
  }
}

}  // namespace fs::FS_ISA
