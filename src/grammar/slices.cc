#include "grammar/slices.h"

#include <algorithm>
#include <array>

namespace deepmint::grammar {

namespace {
constexpr size_t kCostlyNodes = 4'000;  // visited nodes from which a slice is worth sharing
constexpr size_t kMaxList = 1'024;      // tokens up to which a list is smaller than bits
}  // namespace

size_t Slice::memory_bytes() const {
  size_t bytes = sizeof(*this) + (bits.capacity() + ids.capacity()) * 4;
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
  const size_t bytes = slice->memory_bytes();
  const std::lock_guard held(mutex_);
  if (bytes > kMaxBytes || index_.count(key) > 0) return;
  order_.push_front({key, std::move(slice)});
  index_.emplace(key, order_.begin());
  bytes_ += bytes;
  while (bytes_ > kMaxBytes) {
    bytes_ -= order_.back().slice->memory_bytes();
    index_.erase(order_.back().key);
    order_.pop_back();
  }
}

const Slices::View& Slices::of(Lexer::State state) {
  if (epoch_ != lexer_.epoch() || bytes_ > kMaxBytes) {
    views_.clear();
    bytes_ = 0;
    epoch_ = lexer_.epoch();
  }
  const auto [it, is_new] = views_.try_emplace(state);
  View& view = it->second;
  if (!is_new) return view;
  const Hash128 key = lexer_.residual_hash(state);
  view.slice = vocabulary_.slices().find(key);
  if (view.slice == nullptr) {
    bool costly = false;
    view.slice = compute(state, costly);
    if (costly && !lexer_.exhausted()) vocabulary_.slices().insert(key, view.slice);
  }
  for (const Slice::Exits& e : view.slice->exits)
    view.accepts.push_back(lexer_.accept_of_items(state, e.items));
  bytes_ += view.slice->memory_bytes() + sizeof(View) + 64;
  return view;
}

std::shared_ptr<const Slice> Slices::compute(Lexer::State state, bool& costly) {
  auto out = std::make_shared<Slice>();
  const Trie& trie = vocabulary_.trie();
  path_.resize(trie.max_depth + 1);
  path_[0] = state;
  std::vector<uint32_t> bits((vocabulary_.width() + 31) / 32, 0), ids;
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
    if (const uint32_t accept = lexer_.accepts(to); accept != Lexer::kNoAccept && node.skip > 1) {
      if (accept != last_accept) {
        const auto [it, is_new] = group_of.try_emplace(accept, out->exits.size());
        if (is_new) out->exits.push_back({lexer_.items_of_accept(state, accept), {}});
        last_accept = accept;
        last_group = it->second;
      }
      out->exits[last_group].nodes.push_back(at);
    }
    ++at;
  }
  if (ids.size() <= kMaxList)
    out->ids = std::move(ids);
  else
    out->bits = std::move(bits);
  for (Slice::Exits& e : out->exits) e.nodes.shrink_to_fit();
  costly = visited >= kCostlyNodes;
  return out;
}

}  // namespace deepmint::grammar
