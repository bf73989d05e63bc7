#include "tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "core/check.h"
#include "core/names.h"
#include "tokenizer/byte_level.h"

namespace deepmint {
namespace {

// Real vocabularies take fewer than ten steps per byte. One that is made to make the search slow
// ends in merging, n log n.
constexpr uint64_t kSearchSteps = 100;

uint64_t pair_key(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t pair_hash(uint64_t pair) {
  return static_cast<size_t>((pair * 0x9E3779B97F4A7C15ull) >> 20);
}

size_t capacity_for(size_t entries) {
  size_t capacity = 16;
  while (capacity < entries * 2) capacity *= 2;
  return capacity;
}

}  // namespace

// What encode() found lately, one per thread: it belongs to the instance that used it last.
struct Bpe::ThreadCache {
  static constexpr size_t kPieceSets = 4096;  // of two
  static constexpr size_t kIds = 11;
  struct Piece {  // one cache line
    ShortKey key;
    uint32_t count = 0;
    std::array<TokenId, kIds> ids;
  };
  static_assert(sizeof(Piece) == 64);
  static constexpr size_t kBorders = 16384;

  alignas(64) std::array<Piece, 2 * kPieceSets> pieces;
  std::array<uint64_t, kBorders>
      borders;  // left << 32 | right << 1 | whether it is one; ids have 24 bits
  uint32_t serial = 0;

  static ThreadCache& of(const Bpe& bpe) {
    thread_local const std::unique_ptr<ThreadCache> cache = std::make_unique<ThreadCache>();
    if (cache->serial != bpe.serial_) {
      for (Piece& piece : cache->pieces) piece.key = {};
      cache->borders.fill(~uint64_t{0});
      cache->serial = bpe.serial_;
    }
    return *cache;
  }
};

Result<Bpe> Bpe::create(const TokenizerSpec& spec) {
  static std::atomic<uint32_t> serials{0};
  Bpe bpe;
  bpe.spec_ = &spec;
  bpe.serial_ = ++serials;
  const TokenTable by_bytes = bpe.index_vocabulary();
  DEEPMINT_TRY(results, bpe.index_merges(by_bytes));
  bpe.derive_tokens(results);
  bpe.index_pieces(by_bytes);
  if (bpe.in_order_) bpe.build_trie();
  return bpe;
}

// Which ids text may give, by their bytes.
TokenTable Bpe::index_vocabulary() {
  const std::vector<std::string>& vocab = spec_->vocab;
  const size_t n = vocab.size();
  enum : uint8_t { kAdded = 1, kControl = 2, kHidden = 4 };
  std::vector<uint8_t> flags(n, 0);
  for (const auto& added : spec_->added)
    flags[static_cast<size_t>(added.id)] |=
        static_cast<uint8_t>(kAdded | (added.special ? kControl : 0));
  for (TokenId id : spec_->decode_only) flags[static_cast<size_t>(id)] |= kHidden;
  for (const auto& fallback : spec_->byte_fallback)
    flags[static_cast<size_t>(fallback.second)] |= kHidden;

  // Ordinary tokens first: an added token with the same bytes must not hide one. Control tokens are
  // left out, so that no text gives one; but a byte keeps its only token, whatever the flags of
  // that token.
  TokenTable by_bytes(n);
  length_.resize(n);
  const auto insert = [&](bool added) {
    for (size_t id = 0; id < n; ++id) {
      const bool is_control = (flags[id] & kControl) != 0 && vocab[id].size() != 1;
      if (((flags[id] & kAdded) != 0) == added && (flags[id] & kHidden) == 0 && !is_control &&
          !vocab[id].empty())
        by_bytes.insert(vocab[id], static_cast<TokenId>(id));
    }
  };
  insert(false);
  insert(true);
  for (size_t id = 0; id < n; ++id) length_[id] = static_cast<uint32_t>(vocab[id].size());

  all_bytes_ = true;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_id_[byte] = by_bytes.find({&c, 1});
    all_bytes_ = all_bytes_ && byte_id_[byte] >= 0;
  }
  fallback_id_.fill(-1);
  for (const auto& [byte, id] : spec_->byte_fallback) fallback_id_[byte] = id;
  return by_bytes;
}

// What each merge gives, by rank; -1 for merges that never happen.
Result<std::vector<TokenId>> Bpe::index_merges(const TokenTable& by_bytes) {
  std::vector<TokenId> results(spec_->merges.size(), -1);
  merges_.resize(capacity_for(spec_->merges.size()));
  maybe_.assign(merges_.size() / 8, 0);  // 16 to 32 bits per merge
  const size_t mask = merges_.size() - 1;
  TokenTable controls(spec_->added.size());
  for (const auto& added : spec_->added)
    if (added.special) controls.insert(spec_->vocab[static_cast<size_t>(added.id)], added.id);
  std::string joined;
  for (size_t rank = 0; rank < spec_->merges.size(); ++rank) {
    const auto [left, right] = spec_->merges[rank];
    joined = spec_->vocab[static_cast<size_t>(left)];
    joined += spec_->vocab[static_cast<size_t>(right)];
    const TokenId id = by_bytes.find(joined);
    if (id < 0) {
      if (controls.find(joined) >= 0) continue;
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("its result {} is not in the vocabulary",
                              quote_name(byte_level::encode(joined))),
                  fmt::format("merge {}", rank));
    }
    const uint64_t pair = pair_key(left, right);
    const size_t hash = pair_hash(pair);
    maybe_[hash >> 6 & (maybe_.size() - 1)] |= uint64_t{1} << (hash & 63);
    size_t i = hash & mask;
    while (merges_[i].pair != pair && merges_[i].pair != kNoPair) i = (i + 1) & mask;
    if (merges_[i].pair == pair) results[static_cast<size_t>(merges_[i].rank)] = -1;
    merges_[i] = {pair, static_cast<int32_t>(rank), id};  // of equal pairs the last one counts
    results[rank] = id;
  }
  return results;
}

// Whether `id` may stand for an input byte without being that byte's own token.
bool Bpe::gives_symbol(TokenId id) const {
  if (spec_->unk == id) return true;
  return std::any_of(spec_->byte_fallback.begin(), spec_->byte_fallback.end(),
                     [&](const auto& f) { return f.second == id; });
}

// In rank order: a token is born of the first merge for which encoding its bytes leads to just
// those two parts.
void Bpe::derive_tokens(const std::vector<TokenId>& results) {
  const size_t n = spec_->vocab.size();
  tokens_.assign(n, {});
  for (TokenId id : byte_id_)
    if (id >= 0) tokens_[static_cast<size_t>(id)].birth = -1;
  for (size_t rank = 0; rank < spec_->merges.size(); ++rank) {
    const auto [left, right] = spec_->merges[rank];
    if (results[rank] < 0 || tokens_[static_cast<size_t>(left)].birth == kNever ||
        tokens_[static_cast<size_t>(right)].birth == kNever)
      continue;
    Token& token = tokens_[static_cast<size_t>(results[rank])];
    uint64_t steps = 0;
    if (token.birth != kNever || !is_border(left, right, true, steps)) continue;
    token.left = left;
    token.right = right;
    token.birth = static_cast<int32_t>(rank);
  }

  // Time is rank only as long as no merge waits for a part that is born later. Files converted from
  // rank tables list every split of a token, so they hold such merges, but their two parts never
  // meet: something merges across the border before.
  in_order_ = true;
  for (size_t rank = 0; rank < spec_->merges.size() && in_order_; ++rank) {
    const auto [left, right] = spec_->merges[rank];
    if (results[rank] < 0) continue;
    const int32_t left_birth = tokens_[static_cast<size_t>(left)].birth,
                  right_birth = tokens_[static_cast<size_t>(right)].birth;
    if (left_birth == kNever || right_birth == kNever) {
      in_order_ = !gives_symbol(left) && !gives_symbol(right);
    } else if (std::max(left_birth, right_birth) >= static_cast<int32_t>(rank)) {
      uint64_t steps = 0;
      in_order_ = !is_border(left, right, true, steps);
    }
  }
}

void Bpe::index_pieces(const TokenTable& by_bytes) {
  const size_t n = spec_->vocab.size();
  std::vector<TokenId> longer;
  whole_short_.resize(capacity_for(n));
  for (size_t id = 0; id < n; ++id) {
    const std::string& bytes = spec_->vocab[id];
    const bool is_piece = in_order_ && tokens_[id].birth != kNever;
    if (!is_piece && !(spec_->ignore_merges && by_bytes.find(bytes) == static_cast<TokenId>(id)))
      continue;
    longest_token_ = std::max(longest_token_, bytes.size());
    if (bytes.size() > kShortBytes)
      longer.push_back(static_cast<TokenId>(id));
    else
      insert_short(short_key(bytes.data(), bytes.size(), bytes.data() + bytes.size()),
                   static_cast<TokenId>(id));
  }
  whole_long_ = TokenTable(longer.size());
  for (TokenId id : longer) whole_long_.insert(spec_->vocab[static_cast<size_t>(id)], id);
}

void Bpe::insert_short(const ShortKey& key, TokenId id) {
  const size_t mask = whole_short_.size() - 1;
  size_t i = hash_of(key) & mask;
  while (whole_short_[i].id >= 0) i = (i + 1) & mask;
  whole_short_[i] = {key, id};
}

void Bpe::build_trie() {
  // In byte order, by the first eight bytes as far as they tell.
  struct Entry {
    uint64_t key;
    TokenId id;
  };
  std::vector<Entry> order;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].birth == kNever) continue;
    uint64_t key = 0;
    std::memcpy(&key, spec_->vocab[id].data(), std::min<size_t>(8, length_[id]));
    order.push_back({__builtin_bswap64(key), static_cast<TokenId>(id)});
  }
  const auto text = [&](const Entry& e) -> const std::string& {
    return spec_->vocab[static_cast<size_t>(e.id)];
  };
  std::sort(order.begin(), order.end(), [&](const Entry& a, const Entry& b) {
    return a.key != b.key ? a.key < b.key : text(a) < text(b);
  });
  const auto byte_at = [&](size_t i, uint32_t depth) {
    return depth < 8 ? static_cast<unsigned char>(order[i].key >> (56 - 8 * depth))
                     : static_cast<unsigned char>(text(order[i])[depth]);
  };

  // Level by level: the tokens below a node are a range of `order`, the one that ends at it (if
  // any) stands first.
  struct Open {
    uint32_t node, depth, begin, end;
    TokenId longest;  // that ends at the node or above it
  };
  std::vector<Open> open = {{0, 0, 0, static_cast<uint32_t>(order.size()), -1}};
  nodes_.assign(1, {0, kNoToken << 8});
  start_.assign(65536, 0);
  for (size_t i = 0; i < open.size(); ++i) {
    Open at = open[i];
    const auto first = static_cast<uint32_t>(nodes_.size());
    if (at.begin < at.end && length_[static_cast<size_t>(order[at.begin].id)] == at.depth)
      ++at.begin;
    for (uint32_t from = at.begin; from < at.end;) {
      const unsigned char byte = byte_at(from, at.depth);
      uint32_t to = from + 1;
      while (to < at.end && byte_at(to, at.depth) == byte) ++to;
      const auto child = static_cast<uint32_t>(nodes_.size());
      const TokenId id = order[from].id;
      const bool ends = length_[static_cast<size_t>(id)] == at.depth + 1;
      if (ends) tokens_[static_cast<size_t>(id)].prefix = at.longest;
      nodes_.push_back({0, (ends ? static_cast<uint32_t>(id) : kNoToken) << 8 | byte});
      if (at.depth == 1) start_[size_t{byte_at(from, 0)} << 8 | byte] = child;
      if (to - from > (ends ? 1u : 0u))
        open.push_back({child, at.depth + 1, from, to, ends ? id : at.longest});
      from = to;
    }
    const auto count = static_cast<uint32_t>(nodes_.size()) - first;
    if (count > 0) nodes_[at.node].children = first << 8 | (count - 1);
  }
}

const Bpe::Merge* Bpe::find_merge(TokenId left, TokenId right) const {
  const uint64_t pair = pair_key(left, right);
  const size_t hash = pair_hash(pair);
  if ((maybe_[hash >> 6 & (maybe_.size() - 1)] >> (hash & 63) & 1) == 0) return nullptr;
  const size_t mask = merges_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    if (merges_[i].pair == pair) return &merges_[i];
    if (merges_[i].pair == kNoPair) return nullptr;
  }
}

// Index of the child for `byte`, 0 when there is none.
uint32_t Bpe::child(const Node& node, unsigned char byte) const {
  if (node.children == 0) return 0;
  uint32_t at = node.children >> 8;
  uint32_t count = (node.children & 0xFF) + 1;
  while (count > 8) {  // the child, if any, is in [at, at + count)
    const uint32_t half = count / 2;
    at += (nodes_[at + half].token & 0xFF) <= byte ? half : 0;
    count -= half;
  }
  for (; count > 0; --count, ++at)
    if ((nodes_[at].token & 0xFF) == byte) return at;
  return 0;
}

// The longest token that [p, end) starts with, -1 when there is none.
TokenId Bpe::longest_token(const char* p, const char* end) const {
  TokenId longest = byte_id_[static_cast<unsigned char>(*p)];
  if (end - p < 2) return longest;
  uint32_t at =
      start_[size_t{static_cast<unsigned char>(p[0])} << 8 | static_cast<unsigned char>(p[1])];
  for (p += 2; at != 0; ++p) {
    const Node& node = nodes_[at];
    if (const uint32_t token = node.token >> 8; token != kNoToken)
      longest = static_cast<TokenId>(token);
    if (p == end) break;
    at = child(node, static_cast<unsigned char>(*p));
  }
  return longest;
}

// Whether encoding the bytes of both tokens keeps the border between them. Walks back in time
// through what stood at the border: on the left side the token, its right part, the right part of
// that, …; on the right side the left parts. A pair that stood there merges when its rank comes
// before either of the two is merged with its other neighbour; the left neighbour goes first when
// ranks are equal, being further left.
// `known_to_merge` leaves out the two tokens themselves.
bool Bpe::is_border(TokenId left, TokenId right, bool known_to_merge, uint64_t& steps) const {
  int32_t left_ends = kNever, right_ends = kNever;
  for (bool first = true;; first = false) {
    ++steps;
    const Token& x = tokens_[static_cast<size_t>(left)];
    const Token& y = tokens_[static_cast<size_t>(right)];
    if (!first || !known_to_merge)
      if (const Merge* merge = find_merge(left, right);
          merge != nullptr && merge->rank < left_ends && merge->rank <= right_ends)
        return false;
    if (x.birth < 0 && y.birth < 0) return true;
    if (x.birth > y.birth) {
      left_ends = x.birth;
      left = x.right;
    } else {
      right_ends = y.birth;
      right = y.left;
    }
  }
}

// is_border() of pairs that came lately is remembered: in running text a few thousand pairs are
// most of all.
bool Bpe::is_border_cached(TokenId left, TokenId right, ThreadCache& cache, uint64_t& steps) const {
  const uint64_t key =
      uint64_t{static_cast<uint32_t>(left)} << 32 | uint64_t{static_cast<uint32_t>(right)} << 1;
  uint64_t& slot = cache.borders[pair_hash(key) & (ThreadCache::kBorders - 1)];
  if ((slot & ~uint64_t{1}) == key) return (slot & 1) != 0;
  const bool border = is_border(left, right, false, steps);
  slot = key | (border ? 1 : 0);
  return border;
}

void Bpe::encode_cached(const ShortKey& key, const char* p, size_t n,
                        std::vector<TokenId>& out) const {
  ThreadCache::Piece* set =
      &ThreadCache::of(*this).pieces[(hash_of(key) >> 20 & (ThreadCache::kPieceSets - 1)) * 2];
  for (int way = 0; way < 2; ++way)
    if (set[way].key == key) {
      out.insert(out.end(), set[way].ids.begin(), set[way].ids.begin() + set[way].count);
      return;
    }
  const size_t before = out.size();
  encode_parts({p, n}, out);
  const size_t count = out.size() - before;
  if (count > ThreadCache::kIds) return;
  set[1] = set[0];  // the older of the two goes
  set[0].key = key;
  set[0].count = static_cast<uint32_t>(count);
  std::copy(out.begin() + static_cast<long>(before), out.end(), set[0].ids.begin());
}

void Bpe::encode_parts(std::string_view piece, std::vector<TokenId>& out) const {
  if (!in_order_) return encode_by_merging(piece, out);
  if (all_bytes_) return encode_search(piece, out);

  // Bytes without a token: nothing merges with what stands for them, and those that are left out
  // join their neighbours.
  thread_local std::string kept;
  kept.clear();
  bool fuse = false;
  for (char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte_id_[byte] >= 0) {
      kept.push_back(c);
      fuse = false;
      continue;
    }
    const bool has_fallback = fallback_id_[byte] >= 0;
    if (!has_fallback && !spec_->unk) continue;
    if (!kept.empty()) encode_search(kept, out);
    kept.clear();
    if (has_fallback || !fuse) out.push_back(has_fallback ? fallback_id_[byte] : *spec_->unk);
    fuse = !has_fallback && spec_->fuse_unk;
  }
  if (!kept.empty()) encode_search(kept, out);
}

void Bpe::encode_search(std::string_view piece, std::vector<TokenId>& out) const {
  // Places where no encoding goes on; bit n = "after n bytes".
  thread_local std::vector<uint64_t> long_dead;
  uint64_t short_dead[2] = {0, 0};
  uint64_t* dead = short_dead;
  if (piece.size() >= 128) {
    long_dead.assign(piece.size() / 64 + 1, 0);
    dead = long_dead.data();
  }
  const char* const begin = piece.data();
  const char* const end = begin + piece.size();
  const size_t base = out.size();
  const char* p = begin;
  TokenId candidate = longest_token(p, end);
  ThreadCache& cache = ThreadCache::of(*this);
  uint64_t steps = 0;
  const uint64_t max_steps = kSearchSteps * (piece.size() + 16);
  while (true) {
    if (steps > max_steps) {
      out.resize(base);
      return encode_by_merging(piece, out);
    }
    for (; candidate >= 0; candidate = tokens_[static_cast<size_t>(candidate)].prefix) {
      const size_t after = static_cast<size_t>(p - begin) + length_[static_cast<size_t>(candidate)];
      if ((dead[after >> 6] >> (after & 63) & 1) != 0) continue;
      if (out.size() == base || is_border_cached(out.back(), candidate, cache, steps)) break;
    }
    if (candidate >= 0) {
      out.push_back(candidate);
      p += length_[static_cast<size_t>(candidate)];
      if (p == end) break;
      candidate = longest_token(p, end);
      continue;
    }
    // What stands before p is the encoding of its bytes, the only one; so nothing goes on from
    // here.
    DEEPMINT_CHECK(out.size() > base);
    const auto here = static_cast<size_t>(p - begin);
    dead[here >> 6] |= uint64_t{1} << (here & 63);
    const TokenId last = out.back();
    out.pop_back();
    p -= length_[static_cast<size_t>(last)];
    candidate = tokens_[static_cast<size_t>(last)].prefix;
  }
  if (long_dead.capacity() > (size_t{1} << 17))
    std::vector<uint64_t>().swap(long_dead);  // after a piece of 8 MB
}

void Bpe::symbols_of(std::string_view piece, std::vector<TokenId>& symbols) const {
  bool fuse = false;  // the last symbol is an unknown token that takes in the next one
  for (char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte_id_[byte] >= 0) {
      symbols.push_back(byte_id_[byte]);
      fuse = false;
    } else if (fallback_id_[byte] >= 0) {
      symbols.push_back(fallback_id_[byte]);
      fuse = false;
    } else if (spec_->unk) {
      if (!fuse) symbols.push_back(*spec_->unk);
      fuse = spec_->fuse_unk;
    }
  }
}

void Bpe::encode_by_merging(std::string_view piece, std::vector<TokenId>& out) const {
  std::vector<TokenId> symbols;
  symbols_of(piece, symbols);
  const auto n = static_cast<int32_t>(symbols.size());
  constexpr TokenId kGone = -1;
  std::vector<int32_t> next(symbols.size()), previous(symbols.size());
  std::vector<uint64_t>
      heap;  // rank in the high half, place in the low: the leftmost of equals comes first
  const auto push = [&](int32_t at) {
    if (at < 0 || next[static_cast<size_t>(at)] >= n) return;
    const auto left = static_cast<size_t>(at), right = static_cast<size_t>(next[left]);
    const Merge* merge = find_merge(symbols[left], symbols[right]);
    if (merge == nullptr) return;
    heap.push_back(uint64_t{static_cast<uint32_t>(merge->rank)} << 32 | static_cast<uint32_t>(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < n; ++i) {
    next[static_cast<size_t>(i)] = i + 1;
    previous[static_cast<size_t>(i)] = i - 1;
  }
  for (int32_t i = 0; i < n; ++i) push(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto at = static_cast<size_t>(heap.back() & 0xFFFFFFFFu);
    const auto rank = static_cast<int32_t>(heap.back() >> 32);
    heap.pop_back();
    if (symbols[at] == kGone || next[at] >= n) continue;
    const auto right = static_cast<size_t>(next[at]);
    const Merge* merge = find_merge(symbols[at], symbols[right]);
    if (merge == nullptr || merge->rank != rank) continue;  // one of the two has changed since
    symbols[at] = merge->id;
    symbols[right] = kGone;
    next[at] = next[right];
    if (next[at] < n) previous[static_cast<size_t>(next[at])] = static_cast<int32_t>(at);
    push(static_cast<int32_t>(at));
    push(previous[at]);
  }
  std::copy_if(symbols.begin(), symbols.end(), std::back_inserter(out),
               [](TokenId id) { return id != kGone; });
}

}  // namespace deepmint
