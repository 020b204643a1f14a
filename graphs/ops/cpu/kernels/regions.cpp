// Scores of past regions and the choice among them (architecture 4.1, 4.3, 4.4).
//
// A run is up to kRowsAtOnce neighbouring rows of one slot: each summary is read and decoded once
// for all of their heads. Keeps true: a score is a fixed sequence of operations on its row and its
// summary; rows whose past fits are given all of it without a look at scores.
#include "kernels/dots.h"
#include "kernels/e4m3.h"
#include "kernels/head.h"
#include "kernels/indexer.h"
#include "kernels/scratch.h"
#include "kernels/select.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

constexpr int64_t kRowsAtOnce = 8;
constexpr int64_t kTile = 2 * kLanes;  // regions spread at a time: half the first cache
constexpr int64_t kTilesAtOnce = 16;
constexpr int64_t kHeadsAtOnce = 16;

struct Run {
  int64_t begin, rows, longest;  // regions of the row with the longest past
  float* q;                      // [rows * heads, words]
  float* w;                      // [rows * heads]
  float* scores;                 // [rows, groups, longest rounded up to kTile]
  int64_t stride;                // of scores
};

// A head of q: normed, rotated and rounded to e4m3, as words.
template <typename X>
void query(const RegionsJob& job, const float* norm, int64_t row, int64_t head, float* y,
           float* out) {
  const X* x = (const X*)job.q + (row * job.heads + head) * job.width;
  bf16* values = (bf16*)(y + job.width);
  store_head(widened(x, job.width, y), job.width, values);  // a product in f32 is rounded here
  rms_norm_head<bf16>(values, norm, job.width, job.eps, y);
  rotate_head(y, job.rotary + row * 2 * job.half, job.half);
  for (int64_t d = 0; d < job.width; ++d) y[d] = round_e4m3(rounded<bf16>(y[d]));
  store_head(y, job.width, values);
  spread_head(values, job.width, out);
}

template <typename X>
void queries(const RegionsJob& job, const Run& run) {
  float* norm = (float*)scratch(Use::act, job.width * sizeof(float));
  round_vector(job.norm.data, job.norm.bf16, job.width, norm);
  float share = (float)(1 / std::sqrt((double)(job.heads / job.groups)));
  parallel_for(run.rows * job.heads, kHeadsAtOnce, [&](int64_t begin, int64_t end) {
    float* y = (float*)scratch(Use::rows, 2 * job.width * sizeof(float));
    for (int64_t i = begin; i < end; ++i) {
      int64_t row = run.begin + i / job.heads, head = i % job.heads;
      query<X>(job, norm, row, head, y, run.q + i * spread_words(job.width));
      run.w[i] = rounded<bf16>(widen(((const X*)job.w)[row * job.heads + head])) * share;
    }
  });
}

// The scores of a tile of regions, from the dot products [rows * heads, kTile] of its summaries.
void weigh(const RegionsJob& job, const Run& run, int64_t first, const float* dots) {
  int64_t per_group = job.heads / job.groups;
  for (int64_t i = 0; i < run.rows * job.groups; ++i) {
    const float *w = run.w + i * per_group, *dot = dots + i * per_group * kTile;
    for (int64_t at = 0; at < kTile; at += kLanes) {  // the last addition turns -0 to 0
      V score = splat(0);
      for (int64_t h = 0; h < per_group; ++h) {
        V product = mul(splat(w[h]), max(splat(0), load(dot + h * kTile + at)));
        score = h ? add(score, product) : product;
      }
      store(add(score, splat(0)), run.scores + i * run.stride + first + at);
    }
  }
}

// The summaries of a tile's regions; past the last region, that one again.
void locate(const RegionsJob& job, const Run& run, int64_t tile, const uint8_t** rows) {
  int64_t per_block = job.regions_a_block(), first = tile * kTile;
  int64_t block = first / per_block, at = first % per_block;  // once: a division is slow
  for (int64_t i = 0; i < kTile; ++i) {
    if (first + i >= run.longest) {
      rows[i] = rows[i - 1];
      continue;
    }
    int64_t place = job.places.blocks(run.begin)[block] * per_block + at;
    rows[i] = job.summary + place * job.width;
    if (++at == per_block) at = 0, ++block;
  }
}

void score(const RegionsJob& job, const Run& run) {
  int64_t words = spread_words(job.width), count = run.rows * job.heads;
  int64_t tiles = run.stride / kTile;
  parallel_for(tiles, kTilesAtOnce, [&](int64_t begin, int64_t end) {
    float* spread = (float*)scratch(Use::weight, words * kTile * sizeof(float));
    float* found = (float*)scratch(Use::sums, (count + kHeadTile - 1) * kTile * sizeof(float));
    const uint8_t *rows[kTile], *next[kTile];
    locate(job, run, begin, next);
    for (int64_t tile = begin; tile < end; ++tile) {
      std::memcpy(rows, next, sizeof rows);
      if (tile + 1 < tiles) locate(job, run, tile + 1, next);
      for (int64_t i = 0; i < kTile; ++i) {
        for (int64_t at = 0; at < job.width; at += 64) __builtin_prefetch(next[i] + at, 0, 2);
        spread_codes(rows[i], job.width, spread + i * words);
      }
      dots(run.q, count, spread, kTile, words, found, kTile);
      weigh(job, run, tile * kTile, found);
    }
  });
}

void choose(const RegionsJob& job, const Run& run) {
  parallel_for(run.rows * job.groups, 1, [&](int64_t i, int64_t) {
    int64_t row = run.begin + i / job.groups, room = Best::capacity(job.kept);
    auto* held = (uint64_t*)scratch(Use::partial, 2 * room * sizeof(uint64_t));
    Best best{.kept = job.kept, .held = held, .spare = held + room};
    best.run(run.scores + i * run.stride, job.past(row),
             job.out + (row * job.groups + i % job.groups) * job.kept);
  });
}

void score_and_choose(const RegionsJob& job, Run run) {
  int64_t count = run.rows * job.heads, words = spread_words(job.width);
  run.longest = 0;
  for (int64_t r = run.begin; r < run.begin + run.rows; ++r)
    if (job.past(r) > run.longest) run.longest = job.past(r);
  run.stride = (run.longest + kTile - 1) / kTile * kTile;
  int64_t floats = count * (words + 1) + run.rows * job.groups * run.stride;
  run.q = (float*)scratch(Use::results, floats * sizeof(float));
  run.w = run.q + count * words;
  run.scores = run.w + count;
  job.act_bf16 ? queries<bf16>(job, run) : queries<float>(job, run);
  score(job, run);
  choose(job, run);
}

void take_all(const RegionsJob& job, int64_t row) {
  int64_t past = job.past(row), *out = job.out + row * job.groups * job.kept;
  for (int64_t id = 0; id < job.kept; ++id) out[id] = id < past ? id : -1;
  for (int64_t group = 1; group < job.groups; ++group)
    std::memcpy(out + group * job.kept, out, job.kept * sizeof(int64_t));
}

}  // namespace

void select_regions(const RegionsJob& job) {
  const Places& at = job.places;
  for (int64_t row = 0; row < at.rows;) {
    if (job.past(row) <= job.kept) {
      take_all(job, row++);
      continue;
    }
    int64_t end = row + 1;
    while (end < at.rows && end < row + kRowsAtOnce && at.slot[end] == at.slot[row] &&
           job.past(end) > job.kept)
      ++end;
    score_and_choose(job, {.begin = row, .rows = end - row});
    row = end;
  }
}

void dot_products(int64_t rows, int64_t width, int64_t regions) {
  int64_t words = spread_words(width), tiles = (regions + kTile - 1) / kTile;
  parallel_for(tiles, kTilesAtOnce, [&](int64_t begin, int64_t end) {
    int64_t floats = words * (kTile + rows);
    float* spread = (float*)scratch(Use::weight, floats * sizeof(float));
    float* found = (float*)scratch(Use::sums, (rows + kHeadTile - 1) * kTile * sizeof(float));
    std::memset(spread, 0, floats * sizeof(float));
    for (int64_t tile = begin; tile < end; ++tile)
      dots(spread + words * kTile, rows, spread, kTile, words, found, kTile);
  });
}

}  // namespace fs::FS_ISA
