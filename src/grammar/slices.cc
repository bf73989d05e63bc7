#include "grammar/slices.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "grammar/utf8_partial.h"

namespace deepmint::grammar {

namespace {
constexpr size_t kCostlyNodes = 4'000;   // visited nodes from which a slice is worth sharing
constexpr size_t kMaxList = 1'024;       // tokens up to which a list is smaller than bits
constexpr size_t kMaxCompared = 20'000;  // visited nodes after which a comparison is given up
constexpr uint8_t kNotPlain = kNotUtf8;
constexpr uint8_t plain_next(uint8_t partial, unsigned b) {
  const bool plain = partial != 0 || !(b < 0x20 || b == 0x7f || b == '"' || b == '\\');
  return plain ? utf8_next(partial, b) : kNotPlain;
}

constexpr uint32_t kMostChars = 254;  // that Known::holds tells apart
}  // namespace

size_t Slice::memory_bytes() const {
  size_t bytes = sizeof(*this) + (ids.capacity() + not_ids.capacity() + not_nodes.capacity()) * 4;
  for (const Exits& e : exits) bytes += sizeof(e) + (e.items.capacity() + e.nodes.capacity()) * 4;
  return bytes;
}

std::shared_ptr<const Slice> SliceCache::find(const Hash128& key) {
  const std::lock_guard held(mutex_);
  const auto it = index_.find(key);
  if (it == index_.end()) return nullptr;
  order_.splice(order_.begin(), order_, it->second);
  return it->second->slice;
}

void SliceCache::insert(const Hash128& key, std::shared_ptr<const Slice> slice) {
  const auto size_of = [](const Slice& one) {
    return one.memory_bytes() + (one.bits != nullptr ? one.bits->size() * 4 : 0);
  };
  const size_t bytes = size_of(*slice);
  const std::lock_guard held(mutex_);
  if (bytes > kMaxBytes || index_.count(key) > 0) return;
  order_.push_front({key, std::move(slice)});
  index_.emplace(key, order_.begin());
  bytes_ += bytes;
  while (bytes_ > kMaxBytes) {
    bytes_ -= size_of(*order_.back().slice);
    index_.erase(order_.back().key);
    order_.pop_back();
  }
}

const Slices::View& Slices::of(Lexer::State state) {
  if (epoch_ != lexer_.epoch() || bytes_ > kMaxBytes) {
    views_.clear();
    known_.clear();
    plain_.clear();
    bits_.clear();
    bytes_ = 0;
    epoch_ = lexer_.epoch();
  }
  return view_of(state);
}

const Slices::View& Slices::view_of(Lexer::State state) {
  if (const uint32_t* known = known_.find(state)) return views_[*known];
  if (const Lexer::State same = lexer_.within(state, vocabulary_.trie().max_depth); same != state) {
    const View& view = view_of(same);
    known_.insert(state, *known_.find(same));
    return view;
  }
  View view;
  // Short tokens cannot tell this state from one without large counts; only the long ones are left.
  const Lexer::State near = lexer_.within(state, Vocabulary::kShortBytes);
  if (const Lexer::State base = near != state ? near : settled(state); base != Lexer::kDead) {
    const View& other = view_of(base);
    if (other.base == nullptr)
      view.slice = compare(state, base, near != state ? &vocabulary_.long_tokens() : nullptr);
    if (view.slice != nullptr) view.base = &other;
  }
  if (view.slice == nullptr) {
    const Hash128 key = lexer_.residual_hash(state);
    if (!lexer_.alone()) view.slice = vocabulary_.slices().find(key);
    if (view.slice == nullptr) {
      bool costly = false;
      view.slice = compute(state, costly);
      if (costly && !lexer_.alone() && !lexer_.exhausted())
        vocabulary_.slices().insert(key, view.slice);
    }
  }
  for (const Slice::Exits& e : view.slice->exits)
    view.accepts.push_back(lexer_.accept_of_items(state, e.items));
  bytes_ += view.slice->memory_bytes() + sizeof(View) + view.accepts.size() * 4;
  known_.insert(state, static_cast<uint32_t>(views_.size()));
  views_.push_back(std::move(view));
  return views_.back();
}

// States that differ little have equal bits.
std::shared_ptr<const std::vector<uint32_t>> Slices::share(std::vector<uint32_t> bits) {
  auto& known = bits_[xxh3_128(std::as_bytes(std::span(bits))).low];
  if (known != nullptr && *known == bits) return known;
  bits.shrink_to_fit();
  bytes_ += bits.size() * 4;
  auto out = std::make_shared<const std::vector<uint32_t>>(std::move(bits));
  if (known == nullptr) known = out;
  return out;
}

Lexer::State Slices::settled(Lexer::State state) {
  constexpr std::string_view kProbes = "qz0_";
  for (const char c : kProbes) {
    const auto byte = static_cast<uint8_t>(c);
    const Lexer::State to = lexer_.next(lexer_.next(state, byte), byte);
    if (to == Lexer::kDead || to == state) continue;
    if (std::all_of(kProbes.begin(), kProbes.end(),
                    [&](char probe) { return lexer_.next(to, static_cast<uint8_t>(probe)) == to; }))
      return to;  // which does not settle in another one
  }
  return Lexer::kDead;
}

// A walk with both states side by side, which ends wherever they have become one.
std::shared_ptr<const Slice> Slices::compare(Lexer::State state, Lexer::State base,
                                             const SubTrie* some) {
  auto out = std::make_shared<Slice>();
  const Trie& main = vocabulary_.trie();
  const Trie& trie = some != nullptr ? some->trie : main;
  path_.resize(main.max_depth + 1);
  base_path_.resize(main.max_depth + 1);
  path_[0] = state;
  base_path_[0] = base;
  std::unordered_map<uint32_t, size_t> group_of;  // accept set -> index in exits
  size_t visited = 0;
  const auto n_nodes = static_cast<uint32_t>(trie.nodes.size());
  for (uint32_t at = 0; at < n_nodes;) {
    const Trie::Node& node = trie.nodes[at];
    if (++visited > kMaxCompared) return nullptr;
    const Lexer::State to = lexer_.next(path_[node.depth - 1u], node.byte);
    const Lexer::State base_to = lexer_.next(base_path_[node.depth - 1u], node.byte);
    if (to == base_to) {
      at += node.skip;
      continue;
    }
    path_[node.depth] = to;
    base_path_[node.depth] = base_to;
    if ((to == Lexer::kDead) != (base_to == Lexer::kDead))
      for (TokenId id = node.token; id >= 0; id = vocabulary_.same(id))
        (to != Lexer::kDead ? out->ids : out->not_ids).push_back(static_cast<uint32_t>(id));
    if (const uint32_t accept = lexer_.accepts(to); accept != lexer_.accepts(base_to)) {
      const uint32_t main_node = some != nullptr ? some->main_node[at] : at;
      if (lexer_.accepts(base_to) != Lexer::kNoAccept) out->not_nodes.push_back(main_node);
      if (accept != Lexer::kNoAccept && main.nodes[main_node].skip > 1) {
        const auto [it, is_new] = group_of.try_emplace(accept, out->exits.size());
        if (is_new) out->exits.push_back({lexer_.items_of_accept(state, accept), {}});
        out->exits[it->second].nodes.push_back(main_node);
      }
    }
    ++at;
  }
  if (lexer_.exhausted()) return nullptr;
  return out;
}

const std::array<uint8_t, 256>& Slices::plain_steps(uint8_t partial) {
  if (plain_steps_.empty()) {
    plain_steps_.resize(8);
    for (uint8_t from = 0; from < 8; ++from) {
      plain_steps_[from].fill(0);
      for (unsigned b = 0; b < 256; ++b)
        if (const uint8_t to = plain_next(from, b); to != kNotPlain)
          plain_steps_[from][lexer_.class_of(static_cast<uint8_t>(b))] |=
              static_cast<uint8_t>(1u << to);
    }
  }
  return plain_steps_[partial];
}

bool Slices::holds_plain(Lexer::State state, uint8_t partial, uint32_t chars) {
  if (chars == 0) return true;
  const uint64_t key = (uint64_t{state} << 3) | partial;
  if (const Known* known = plain_.find(key)) {
    if (chars <= known->holds) return true;
    if (chars >= known->fails) return false;
  }
  if (lexer_.exhausted()) return false;
  const auto& steps_of = plain_steps(partial);
  bool holds = true;
  if (partial == 0 && lexer_.takes_plain(state)) {
    chars = kMostChars;
  } else {
    for (uint32_t byte_class = 0; holds && byte_class < lexer_.classes(); ++byte_class) {
      const uint8_t steps = steps_of[byte_class];
      if (steps == 0) continue;
      const Lexer::State to = lexer_.next(state, lexer_.byte_of(byte_class));
      holds = to != Lexer::kDead && lexer_.accepts(to) == Lexer::kNoAccept;
      for (uint8_t next = 0; holds && next < 8; ++next)
        if ((steps >> next) & 1) holds = holds_plain(to, next, next == 0 ? chars - 1 : chars);
    }
  }
  Known* out = plain_.find(key);
  if (out == nullptr) {
    plain_.insert(key, {});
    out = plain_.find(key);
  }
  if (holds)
    out->holds = std::max(out->holds, static_cast<uint8_t>(chars));
  else
    out->fails = std::min(out->fails, static_cast<uint8_t>(chars));
  return holds;
}

bool Slices::ends_plain(Lexer::State state, uint8_t partial, uint32_t chars) {
  const uint64_t key = (uint64_t{state} << 3) | partial;
  if (const Known* known = plain_.find(key)) {
    if (known->ends == chars + 1) return true;
    if (known->goes_on == chars + 1) return false;
  }
  const auto& steps_of = plain_steps(partial);
  bool ends = true;
  for (uint32_t byte_class = 0; ends && byte_class < lexer_.classes(); ++byte_class) {
    const uint8_t steps = steps_of[byte_class];
    if (steps == 0) continue;
    const Lexer::State to = lexer_.next(state, lexer_.byte_of(byte_class));
    if (chars == 0) ends = to == Lexer::kDead;
    for (uint8_t next = 0; ends && chars > 0 && next < 8; ++next)
      if ((steps >> next) & 1) ends = ends_plain(to, next, next == 0 ? chars - 1 : chars);
  }
  Known* out = plain_.find(key);
  if (out == nullptr) {
    plain_.insert(key, {});
    out = plain_.find(key);
  }
  (ends ? out->ends : out->goes_on) = static_cast<uint8_t>(chars + 1);
  return ends;
}

std::shared_ptr<const Slice> Slices::compute(Lexer::State state, bool& costly) {
  auto out = std::make_shared<Slice>();
  // What is decided in one look, and the tokens that are left.
  const PlainTier* tier = nullptr;
  std::span<const uint32_t> decided;
  for (const PlainTier& one : vocabulary_.plain_tiers()) {
    if (tier != nullptr || !holds_plain(state, 0, one.max_chars)) continue;
    tier = &one;
    decided = one.bits;
  }
  const uint32_t most = vocabulary_.plain_tiers().front().max_chars;
  if (tier == nullptr || tier->max_chars < most) {
    uint32_t chars = tier == nullptr ? 0 : tier->max_chars;
    while (chars + 1 < most && holds_plain(state, 0, chars + 1)) ++chars;
    if (chars > 0 && ends_plain(state, 0, chars)) {
      tier = &vocabulary_.all_plain();
      decided = vocabulary_.plain_up_to(chars);
    }
  }
  const Trie& trie = tier != nullptr ? tier->rest.trie : vocabulary_.trie();
  path_.resize(vocabulary_.trie().max_depth + 1);
  path_[0] = state;
  std::vector<uint32_t> bits(vocabulary_.mask_words(), 0), ids;
  std::copy(decided.begin(), decided.end(), bits.begin());
  std::unordered_map<uint32_t, size_t> group_of;  // accept set -> index in exits
  uint32_t last_accept = Lexer::kNoAccept;
  size_t last_group = 0, visited = 0;
  const auto n_nodes = static_cast<uint32_t>(trie.nodes.size());
  for (uint32_t at = 0; at < n_nodes;) {
    const Trie::Node& node = trie.nodes[at];
    ++visited;
    const Lexer::State to = lexer_.next(path_[node.depth - 1u], node.byte);
    if (to == Lexer::kDead) {
      at += node.skip;
      continue;
    }
    path_[node.depth] = to;
    for (TokenId id = node.token; id >= 0; id = vocabulary_.same(id)) {
      bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
      if (ids.size() <= kMaxList) ids.push_back(static_cast<uint32_t>(id));
    }
    if (const uint32_t accept = lexer_.accepts(to);
        accept != Lexer::kNoAccept && (node.skip > 1 || tier != nullptr)) {
      if (accept != last_accept) {
        const auto [it, is_new] = group_of.try_emplace(accept, out->exits.size());
        if (is_new) out->exits.push_back({lexer_.items_of_accept(state, accept), {}});
        last_accept = accept;
        last_group = it->second;
      }
      out->exits[last_group].nodes.push_back(tier != nullptr ? tier->rest.main_node[at] : at);
    }
    ++at;
  }
  if (ids.size() <= kMaxList && tier == nullptr) {
    ids.shrink_to_fit();
    out->ids = std::move(ids);
  } else {
    out->bits = share(std::move(bits));
  }
  for (Slice::Exits& e : out->exits) e.nodes.shrink_to_fit();
  costly = visited >= kCostlyNodes;
  return out;
}

}  // namespace deepmint::grammar
