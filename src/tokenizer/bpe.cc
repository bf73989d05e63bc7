#include "tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "tokenizer/byte_level.h"

namespace deepmint {
namespace {

constexpr size_t kShortSymbols = 32;
constexpr int32_t kNoRank = INT32_MAX;

uint64_t pair_key(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t pair_hash(uint64_t pair) {
  return static_cast<size_t>((pair * 0x9E3779B97F4A7C15ull) >> 20);
}

}  // namespace

const Bpe::Merge* Bpe::find_merge(TokenId left, TokenId right) const {
  const uint64_t pair = pair_key(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t i = pair_hash(pair) & mask;; i = (i + 1) & mask) {
    if (merges_[i].pair == pair) return &merges_[i];
    if (merges_[i].pair == kNoPair) return nullptr;
  }
}

void Bpe::insert_merge(TokenId left, TokenId right, int32_t rank, TokenId id) {
  const uint64_t pair = pair_key(left, right);
  const size_t mask = merges_.size() - 1;
  size_t i = pair_hash(pair) & mask;
  while (merges_[i].pair != pair && merges_[i].pair != kNoPair) i = (i + 1) & mask;
  merges_[i] = {pair, rank, id};  // of equal pairs the last one counts
}

Result<Bpe> Bpe::create(const TokenizerSpec& spec) {
  Bpe bpe;
  bpe.spec_ = &spec;
  const size_t n = spec.vocab.size();
  std::vector<bool> is_added(n, false), special(n, false), hidden(n, false);
  for (const auto& added : spec.added) {
    const auto id = static_cast<size_t>(added.id);
    is_added[id] = hidden[id] = true;
    special[id] = special[id] || added.special;
  }
  const auto hide = [&](TokenId id) {
    hidden[static_cast<size_t>(id)] = special[static_cast<size_t>(id)] = true;
  };
  for (TokenId id : spec.decode_only) hide(id);
  for (const auto& fallback : spec.byte_fallback) hide(fallback.second);

  // Ordinary tokens first: an added token with the same bytes must not hide one. Control tokens are
  // left out, so that no text gives one; but a byte keeps its only token, whatever the flags of
  // that token.
  bpe.whole_ = TokenTable(n);
  for (const bool added : {false, true})
    for (size_t id = 0; id < n; ++id)
      if (hidden[id] == added && !spec.vocab[id].empty() &&
          (!special[id] || (is_added[id] && spec.vocab[id].size() == 1)))
        bpe.whole_.insert(spec.vocab[id], static_cast<TokenId>(id));

  for (unsigned byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    bpe.byte_id_[byte] = bpe.whole_.find({&c, 1});
  }
  bpe.fallback_id_.fill(-1);
  for (const auto& [byte, id] : spec.byte_fallback) bpe.fallback_id_[byte] = id;

  size_t capacity = 16;
  while (capacity < spec.merges.size() * 2) capacity *= 2;
  bpe.merges_.resize(capacity);
  TokenTable controls(spec.added.size());
  for (const auto& added : spec.added)
    if (added.special) controls.insert(spec.vocab[static_cast<size_t>(added.id)], added.id);
  std::string joined;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto [left, right] = spec.merges[rank];
    joined = spec.vocab[static_cast<size_t>(left)];
    joined += spec.vocab[static_cast<size_t>(right)];
    const TokenId id = bpe.whole_.find(joined);
    if (id < 0) {
      if (controls.find(joined) >= 0) continue;
      return fail(
          ErrorCode::kInvalidFile,
          fmt::format("its result \"{}\" is not in the vocabulary", byte_level::encode(joined)),
          fmt::format("merge {}", rank));
    }
    bpe.insert_merge(left, right, static_cast<int32_t>(rank), id);
  }
  return bpe;
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

void Bpe::merge_short(std::vector<TokenId>& symbols) const {
  std::array<int32_t, kShortSymbols> rank;
  const auto rank_at = [&](size_t i) {
    if (i + 1 >= symbols.size()) return kNoRank;
    const Merge* merge = find_merge(symbols[i], symbols[i + 1]);
    return merge == nullptr ? kNoRank : merge->rank;
  };
  for (size_t i = 0; i < symbols.size(); ++i) rank[i] = rank_at(i);
  while (symbols.size() > 1) {
    const auto best =
        std::min_element(rank.begin(), rank.begin() + static_cast<long>(symbols.size()));
    if (*best == kNoRank) return;
    const auto at = static_cast<size_t>(best - rank.begin());
    symbols[at] = find_merge(symbols[at], symbols[at + 1])->id;
    std::copy(best + 2, rank.begin() + static_cast<long>(symbols.size()), best + 1);
    symbols.erase(symbols.begin() + static_cast<long>(at) + 1);
    rank[at] = rank_at(at);
    if (at > 0) rank[at - 1] = rank_at(at - 1);
  }
}

void Bpe::merge_long(std::vector<TokenId>& symbols) const {
  const auto n = static_cast<int32_t>(symbols.size());
  constexpr TokenId kGone = -1;
  std::vector<int32_t> next(symbols.size()), previous(symbols.size());
  std::vector<uint64_t>
      heap;  // rank in the high half, position in the low: the leftmost of equals comes first
  const auto push = [&](int32_t at) {
    if (at < 0 || next[static_cast<size_t>(at)] >= n) return;
    const Merge* merge = find_merge(symbols[static_cast<size_t>(at)],
                                    symbols[static_cast<size_t>(next[static_cast<size_t>(at)])]);
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
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kGone), symbols.end());
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& out) const {
  if (spec_->ignore_merges) {
    if (const TokenId id = whole_.find(piece); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  thread_local std::vector<TokenId> symbols;
  symbols.clear();
  symbols_of(piece, symbols);
  if (symbols.size() <= kShortSymbols)
    merge_short(symbols);
  else
    merge_long(symbols);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace deepmint
