// What one lexer state says about every token of a vocabulary, kept.
//
// A token whose bytes lead a state anywhere but to death is allowed, whatever the parser thinks:
// either it stays inside a lexeme, or it ends one that the parser had asked for. Only what comes
// behind the end of a lexeme inside a token needs the parser; the places where that can happen are
// the slice's exits. So a mask is the union of the slices of the live threads plus what is found
// below their exits.
//
// A state that a few bytes lead to one that then stays as it is (a key that is none of the named
// ones, once it has departed from all names) is told by its differences from that one's slice.
//
// Slices that took long are shared by all grammars of a vocabulary: they depend on the residual
// languages alone, and the inside of a JSON string is the same everywhere. All caches are bounded
// and hold nothing that cannot be computed again.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/hash.h"
#include "grammar/lexer.h"
#include "grammar/vocabulary.h"

namespace deepmint::grammar {

struct Slice {
  // Allowed tokens: a bit per id when there are many, and a list.
  std::shared_ptr<const std::vector<uint32_t>> bits;
  std::vector<uint32_t> ids;
  struct Exits {
    std::vector<uint32_t> items;  // items of the state that end here, by their index in the state
    std::vector<uint32_t> nodes;  // of the trie, ascending; each has children
  };
  std::vector<Exits> exits;
  // Only beside a base: its tokens that are not allowed here, and its exits that are none,
  // ascending.
  std::vector<uint32_t> not_ids, not_nodes;

  size_t memory_bytes() const;  // without the bits
};

// Shared slices of a vocabulary, by the residual languages of the state. Locks itself.
class SliceCache {
 public:
  static constexpr size_t kMaxBytes = size_t{64} << 20;
  std::shared_ptr<const Slice> find(const Hash128& key);
  void insert(const Hash128& key, std::shared_ptr<const Slice> slice);

 private:
  struct HashOf {
    size_t operator()(const Hash128& h) const { return h.low; }
  };
  struct Entry {
    Hash128 key;
    std::shared_ptr<const Slice> slice;
  };
  std::mutex mutex_;
  std::list<Entry> order_;  // most recently used first
  std::unordered_map<Hash128, std::list<Entry>::iterator, HashOf> index_;
  size_t bytes_ = 0;
};

// The slices of one lexer; used under its lock.
class Slices {
 public:
  static constexpr size_t kMaxBytes = size_t{2} << 20;
  struct View {
    std::shared_ptr<const Slice> slice;
    std::vector<uint32_t> accepts;  // per exit group, the lexer's accept set
    const View* base = nullptr;     // what the slice adds to and takes from; has none itself
  };

  Slices(Lexer& lexer, const Vocabulary& vocabulary) : lexer_(lexer), vocabulary_(vocabulary) {}

  // Valid until the next call. The lexer may run into its limits here.
  const View& of(Lexer::State state);
  size_t memory_bytes() const { return bytes_ + known_.memory_bytes() + plain_.memory_bytes(); }

 private:
  const View& view_of(Lexer::State state);
  std::shared_ptr<const Slice> compute(Lexer::State state, bool& costly);
  // The state that plain text from here leads to and stays in, if that is another one.
  Lexer::State settled(Lexer::State state);
  // What is different from `base`, among all tokens or those of `some` alone; null when that is too
  // much.
  std::shared_ptr<const Slice> compare(Lexer::State state, Lexer::State base, const SubTrie* some);
  // Whether every plain text (PlainTier) of up to `chars` characters from here stays inside the
  // lexeme without ever completing it. `partial`: where in the UTF-8 of a character (utf8_next).
  bool holds_plain(Lexer::State state, uint8_t partial, uint32_t chars);
  // Given that: whether no plain character can follow such a text of exactly `chars` characters.
  bool ends_plain(Lexer::State state, uint8_t partial, uint32_t chars);
  const std::array<uint8_t, 256>& plain_steps(uint8_t partial);
  std::shared_ptr<const std::vector<uint32_t>> share(std::vector<uint32_t> bits);

  Lexer& lexer_;
  const Vocabulary& vocabulary_;
  uint64_t epoch_ = 0;
  std::deque<View> views_;
  FlatMap<uint32_t> known_;  // by state: index in views_
  size_t bytes_ = 0;
  std::vector<Lexer::State> path_, base_path_;
  struct Known {
    uint8_t holds = 0, fails = 255;  // characters
    uint8_t ends = 0;                // characters + 1 for which ends_plain() was true
    uint8_t goes_on = 0;             // … and false
  };
  FlatMap<Known> plain_;  // state << 3 | partial
  std::unordered_map<uint64_t, std::shared_ptr<const std::vector<uint32_t>>> bits_;  // by hash
  // Per partial and byte class of the lexer: the partials that its plain bytes lead to, as bits.
  std::vector<std::array<uint8_t, 256>> plain_steps_;
};

}  // namespace deepmint::grammar
