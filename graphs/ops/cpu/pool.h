// A small thread pool. The caller works too and waits only for pieces that another thread has
// already begun: a worker that gets no processor time delays nothing. Idle workers look out for the
// next operator, because it usually follows at once, and then sleep.
#pragma once

#include <cstdint>

namespace fs {

using Piece = void (*)(void* context, int64_t index);

// Calls piece(context, i) once for every i in [0, pieces), in any order, on any thread.
void run_pieces(int64_t pieces, Piece piece, void* context);

int pool_threads();

// body(begin, end) over disjoint ranges of at most `grain` items that cover [0, items).
template <typename Body>
void parallel_for(int64_t items, int64_t grain, const Body& body) {
  struct Context {
    const Body* body;
    int64_t items, grain;
  } context{&body, items, grain};
  run_pieces((items + grain - 1) / grain,
             [](void* raw, int64_t index) {
               auto* c = static_cast<Context*>(raw);
               int64_t begin = index * c->grain, end = begin + c->grain;
               (*c->body)(begin, end < c->items ? end : c->items);
             },
             &context);
}

}  // namespace fs
