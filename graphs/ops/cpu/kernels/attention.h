// The attention kernels as the bindings call them.
#pragma once

#include <cstdint>

#include "isa.h"

namespace fs {

constexpr int64_t kOctet = 8;  // positions that lie together in a pool

// Rows [T] of slots, and where a slot's positions lie: table [slots, columns] of blocks.
struct Places {
  const int64_t* slot;
  const int64_t* position;
  int64_t rows;
  const int64_t* table;
  int64_t columns;
  int64_t block;  // positions a block

  const int64_t* blocks(int64_t row) const { return table + slot[row] * columns; }
};

enum class Part : int64_t { keys, values };

// A pool [B, G, block / 8, 2, 8, D]: an octet's keys of one KV head, then its values, then those of
// the next octet. A chosen region is one stretch of memory, which walks the fewest pages.
struct PoolShape {
  int64_t groups, width, per_block;  // octets of a block

  int64_t part() const { return kOctet * width; }  // elements of an octet's keys, or values
  // Elements before an octet of a slot with these blocks.
  int64_t octet(const int64_t* blocks, int64_t octet, int64_t group) const {
    int64_t block = blocks[octet / per_block], at = octet % per_block;
    return ((block * groups + group) * per_block + at) * 2 * part();
  }
};

// q [T, N, D], the pool and out [T, N * D] whole; gate [T, N] with strided rows.
struct AttentionJob {
  const void* q;
  const void* gate;
  const void* pool;
  void* out;
  int64_t gate_stride, heads;
  PoolShape shape;
  Places places;
  bool act_bf16;
};

}  // namespace fs

// A row sees `window` positions that end at itself, or all up to itself when window is 0.
FS_KERNEL(window_attention, (const AttentionJob& job, int64_t window), (job, window))
// A row sees its own region of 8 up to itself, and the regions ids [T, G, chosen] (-1: none).
FS_KERNEL(region_attention, (const AttentionJob& job, const int64_t* ids, int64_t chosen),
          (job, ids, chosen))
