// The lexemes of a grammar as one lazily determinised automaton over bytes.
//
// A state is a set of (terminal, residual language): what is left of each terminal that the parser
// could be in the middle of. State 0 is dead. Every residual is non-empty, so a live state always
// leads to the end of some lexeme.
//
// Shared by all matchers of a Compiled: a caller holds lock() for as long as it reads states. When
// the automaton passes its budget it is thrown away whole at the next lock() and epoch() moves on;
// matchers then find their states again from their text. Nothing that a caller can see depends on
// it.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace deepmint::grammar {

class Lexer {
 public:
  using State = uint32_t;
  static constexpr State kDead = 0;
  static constexpr uint32_t kNoAccept = 0;
  struct Limits {
    size_t soft_bytes = size_t{16} << 20;  // thrown away between calls above this; what the
                                           // grammar itself takes does not count
    size_t max_states = 200'000;           // error when one call needs more
  };

  explicit Lexer(Grammar& grammar) : Lexer(grammar, Limits()) {}
  Lexer(Grammar& grammar, const Limits& limits);

  // Throws the automaton away first when it is over budget or ran into its limits.
  std::unique_lock<std::mutex> lock();
  uint64_t epoch() const { return epoch_; }
  bool exhausted() const { return exhausted_ || grammar_.regexes.exhausted(); }
  void reset();

  State start(std::span<const uint32_t> terminals);  // sorted, distinct
  State next(State state, uint8_t byte) {
    const uint32_t known = rows_[state * n_classes_ + class_of_[byte]];
    return known != kUnknown ? known : step(state, byte);
  }
  uint32_t accepts(State state) const { return states_[state].accept; }  // id of an accept set
  std::span<const uint32_t> accept_set(uint32_t id) const {
    return {accept_terminals_.data() + accept_sets_[id].first, accept_sets_[id].second};
  }
  uint32_t classes() const { return n_classes_; }
  uint8_t class_of(uint8_t byte) const { return class_of_[byte]; }
  uint8_t byte_of(uint32_t byte_class) const { return byte_of_[byte_class]; }
  bool can_continue(State state) const { return states_[state].can_continue; }

  // Of the residual languages of a state, whatever their terminals are called.
  Hash128 residual_hash(State state) const;
  // An accept set as indices into the items of a state that leads to it, and back.
  std::vector<uint32_t> items_of_accept(State state, uint32_t accept) const;
  uint32_t accept_of_items(State state, std::span<const uint32_t> items);

  size_t memory_bytes() const;  // of the states; their residuals are in the grammar's regexes

 private:
  static constexpr uint32_t kUnknown = 0xffffffffu;
  struct Item {
    uint32_t terminal;
    RegexId rest;
    friend bool operator==(const Item&, const Item&) = default;
  };
  struct StateData {
    uint32_t begin = 0, size = 0;  // of items_
    uint32_t accept = kNoAccept;
    bool can_continue = false;
  };
  State step(State state, uint8_t byte);
  State intern(std::vector<Item>& items);
  uint32_t intern_accept(std::span<const uint32_t> terminals);

  Grammar& grammar_;
  Limits limits_;
  std::mutex mutex_;
  uint64_t epoch_ = 0;
  bool exhausted_ = false;
  RegexSet::Mark mark_;
  size_t bytes_at_mark_ = 0;  // of the regexes
  std::array<uint8_t, 256> class_of_{};
  std::vector<uint8_t> byte_of_;  // a byte of each class
  uint32_t n_classes_ = 1;

  std::vector<StateData> states_;
  std::vector<Item> items_;
  std::vector<uint32_t> rows_;  // [states][n_classes]
  std::unordered_multimap<uint64_t, State> index_;
  std::vector<std::pair<uint32_t, uint32_t>> accept_sets_;  // begin, size
  std::vector<uint32_t> accept_terminals_;
  std::unordered_multimap<uint64_t, uint32_t> accept_index_;
  std::vector<Item> scratch_;
};

}  // namespace deepmint::grammar
