// Draws one token a row, row by row: the rules, the cut of the filters, the race of what it leaves.
//
// Keeps true: a row is worked out by one thread from its own logits and its entry alone, so neither
// its neighbours nor the number of threads change a bit of it.
#include "kernels/sample.h"

#include "kernels/sample_cut.h"
#include "kernels/sample_rules.h"
#include "pool.h"

namespace fs::FS_ISA {
namespace {

using namespace sampling;

constexpr int64_t kFew = 256;  // entries that are cheaper to enter one by one than with their row

Key key_of(const Draw& d, int64_t position) {
  auto seed = static_cast<uint64_t>(d.seed), place = static_cast<uint64_t>(position);
  return {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
          {static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32)},
          static_cast<uint32_t>(d.choice)};
}

// `first` is the row's largest logit.
int64_t draw(const Scaled& row, int64_t first, const Draw& d, int64_t position) {
  static thread_local Shortlist list;
  bool all = d.top_k <= 0 || d.top_k >= row.count;
  Filters filters{all ? 0 : d.top_k, d.top_p, d.min_p};
  Race race{key_of(d, position)};
  Cut cut;
  if (!filters.off()) {
    int64_t kept = shortlist(row, filters, list);
    const Entry* entries = list.entries.data();
    if (kept <= kFew) {
      for (int64_t i = 0; i < kept; ++i) race.enter(entries[i].scaled(), entries[i].id());
      return race.winner;
    }
    cut = {entries[kept - 1].scaled(), entries[kept - 1].id()};
    first = entries[0].id();  // the largest logit need not be: scaled, others may equal it
  }
  race.enter(row, cut, first);
  return race.winner;
}

void sample_row(const SampleJob& job, int64_t row) {
  static thread_local std::vector<float> copy;
  const Draw& d = job.entries[row / job.width];
  int64_t k = row % job.width;
  const float* x = job.logits + row * job.stride;
  copy.resize(job.vocab);
  const uint32_t* mask = job.mask + row * ((job.vocab + 31) / 32);
  const float* z = apply_rules(x, job.vocab, d, mask, k, copy.data());
  Top top = largest(z, job.vocab);
  job.token[row] = -1;
  job.logprob[row] = std::numeric_limits<float>::quiet_NaN();
  if (top.nan || !std::isfinite(top.value)) return;
  int64_t token = top.index;
  if (d.temperature > 0)
    token = draw({z, job.vocab, top.value, d.temperature}, top.index, d, d.position + 1 + k);
  float most = z == x ? top.value : largest(x, job.vocab).value;
  double below = static_cast<float>(x[token] - most);
  job.token[row] = token;
  job.logprob[row] = static_cast<float>(below - log_sum(x, job.vocab, most));
}

}  // namespace

void sample(const SampleJob& job) {
  parallel_for(job.rows, 1, [&](int64_t row, int64_t) { sample_row(job, row); });
}

void argmax(const ArgmaxJob& job) {
  parallel_for(job.rows, 1, [&](int64_t row, int64_t) {
    Top top = largest(job.logits + row * job.stride, job.vocab);
    job.token[row] = top.nan ? -1 : top.index;
  });
}

}  // namespace fs::FS_ISA
