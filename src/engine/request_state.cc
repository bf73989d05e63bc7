#include "engine/request_state.h"

#include <array>

namespace deepmint {
namespace {

using S = RequestState;

constexpr uint16_t bit(S state) {
  return static_cast<uint16_t>(1u << static_cast<unsigned>(state));
}

constexpr std::array<uint16_t, kRequestStates> kNext = {
    /* queued    */ bit(S::kMatching) | bit(S::kAborting),
    /* matching  */ bit(S::kLoading) | bit(S::kPrefill) | bit(S::kAborting),
    /* loading   */ bit(S::kMatching) | bit(S::kPrefill) | bit(S::kDecode) | bit(S::kPreempted) |
        bit(S::kAborting),
    /* prefill   */ bit(S::kDecode) | bit(S::kPreempted) | bit(S::kDraining) | bit(S::kAborting),
    /* decode    */ bit(S::kPreempted) | bit(S::kDraining) | bit(S::kAborting),
    /* preempted */ bit(S::kMatching) | bit(S::kAborting),
    /* draining  */ bit(S::kDone),
    /* aborting  */ bit(S::kDone),
    /* done      */ 0,
};

}  // namespace

std::string_view to_string(RequestState state) {
  constexpr std::array<std::string_view, kRequestStates> kNames = {
      "queued",    "matching", "loading",  "prefill", "decode",
      "preempted", "draining", "aborting", "done"};
  return kNames[static_cast<size_t>(state)];
}

bool may_follow(RequestState from, RequestState to) {
  return (kNext[static_cast<size_t>(from)] & bit(to)) != 0;
}

}  // namespace deepmint
