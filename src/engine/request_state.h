// Where a request is in its life, and which steps from there are lawful.
//
//   Queued ─► Matching ─► Loading ─► Prefill ─► Decode ─► Draining ─► Done
//                 ▲  └───────────────►┘ │         │
//                 └───── Preempted ◄────┴─────────┘          Aborting ─► Done  (from anywhere
//                 before)
//
// Matching: it has a place; what of its prompt is in the cache is being looked up. Loading: its
// state is copied in, or it waits for a neighbour that computes the same prefix. Draining: its last
// token is out, rows of it may still be in a step. Aborting: cancelled, late or failed.
//
// An unlawful step is our bug: the request then ends with kInternal and the process goes on.
#pragma once

#include <cstdint>
#include <string_view>

namespace deepmint {

enum class RequestState : uint8_t {
  kQueued,
  kMatching,
  kLoading,
  kPrefill,
  kDecode,
  kPreempted,
  kDraining,
  kAborting,
  kDone,
};
inline constexpr int kRequestStates = 9;

std::string_view to_string(RequestState state);  // "queued", …
bool may_follow(RequestState from, RequestState to);

}  // namespace deepmint
