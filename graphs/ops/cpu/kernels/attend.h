// Attention of a few neighbouring rows of one slot to one KV head (architecture 3.5, 3.7).
//
// Keys come in octets: eight positions from a multiple of eight. All rows of a piece meet the same
// list of octets, and a mask says which keys each row sees; the keys are packed once for all of its
// query heads. Keeps true: a row's result is the same beside any other rows. Logits are one chain
// each; exponentials are added octet by octet, lane by lane; values are added in rising position,
// where a key that is not seen adds zero. What no row sees, which may be anything, leaves no trace.
#pragma once

#include <cmath>

#include "kernels/attention.h"
#include "kernels/scratch.h"
#include "kernels/words.h"

namespace fs::FS_ISA {

constexpr int64_t kBlockOctets = 8;  // octets packed at a time
constexpr int64_t kBlockKeys = kOctet * kBlockOctets;

struct AttentionPiece {
  int64_t begin, rows;  // rows of one slot
  int64_t group, head, heads;  // KV head, first of its query heads and how many
  const int64_t* octets;  // `count` in rising order; the masks of `padded` >= count, 0 at the end
  int64_t count, padded;
  const uint8_t* masks;  // [rows, padded]: bit i for key i of the octet; padded is even
};

inline int64_t padded_octets(int64_t count) { return count + count % 2; }

// Lanes without their bit become minus infinity.
inline V hide(V x, uint32_t bits) {
#if defined(__AVX512F__)
  return {_mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), (__mmask16)bits, x.v)};
#else
  float y[kLanes];
  store(x, y);
  for (int i = 0; i < kLanes; ++i) y[i] = bits >> i & 1 ? y[i] : -INFINITY;
  return load(y);
#endif
}

// Eight running sums; a vector is two octets, added one after the other.
struct OctetSum {
#if defined(__AVX2__)
  __m256 lanes = _mm256_setzero_ps();
#else
  float lanes[kOctet] = {};
#endif

  void add(V x) {
#if defined(__AVX512F__)
    lanes = _mm256_add_ps(lanes, _mm512_castps512_ps256(x.v));
    lanes = _mm256_add_ps(lanes, _mm512_extractf32x8_ps(x.v, 1));
#elif defined(__AVX2__)
    lanes = _mm256_add_ps(_mm256_add_ps(lanes, x.lo), x.hi);
#else
    for (int i = 0; i < kLanes; ++i) lanes[i % kOctet] += x.x[i];
#endif
  }
  float total() const {
    float x[kOctet];
    std::memcpy(x, &lanes, sizeof x);
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
  }
};

// Dot products to exponentials, packed as words in their place; returns the sum of the unrounded.
template <typename X>
float weigh(float* row, const uint8_t* mask, int64_t octets, float scale) {
  int64_t tiles = octets / 2;
  V top = splat(-INFINITY);
  for (int64_t t = 0; t < tiles; ++t) {
    uint32_t bits = mask[2 * t] | mask[2 * t + 1] << kOctet;
    V x = hide(mul(load(row + t * kLanes), splat(scale)), bits);
    store(x, row + t * kLanes);
    top = max(top, x);
  }
  V most = splat(largest(top));
  OctetSum total;
  for (int64_t t = 0; t < tiles; ++t) {
    V e = exp(sub(load(row + t * kLanes), most));
    total.add(e);
    // Narrower words are written behind the place where the next ones are read.
    store_packed<X>(e, (Packed<X>*)row + t * kLanes);
  }
  return total.total();
}

template <typename X>
class Attend {
 public:
  Attend(const AttentionJob& job, const AttentionPiece& piece)
      : job(job), piece(piece), queries(piece.rows * piece.heads),
        across((job.shape.width + kLanes - 1) / kLanes) {
    length = piece.padded * kOctet;
    int64_t depth = words<X>(job.shape.width);
    places = (int64_t*)scratch(Use::rows, (piece.padded * 2 + queries * depth) * sizeof(float));
    q = (float*)(places + piece.padded);
    packed = (float*)scratch(Use::weight, kBlockKeys * (depth + across * kLanes) * sizeof(float));
    logits = (float*)scratch(Use::partial, queries * length * sizeof(float));
    sums = (float*)scratch(Use::sums, queries * (across * kLanes + 1) * sizeof(float));
    totals = sums + queries * across * kLanes;
  }

  void run() {
    find();
    pack_queries();
    for (int64_t first = 0; first < piece.padded; first += kBlockOctets) dots(first);
    float scale = (float)(1 / std::sqrt((double)job.shape.width));
    for (int64_t i = 0; i < queries; ++i)
      totals[i] = weigh<X>(logits + i * length, piece.masks + i / piece.heads * piece.padded,
                           piece.padded, scale);
    for (int64_t first = 0; first < piece.padded; first += kBlockOctets) values(first);
    for (int64_t i = 0; i < queries; ++i) finish(i);
  }

 private:
  // Where a row's query head is in q and out.
  int64_t place(int64_t query) const {
    int64_t row = piece.begin + query / piece.heads;
    return row * job.heads + piece.head + query % piece.heads;
  }

  void pack_queries() {
    int64_t depth = words<X>(job.shape.width);
    for (int64_t i = 0; i < queries; ++i)
      pack_row((const X*)job.q + place(i) * job.shape.width, job.shape.width, q + i * depth);
  }

  // Where the octets begin in a pool, all at once: the table of a long context is not in the cache,
  // and what is waited for together takes no longer than one entry.
  void find() {
    const int64_t* blocks = job.places.blocks(piece.begin);
    for (int64_t i = 0; i < piece.padded; ++i) {
      int64_t id = piece.octets[i < piece.count ? i : piece.count - 1];
      places[i] = job.shape.octet(blocks, id, piece.group);
    }
    // Their pages, which those of a far context share with few others: walks to them overlap here.
    // Reads, because a fetch may be dropped when its page is not known.
    for (int64_t i = 0; i < piece.padded; ++i) {
      (void)*(const volatile X*)octet(Part::keys, i);
      (void)*(const volatile X*)(octet(Part::values, i) + job.shape.part() - 1);
    }
  }

  // The first key or value of octet number `index`; the others follow.
  const X* octet(Part part, int64_t index) const {
    return (const X*)job.pool + places[index] + (int64_t)part * job.shape.part();
  }

  // Octets of the block that begins at `first`.
  int64_t octets(int64_t first) const {
    return piece.padded - first < kBlockOctets ? piece.padded - first : kBlockOctets;
  }

  // The keys or values of the block that begins at `first`, octets in turn; none past the end.
  Ahead ahead(Part part, int64_t first) const {
    Ahead next;
    next.bytes = job.shape.width * sizeof(X);
    if (first >= piece.padded) return next;
    for (int64_t o = 0; o < octets(first); ++o) {
      const X* from = octet(part, first + o);
      for (int i = 0; i < kOctet; ++i)
        next.rows[i * octets(first) + o] = (const char*)(from + i * job.shape.width);
    }
    next.count = octets(first) * kOctet;
    return next;
  }

  void dots(int64_t first) {
    int64_t depth = words<X>(job.shape.width);
    int64_t after = first + kBlockOctets;
    Ahead next = after < piece.padded ? ahead(Part::keys, after) : ahead(Part::values, 0);
    for (int64_t t = 0; t < octets(first); t += 2) {
      const X* rows[kLanes];
      for (int i = 0; i < kLanes; ++i)
        rows[i] = octet(Part::keys, first + t + i / kOctet) + i % kOctet * job.shape.width;
      pack_across(rows, job.shape.width, packed + t * kOctet, kBlockKeys);
    }
    multiply<X>({.a = q, .a_stride = depth, .rows = queries,
                 .b = packed, .b_stride = kBlockKeys, .columns = octets(first) / 2, .steps = depth,
                 .c = logits + first * kOctet, .c_stride = length, .keep = false,
                 .ahead = &next});
  }

  void values(int64_t first) {
    int64_t at = 0;
    Ahead next = ahead(Part::values, first + kBlockOctets);
    for (int64_t o = first; o < first + octets(first); ++o) {
      uint32_t seen = 0;
      for (int64_t r = 0; r < piece.rows; ++r) seen |= piece.masks[r * piece.padded + o];
      const X* from = octet(Part::values, o);
      for (int i = 0; i < kOctet; i += kPerWord<X>) {
        float* to = packed + at++ * across * kLanes;
        const X* rows[kPerWord<X>];
        // What no row sees may be anything, so a key that one sees stands in, with weight zero.
        int64_t some = 0;
        while (some < kPerWord<X> && !(seen >> (i + some) & 1)) ++some;
        if (some == kPerWord<X>) {
          std::memset(to, 0, across * kLanes * sizeof(float));
          continue;
        }
        for (int64_t j = 0; j < kPerWord<X>; ++j)
          rows[j] = from + (seen >> (i + j) & 1 ? i + j : i + some) * job.shape.width;
        pack_along<X>(rows, job.shape.width, to);
      }
    }
    multiply<X>({.a = logits + first * kOctet / kPerWord<X>, .a_stride = length, .rows = queries,
                 .b = packed, .b_stride = across * kLanes, .columns = across,
                 .steps = octets(first) * kOctet / kPerWord<X>,
                 .c = sums, .c_stride = across * kLanes, .keep = first > 0, .ahead = &next});
  }

  void finish(int64_t query) {
    int64_t row = piece.begin + query / piece.heads, head = piece.head + query % piece.heads;
    float g = widen(((const X*)job.gate)[row * job.gate_stride + head]);
    V open = splat(rounded<X>(1 / (1 + exp(-g)))), total = splat(totals[query]);
    X* out = (X*)job.out + place(query) * job.shape.width;
    for (int64_t d = 0; d < job.shape.width; d += kLanes) {
      X o[kLanes];
      store(div(load(sums + query * across * kLanes + d), total), o);
      store(mul(load(o), open), o);
      int64_t left = job.shape.width - d < kLanes ? job.shape.width - d : kLanes;
      std::memcpy(out + d, o, left * sizeof(X));
    }
  }

  const AttentionJob& job;
  const AttentionPiece& piece;
  int64_t queries, across;  // query rows; vectors of a value
  int64_t length;           // logits of a query
  int64_t* places;          // elements before each octet, [padded]
  float *q, *packed, *logits, *sums, *totals;
};

}  // namespace fs::FS_ISA
