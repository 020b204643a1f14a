// The attention kernels as the bindings call them.
#pragma once

#include <cstdint>

#include "isa.h"

namespace fs {

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

// q [T, N, D], pools [B, block, G, D] and out [T, N * D] whole; gate [T, N] with strided rows.
struct AttentionJob {
  const void* q;
  const void* gate;
  const void* k;
  const void* v;
  void* out;
  int64_t gate_stride, heads, groups, width;
  Places places;
  bool act_bf16;
};

}  // namespace fs

// A row sees `window` positions that end at itself, or all up to itself when window is 0.
FS_KERNEL(window_attention, (const AttentionJob& job, int64_t window), (job, window))
// A row sees its own region of 8 up to itself, and the regions ids [T, G, chosen] (-1: none).
FS_KERNEL(region_attention, (const AttentionJob& job, const int64_t* ids, int64_t chosen),
          (job, ids, chosen))
