// Where the state of a sequence comes from and where it goes: what the cache has of its prompt, the
// replay that makes it whole, snapshots on the way, and setting it aside.
#include <algorithm>

#include "core/check.h"
#include "engine/engine_core.h"
#include "kvcache/seq_state.h"

namespace deepmint {
namespace {

constexpr int32_t kSnapshotEvery = 8192;                     // tokens
constexpr uint32_t kExactSnapshot = 0, kDecoderInexact = 1;  // tags

}  // namespace

int32_t Sequence::last_boundary() const {
  return static_cast<int32_t>(kvcache::reusable_blocks(static_cast<size_t>(prompt_tokens))) *
         kBlockTokens;
}

void Sequence::use_own_tail() {
  full_from = tail.first_full;
  exact_from = tail.first_full > 0 ? last_boundary() : 0;
}

// computed: s.computed; of a sequence that replays 0, for engines that know nothing of the replay,
// or s.hit, for this one, which keeps beside the bytes how far the replay is.
std::vector<std::byte> EngineCore::encode(Sequence& s, int32_t computed) const {
  kvcache::SeqState state;
  state.model_fingerprint = model_->info().fingerprint;
  state.tokens.assign(s.tokens.known().begin(), s.tokens.known().end());
  state.prompt_tokens = s.prompt_tokens;
  state.computed = computed;
  state.seed = s.seed;
  state.choice = s.request.choice;
  if (state.computed == 0)
    return kvcache::encode_seq_state(state, cache_->arena(), s.blocks(), kNoSlot);
  if (!s.replaying()) {
    model_->clear_unread({s.blocks(), s.slot()}, state_, computed, s.tail);
    s.use_own_tail();  // of rows that are left out there is nothing any more
  }
  return kvcache::encode_seq_state(state, cache_->arena(), s.blocks(), s.slot());
}

// Of state, when its last step has ended; 0: no row of it has run, and it will begin anew.
uint64_t EngineCore::bytes_aside(const Sequence& s) const {
  if (s.granted <= s.began && !s.decoding()) return 0;
  const auto parts = cache_->arena().parts();
  return kvcache::blocks_for(std::max(s.granted, s.hit)) * kvcache::bytes_per_block(parts) +
         kvcache::bytes_per_slot(parts);
}

bool EngineCore::has_room(std::span<const std::unique_ptr<Sequence>> sequences) const {
  auto bytes = static_cast<uint64_t>(stats_.parked_bytes);
  for (const auto& s : sequences) bytes += bytes_aside(*s);
  return bytes <= park_budget_;
}

// The scheduler asks for it when the last step of the sequence has ended.
bool EngineCore::park(Sequence& s) {
  DEEPMINT_CHECK(s.granted == s.computed && s.in_flight == 0);
  const uint64_t bytes = bytes_aside(s);
  if (static_cast<uint64_t>(stats_.parked_bytes) + bytes > park_budget_) return false;
  if (bytes == 0) {
    s.computed = s.granted = 0;  // it takes what the cache has then
    s.hit = 0;
  } else {
    s.saved = encode(s, std::max(s.computed, s.hit));
    stats_.parked_bytes += static_cast<int64_t>(s.saved.size());
  }
  s.parked = true;
  move(s, RequestState::kPreempted);
  ++stats_.preempted;
  if (hooks_.log != nullptr) hooks_.log->set_aside(s);
  return true;
}

// Nothing of the sequence is in flight, so its slot and its new blocks are its own.
void EngineCore::begin(Sequence& s, const kvcache::Match& match) {
  if (!s.saved.empty()) {
    const auto view =
        kvcache::decode_seq_state(s.saved, {.model_fingerprint = model_->info().fingerprint,
                                            .vocab_size = info_.vocab_size,
                                            .context_tokens = info_.context_tokens,
                                            .parts = cache_->arena().parts()});
    DEEPMINT_CHECK(view.has_value());  // prepare_saved() or encode() has seen the same bytes
    kvcache::restore_parts(*view, cache_->arena(), s.blocks(), s.slot());
    if (s.parked) stats_.parked_bytes -= static_cast<int64_t>(s.saved.size());
    s.saved = {};
    if (!s.replaying()) s.use_own_tail();
    s.snapshot_at = next_snapshot(s);
    return;
  }
  Model::PrefixHit hit;
  hit.hit = static_cast<int32_t>(match.hit_blocks) * kBlockTokens;
  hit.snapshot = static_cast<int32_t>(match.snapshot_blocks) * kBlockTokens;
  hit.decoder_exact = match.snapshot_tag == kExactSnapshot;
  hit.bounded = s.request.bounded_replay;
  s.use_own_tail();
  const bool keeps = snapshots_ && s.may_publish && !s.request.tail_keep_tokens && !hit.bounded;
  const auto plan_of = [&](int32_t target) {
    return model_->plan_prefix(hit, target, s.tail, s.request.tail_keep_tokens.has_value());
  };
  int32_t target = s.prompt_tokens;
  Model::PrefixPlan plan = plan_of(target);
  if (plan.from_snapshot && !cache_->snapshot_get(s.lease, match.snapshot_blocks, now_)) {
    hit.snapshot = 0;
    plan = plan_of(target);
  }
  if (keeps && !plan.from_snapshot && hit.hit > 0) {
    // Others will come back to where this one leaves what is known. Replay so much that the window
    // state is exact there already, and a snapshot is taken. Not of the last layers where that
    // would make all rows of a long suffix run them.
    target = hit.hit + 1;
    plan = plan_of(target);
    if (s.full_from > 0 && s.full_from <= hit.hit) {
      s.full_from = std::min(s.full_from, model_->exact_prompt_tail(hit.hit).first_full);
      s.exact_from = hit.hit;
    }
  }
  s.snapshot_from = plan.begin == 0 || plan.from_snapshot ? 0 : target - 1;
  s.computed = s.granted = plan.begin;
  s.hit = hit.hit;
  s.began = plan.begin;
  s.window_floor = plan.window_floor;
  s.reused = hit.hit;
  s.replayed = hit.hit - plan.begin;
  s.replay_is_bounded = !plan.exact;
  if (!plan.exact) s.may_publish = false;
  if (plan.begin > 0 && !plan.from_snapshot)
    model_->begin_at({s.blocks(), s.slot()}, state_, s.tokens.known(), plan.begin);
  s.snapshot_at = next_snapshot(s);
}

// ---------------------------------------------------------------- snapshots of private state

// Where it left what was known and had to replay; the last block boundary of the prompt; that of
// the output, which may be each one, since nobody knows where it will end: the latest stands; and
// every kSnapshotEvery tokens.
int32_t EngineCore::next_snapshot(const Sequence& s) const {
  if (!snapshots_ || !s.may_publish || s.request.tail_keep_tokens) return 0;
  const auto after = [](int32_t position, int32_t step) {
    return position - position % step + step;
  };
  const int32_t boundary = s.last_boundary();
  if (s.computed < s.hit && s.snapshot_from <= s.hit) return s.hit;
  const int32_t from = std::max({s.computed, s.hit, s.snapshot_from - 1});
  if (from < boundary) return std::min(boundary, after(from, kSnapshotEvery));
  return after(from, kBlockTokens);
}

void EngineCore::take_snapshot(Sequence& s) {
  if (s.snapshot_at == 0 || s.computed < s.snapshot_at) return;
  if (s.computed == s.snapshot_at) {
    const auto blocks_at = [](int32_t position) {
      return static_cast<size_t>(position) / kBlockTokens;
    };
    if (s.latest_snapshot > 0) cache_->snapshot_give_up(s.lease, blocks_at(s.latest_snapshot));
    cache_->snapshot_put(s.lease, blocks_at(s.computed),
                         s.computed >= s.exact_from ? kExactSnapshot : kDecoderInexact, now_);
    s.latest_snapshot =
        s.computed > s.prompt_tokens && s.computed % kSnapshotEvery != 0 ? s.computed : 0;
  }
  s.snapshot_at = next_snapshot(s);
}

}  // namespace deepmint
