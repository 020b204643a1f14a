// Sliding-window and region-sparse attention: which rows and octets make a piece.
//
// A piece is a run of neighbouring rows of one slot, one KV head and, when there are few pieces, a
// part of its query heads. How rows are grouped decides speed alone (attend.h).
#include "kernels/attention.h"

#include "kernels/attend.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

constexpr int64_t kRowsAtOnce = 8;
constexpr int64_t kLogitBytes = 1 << 20;  // of a piece; a row's own may be more

// The runs of rows, each times KV head times part of the query heads.
struct Pieces {
  int64_t runs, groups, parts, heads;

  // Enough parts that every thread gets a piece.
  Pieces(const AttentionJob& job, int64_t runs)
      : runs(runs), groups(job.shape.groups), heads(job.heads / job.shape.groups) {
    int64_t whole = runs * groups, threads = pool_threads();
    parts = whole < threads ? (threads + whole - 1) / whole : 1;
    if (parts > heads) parts = heads;
  }
  int64_t count() const { return runs * groups * parts; }
  int64_t run(int64_t index) const { return index / (groups * parts); }
  AttentionPiece piece(int64_t index) const {
    int64_t part = index % parts, group = index / parts % groups;
    int64_t first = part * heads / parts, end = (part + 1) * heads / parts;
    return {.begin = 0, .rows = 0, .group = group, .head = group * heads + first,
            .heads = end - first, .octets = nullptr, .count = 0, .padded = 0, .masks = nullptr};
  }
};

template <typename T>
T* shared(Use use, int64_t count) {
  return (T*)scratch(use, count * sizeof(T));
}

// Ends of runs of at most `limit(row)` rows of one slot, in positions that rise without a gap.
template <typename Limit>
int64_t cut(const Places& places, int64_t* ends, const Limit& limit) {
  int64_t runs = 0;
  for (int64_t row = 0; row < places.rows;) {
    int64_t end = row + 1, most = row + limit(row);
    while (end < places.rows && end < most && places.slot[end] == places.slot[row] &&
           places.position[end] == places.position[end - 1] + 1)
      ++end;
    ends[runs++] = row = end;
  }
  return runs;
}

// Bits of the keys from `first` to `last` in the octet at `start`.
inline uint8_t between(int64_t start, int64_t first, int64_t last) {
  if (last < start || first >= start + kOctet) return 0;
  uint32_t bits = 0xff;
  if (first > start) bits &= 0xff << (first - start);
  if (last < start + kOctet - 1) bits &= 0xff >> (start + kOctet - 1 - last);
  return static_cast<uint8_t>(bits);
}

template <typename X>
void attend(const AttentionJob& job, const AttentionPiece& piece) {
  Attend<X>(job, piece).run();
}

void attend(const AttentionJob& job, const AttentionPiece& piece) {
  job.act_bf16 ? attend<bf16>(job, piece) : attend<float>(job, piece);
}

// The octets of a window, and what of them each row of the piece sees.
void window_piece(const AttentionJob& job, AttentionPiece piece, int64_t window) {
  const int64_t* position = job.places.position + piece.begin;
  auto oldest = [&](int64_t row) {
    int64_t first = window ? position[row] - window + 1 : 0;
    return first > 0 ? first : 0;
  };
  int64_t first = oldest(0) / kOctet, last = position[piece.rows - 1] / kOctet;
  piece.count = last - first + 1;
  piece.padded = padded_octets(piece.count);
  auto* octets = shared<int64_t>(Use::act, piece.count + piece.rows * piece.padded);
  auto* masks = (uint8_t*)(octets + piece.count);
  for (int64_t o = 0; o < piece.count; ++o) octets[o] = first + o;
  for (int64_t r = 0; r < piece.rows; ++r)
    for (int64_t o = 0; o < piece.padded; ++o)
      masks[r * piece.padded + o] = between((first + o) * kOctet, oldest(r), position[r]);
  piece.octets = octets;
  piece.masks = masks;
  attend(job, piece);
}

// Rising lists a and b as one; returns its length.
int64_t merge(const int64_t* a, int64_t an, const int64_t* b, int64_t bn, int64_t* out) {
  int64_t n = 0, i = 0, j = 0;
  while (i < an || j < bn) {
    int64_t next = j == bn || (i < an && a[i] < b[j]) ? a[i] : b[j];
    i += i < an && a[i] == next;
    j += j < bn && b[j] == next;
    out[n++] = next;
  }
  return n;
}

// A row's octets: its chosen regions, then its own.
int64_t octets_of(const int64_t* ids, int64_t chosen, int64_t position, int64_t* out) {
  int64_t n = 0;
  while (n < chosen && ids[n] >= 0) {
    out[n] = ids[n];
    ++n;
  }
  out[n] = position / kOctet;
  return n + 1;
}

struct Lists {
  int64_t *row, *merged, *spare;
  uint8_t* masks;

  Lists(int64_t longest, int64_t rows) {
    int64_t bytes = rows * (rows * longest + 1);
    row = shared<int64_t>(Use::act, longest * (2 * rows + 1) + bytes / 8 + 1);
    merged = row + longest;
    spare = merged + rows * longest;
    masks = (uint8_t*)(spare + rows * longest);
  }
};

// Rows that chose nearly the same regions share them; others go alone.
void region_piece(const AttentionJob& job, AttentionPiece piece, const int64_t* ids,
                  int64_t chosen) {
  Lists lists(chosen + 1, piece.rows);
  int64_t end = piece.begin + piece.rows;
  auto list = [&](int64_t row) {
    return octets_of(ids + (row * job.shape.groups + piece.group) * chosen, chosen,
                     job.places.position[row], lists.row);
  };
  while (piece.begin < end) {
    int64_t own = list(piece.begin);
    int64_t count = merge(lists.row, own, nullptr, 0, lists.merged), total = own;
    for (piece.rows = 1; piece.begin + piece.rows < end; ++piece.rows) {
      own = list(piece.begin + piece.rows);
      int64_t both = merge(lists.merged, count, lists.row, own, lists.spare);
      // Keys computed in vain may cost as much as packing them once more would.
      if (both * (piece.rows + 1) * 4 > (total + own) * 5) break;
      total += own;
      count = both;
      int64_t* swap = lists.merged;
      lists.merged = lists.spare;
      lists.spare = swap;
    }
    piece.octets = lists.merged;
    piece.count = count;
    piece.padded = padded_octets(count);
    for (int64_t r = 0; r < piece.rows; ++r) {
      int64_t left = list(piece.begin + r), i = 0, position = job.places.position[piece.begin + r];
      for (int64_t o = 0; o < piece.padded; ++o) {
        bool chose = i < left && o < count && lists.row[i] == lists.merged[o];
        lists.masks[r * piece.padded + o] =
            chose ? between(lists.merged[o] * kOctet, 0, position) : 0;
        i += chose;
      }
    }
    piece.masks = lists.masks;
    attend(job, piece);
    piece.begin += piece.rows;
  }
}

template <typename Limit, typename Body>
void each_piece(const AttentionJob& job, const Limit& limit, const Body& body) {
  auto* ends = shared<int64_t>(Use::results, job.places.rows);
  Pieces pieces(job, cut(job.places, ends, limit));
  parallel_for(pieces.count(), 1, [&](int64_t index, int64_t) {
    AttentionPiece piece = pieces.piece(index);
    int64_t run = pieces.run(index);
    piece.begin = run ? ends[run - 1] : 0;
    piece.rows = ends[run] - piece.begin;
    body(piece);
  });
}

// Rows whose logits over `keys` keys fit the budget.
int64_t rows_at_once(const AttentionJob& job, int64_t keys) {
  int64_t rows = kLogitBytes / (job.heads / job.shape.groups * keys * (int64_t)sizeof(float));
  return rows < 1 ? 1 : rows < kRowsAtOnce ? rows : kRowsAtOnce;
}

}  // namespace

void window_attention(const AttentionJob& job, int64_t window) {
  auto limit = [&](int64_t row) {
    return rows_at_once(job, window ? window : job.places.position[row] + 1);
  };
  each_piece(job, limit, [&](const AttentionPiece& p) { window_piece(job, p, window); });
}

void region_attention(const AttentionJob& job, const int64_t* ids, int64_t chosen) {
  int64_t rows = rows_at_once(job, (chosen + 1) * kOctet);
  auto limit = [&](int64_t) { return rows; };
  each_piece(job, limit, [&](const AttentionPiece& p) { region_piece(job, p, ids, chosen); });
}

}  // namespace fs::FS_ISA
