// The pool behind parallel_for. One job at a time; a second caller runs its pieces itself.
//
// `ticket` holds the job's generation (high half) and the next piece (low half). A worker reads the
// job's fields and then claims a piece by compare-and-swap on the ticket: success proves that the
// fields belong to that generation, because a job with a claimed piece cannot end.
#include "pool.h"

#include "isa.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fs {
namespace {

// How long a thread looks for what it waits for before it leaves its processor: longer than what one
// thread does alone within a step, such as choosing among the regions of a million positions; waking
// up takes 40 us. It is time, since a pause takes 40 cycles of some processors and 140 of others.
constexpr std::chrono::microseconds kPatience{200};
constexpr int kPauses = 16;  // between two looks at the clock

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Whether `there()` came true before patience ended.
template <typename There>
bool await(const There& there) {
  std::chrono::steady_clock::time_point end{};
  do {
    for (int i = 0; i < kPauses; ++i) {
      if (there()) return true;
      pause();
    }
    if (end == std::chrono::steady_clock::time_point{})
      end = std::chrono::steady_clock::now() + kPatience;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

struct Pool {
  std::mutex busy;
  std::atomic<uint64_t> ticket{0};
  std::atomic<uint32_t> pieces{0};
  std::atomic<Piece> piece{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int64_t> unfinished{0};
  std::atomic<uint32_t> epoch{0};  // changes with every job; sleepers wait on it
  std::atomic<int> sleepers{0};
  std::atomic<int> threads{1};
  int workers = 0;
  pid_t owner = 0;

  // Claims and runs one piece of the current job; false when none is left.
  bool work() {
    uint64_t now = ticket.load(std::memory_order_acquire);
    while (true) {
      uint32_t next = static_cast<uint32_t>(now);
      Piece run = piece.load(std::memory_order_relaxed);
      void* with = context.load(std::memory_order_relaxed);
      if (next >= pieces.load(std::memory_order_relaxed)) return false;
      if (ticket.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) {
        run(with, next);
        unfinished.fetch_sub(1, std::memory_order_acq_rel);
        return true;
      }
    }
  }

  // A thread that is not wanted sleeps at once: its processor is left to others.
  void worker(int id) {
    uint32_t seen = epoch.load();
    auto wanted = [&] { return id < threads.load(std::memory_order_relaxed); };
    auto called = [&] { return epoch.load(std::memory_order_relaxed) != seen; };
    while (true) {
      while (wanted() && work()) {
      }
      if (!await([&] { return called() || !wanted(); }) || !called()) {
        sleepers.fetch_add(1);
        epoch.wait(seen);
        sleepers.fetch_sub(1);
      }
      seen = epoch.load();
    }
  }

  void grow(int wanted) {
    if (owner != getpid()) {  // the threads of a parent process are not here
      owner = getpid();
      workers = 0;
      sleepers.store(0);
    }
    for (; workers < wanted - 1; ++workers)
      std::thread([this, id = workers + 1] { worker(id); }).detach();
  }

  void start(uint32_t count, Piece run, void* with) {
    // Close the old generation before its fields change, so that no late worker claims a piece.
    uint64_t generation = (ticket.load() >> 32) + 1;
    pieces.store(0);
    ticket.store(generation << 32);
    piece.store(run);
    context.store(with);
    unfinished.store(count);
    ticket.store((generation + 1) << 32);
    pieces.store(count);
    epoch.fetch_add(1);
    if (sleepers.load() > 0) epoch.notify_all();
  }
};

Pool& pool() {
  static Pool* value = new Pool;  // never destroyed: detached workers outlive static objects
  return *value;
}

}  // namespace

// The pieces of one call, a span of neighbours for each thread: what a thread does next usually
// lies behind what it did last, which prefetching counts on. Whoever is done takes from the others.
struct Spans {
  struct alignas(64) Span {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  static constexpr int kMost = 256;
  Span* spans;  // the caller's, and valid while it waits
  int count;
  Piece piece;
  void* context;

  Spans(int64_t pieces, int threads, Piece run, void* with)
      : count(threads < kMost ? threads : kMost), piece(run), context(with) {
    static thread_local Span kept[kMost];
    spans = kept;
    for (int i = 0; i < count; ++i) {
      spans[i].next.store(pieces * i / count, std::memory_order_relaxed);
      spans[i].end = pieces * (i + 1) / count;
    }
  }
  void work(int own) {
    for (int i = 0; i < count; ++i) {
      Span& span = spans[(own + i) % count];
      int64_t index;
      while ((index = span.next.fetch_add(1, std::memory_order_relaxed)) < span.end)
        piece(context, index);
    }
  }
};

int pool_threads() { return pool().threads.load(std::memory_order_relaxed); }

void run_pieces(int64_t pieces, Piece piece, void* context) {
  Pool& p = pool();
  std::unique_lock<std::mutex> lock(p.busy, std::defer_lock);
  if (pieces <= 1 || p.threads.load() <= 1 || !lock.try_lock()) {
    for (int64_t i = 0; i < pieces; ++i) piece(context, i);
    return;
  }
  int threads = p.threads.load();
  p.grow(threads);
  Spans spans(pieces, pieces < threads ? static_cast<int>(pieces) : threads, piece, context);
  p.start(
      static_cast<uint32_t>(spans.count),
      [](void* raw, int64_t own) { static_cast<Spans*>(raw)->work(static_cast<int>(own)); },
      &spans);
  while (p.work()) {
  }
  auto over = [&] { return p.unfinished.load(std::memory_order_acquire) == 0; };
  if (!await(over))
    while (!over()) std::this_thread::yield();
}

}  // namespace fs

FS_EXPORT void fourstep_set_threads(int threads) {
  fs::pool().threads.store(threads < 1 ? 1 : threads);
}

FS_EXPORT int fourstep_threads() { return fs::pool_threads(); }
