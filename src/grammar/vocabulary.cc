#include "grammar/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/utf8.h"
#include "grammar/slices.h"

namespace deepmint::grammar {

namespace {

// `order`: ids sorted by their bytes, one per distinct spelling.
Trie build_trie(std::span<const std::string> bytes, std::span<const TokenId> order) {
  Trie trie;
  std::vector<uint32_t> path;  // nodes from the root to the last one
  for (const TokenId id : order) {
    const std::string& text = bytes[static_cast<size_t>(id)];
    size_t shared = 0;
    while (shared < path.size() && shared < text.size() &&
           trie.nodes[path[shared]].byte == static_cast<uint8_t>(text[shared]))
      ++shared;
    for (size_t depth = shared; depth < path.size(); ++depth)
      trie.nodes[path[depth]].skip = static_cast<uint32_t>(trie.nodes.size()) - path[depth];
    path.resize(shared);
    for (size_t depth = shared; depth < text.size(); ++depth) {
      trie.parent.push_back(depth == 0 ? 0xffffffffu : path.back());
      path.push_back(static_cast<uint32_t>(trie.nodes.size()));
      Trie::Node node;
      node.depth = static_cast<uint16_t>(depth + 1);
      node.byte = static_cast<uint8_t>(text[depth]);
      trie.nodes.push_back(node);
    }
    trie.nodes.back().token = id;
    trie.max_depth = std::max(trie.max_depth, static_cast<uint32_t>(text.size()));
  }
  for (const uint32_t node : path)
    trie.nodes[node].skip = static_cast<uint32_t>(trie.nodes.size()) - node;
  return trie;
}

// Characters of a text that is all plain (PlainTier); 0 for any other.
size_t plain_chars(std::string_view text) {
  size_t count = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7f || byte == '"' || byte == '\\') return 0;
    count += (byte & 0xc0) != 0x80;
  }
  return utf8::is_valid(text) ? count : 0;
}

constexpr uint32_t kTierChars[] = {24, 8};

}  // namespace

Vocabulary::Vocabulary() = default;
Vocabulary::~Vocabulary() = default;

Result<std::shared_ptr<const Vocabulary>> Vocabulary::make(std::vector<std::string> bytes_of_id,
                                                           size_t width,
                                                           std::vector<TokenId> stop_ids) {
  if (width < bytes_of_id.size() || width > (size_t{1} << 30))
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("vocabulary: expected logits at least as wide as its {} tokens, found {}",
                    bytes_of_id.size(), width));
  for (const TokenId id : stop_ids)
    if (id < 0 || static_cast<size_t>(id) >= width)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("vocabulary: stop id {} is outside the logits' width {}", id, width));
  auto out = std::shared_ptr<Vocabulary>(new Vocabulary());
  out->bytes_ = std::move(bytes_of_id);
  out->stop_ids_ = std::move(stop_ids);
  std::sort(out->stop_ids_.begin(), out->stop_ids_.end());
  out->width_ = width;
  for (const TokenId id : out->stop_ids_)  // a stop id ends the text, whatever it spells
    if (static_cast<size_t>(id) < out->bytes_.size()) out->bytes_[static_cast<size_t>(id)].clear();

  std::vector<TokenId> order;
  for (size_t id = 0; id < out->bytes_.size(); ++id) {
    const std::string& text = out->bytes_[id];
    if (text.size() > 0xffff)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("vocabulary: token {} is {} bytes long, the most is 65535", id, text.size()));
    if (!text.empty()) order.push_back(static_cast<TokenId>(id));
  }
  if (order.empty()) return fail(ErrorCode::kInvalidArgument, "vocabulary: no token has bytes");
  const auto& bytes = out->bytes_;
  std::sort(order.begin(), order.end(), [&](TokenId x, TokenId y) {
    const int c = bytes[static_cast<size_t>(x)].compare(bytes[static_cast<size_t>(y)]);
    return c != 0 ? c < 0 : x < y;
  });
  out->same_.assign(bytes.size(), -1);
  size_t kept = 0;
  TokenId before = -1;
  for (const TokenId id : order) {
    if (before >= 0 && bytes[static_cast<size_t>(id)] == bytes[static_cast<size_t>(before)])
      out->same_[static_cast<size_t>(before)] = id;
    else
      order[kept++] = id;
    before = id;
  }
  order.resize(kept);
  out->trie_ = build_trie(bytes, order);
  std::vector<size_t> chars(bytes.size());
  for (const TokenId head : order)
    chars[static_cast<size_t>(head)] = plain_chars(bytes[static_cast<size_t>(head)]);
  const auto add_bits = [&](std::vector<uint32_t>& bits, TokenId head) {
    for (TokenId id = head; id >= 0; id = out->same_[static_cast<size_t>(id)])
      bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  };
  const auto trie_of = [&](std::span<const TokenId> some) {
    SubTrie sub;
    sub.trie = build_trie(bytes, some);
    // Both tries are in the same order: one walk over the main one finds every node of the other.
    std::vector<uint32_t> from(sub.trie.max_depth + 1);
    for (const Trie::Node& node : sub.trie.nodes) {
      const uint32_t parent = node.depth == 1 ? 0xffffffffu : from[node.depth - 1u];
      uint32_t at = parent == 0xffffffffu ? 0 : parent + 1;
      while (out->trie_.nodes[at].byte != node.byte) at += out->trie_.nodes[at].skip;
      from[node.depth] = at;
      sub.main_node.push_back(at);
    }
    return sub;
  };
  const auto tier_of = [&](uint32_t max_chars) {
    PlainTier tier;
    tier.max_chars = max_chars;
    tier.bits.assign(out->mask_words(), 0);
    std::vector<TokenId> rest;
    for (const TokenId head : order) {
      const size_t n = chars[static_cast<size_t>(head)];
      if (n == 0 || n > max_chars)
        rest.push_back(head);
      else
        add_bits(tier.bits, head);
    }
    tier.rest = trie_of(rest);
    return tier;
  };
  for (const uint32_t max_chars : kTierChars) out->tiers_.push_back(tier_of(max_chars));
  out->all_plain_ = tier_of(0xffffffffu);
  std::vector<TokenId> long_ones;
  for (const TokenId head : order)
    if (bytes[static_cast<size_t>(head)].size() > kShortBytes) long_ones.push_back(head);
  out->long_tokens_ = trie_of(long_ones);
  out->plain_up_to_.assign(kTierChars[0], std::vector<uint32_t>(out->mask_words(), 0));
  for (const TokenId head : order)
    for (size_t n = chars[static_cast<size_t>(head)]; n > 0 && n < kTierChars[0]; ++n)
      add_bits(out->plain_up_to_[n], head);
  out->slices_ = std::make_unique<SliceCache>();
  return std::shared_ptr<const Vocabulary>(std::move(out));
}

std::string_view Vocabulary::bytes(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < bytes_.size()
             ? std::string_view(bytes_[static_cast<size_t>(id)])
             : std::string_view();
}

bool Vocabulary::is_stop(TokenId id) const {
  return std::binary_search(stop_ids_.begin(), stop_ids_.end(), id);
}

}  // namespace deepmint::grammar
