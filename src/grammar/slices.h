// What one lexer state says about every token of a vocabulary, kept.
//
// A token whose bytes lead a state anywhere but to death is allowed, whatever the parser thinks:
// either it stays inside a lexeme, or it ends one that the parser had asked for. Only what comes
// behind the end of a lexeme inside a token needs the parser; the places where that can happen are
// the slice's exits. So a mask is the union of the slices of the live threads plus what is found
// below their exits.
//
// Slices that took long are shared by all grammars of a vocabulary: they depend on the residual
// languages alone, and the inside of a JSON string is the same everywhere. All caches are bounded
// and hold nothing that cannot be computed again.
#pragma once

#include <array>
#include <cstdint>
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
  // Allowed tokens: a bit per id when there are many, else a list.
  std::vector<uint32_t> bits;
  std::vector<uint32_t> ids;
  struct Exits {
    std::vector<uint32_t> items;  // items of the state that end here, by their index in the state
    std::vector<uint32_t> nodes;  // of the trie, ascending; each has children
  };
  std::vector<Exits> exits;

  size_t memory_bytes() const;
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
  struct Exit {
    uint32_t accept;  // the lexer's accept set
    std::span<const uint32_t> nodes;
  };
  struct View {
    std::shared_ptr<const Slice> slice;
    std::vector<uint32_t> accepts;  // per exit group, the lexer's accept set
  };

  Slices(Lexer& lexer, const Vocabulary& vocabulary) : lexer_(lexer), vocabulary_(vocabulary) {}

  // Valid until the next call. The lexer may run into its limits here.
  const View& of(Lexer::State state);
  size_t memory_bytes() const { return bytes_; }

 private:
  std::shared_ptr<const Slice> compute(Lexer::State state, bool& costly);
  // Whether every plain text (PlainTier) of up to `chars` characters from here stays inside the
  // lexeme without ever completing it. `partial`: where in the UTF-8 of a character (utf8_next).
  bool holds_plain(Lexer::State state, uint8_t partial, uint32_t chars);

  Lexer& lexer_;
  const Vocabulary& vocabulary_;
  uint64_t epoch_ = 0;
  std::unordered_map<Lexer::State, View> views_;
  size_t bytes_ = 0;
  std::vector<Lexer::State> path_;
  struct Known {
    uint8_t holds = 0, fails = 255;  // characters
  };
  std::unordered_map<uint64_t, Known> plain_;  // state << 3 | partial
  // Per partial and byte class of the lexer: the partials that its plain bytes lead to, as bits.
  std::vector<std::array<uint8_t, 256>> plain_steps_;
};

}  // namespace deepmint::grammar
