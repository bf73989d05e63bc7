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
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/flat_map.h"
#include "grammar/grammar.h"

namespace deepmint::grammar {

class Lexer {
 public:
  using State = uint32_t;
  static constexpr State kDead = 0;
  static constexpr uint32_t kNoAccept = 0;
  using Limits = AutomatonLimits;

  Lexer(Grammar& grammar, const Limits& limits);

  // Throws the automaton away first when it is over budget or ran into its limits, and what is
  // remembered of derivatives when that has grown much; the states stay.
  std::unique_lock<std::mutex> lock();
  uint64_t epoch() const { return epoch_; }
  bool exhausted() const { return exhausted_ || grammar_.regexes.exhausted(); }
  // Throws everything away. `alone`: for one step that found the automaton too full; it may then
  // take twice the states (and three times the expressions), which is enough for whatever succeeds
  // where parts of it are known already, and nothing kept elsewhere is used.
  void reset(bool alone = false);
  bool alone() const { return alone_; }

  State start(std::span<const uint32_t> terminals);  // sorted, distinct
  // The state behind `text`, from start(terminals). Nothing of the way is kept, so that a long text
  // needs no more of the limits than a short one.
  State behind(std::span<const uint32_t> terminals, std::string_view text);
  // Forgets all expressions but those that states need.
  void forget_expressions();
  State next(State state, uint8_t byte) {
    const uint32_t known = rows_[states_[state].row + class_of_[byte]];
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

  // A state in whose place `state` stands for texts of up to `limit` bytes (RegexSet::within), its
  // items in the same order.
  State within(State state, uint32_t limit);

  // True when every plain text from here stays inside a JSON string; false where that is not plain
  // to see.
  bool takes_plain(State state) const;

  // Of the residual languages of a state, whatever their terminals are called.
  Hash128 residual_hash(State state) const;
  // An accept set as indices into the items of a state that leads to it, and back.
  std::vector<uint32_t> items_of_accept(State state, uint32_t accept) const;
  uint32_t accept_of_items(State state, std::span<const uint32_t> items);

  size_t memory_bytes() const;  // of the states; their residuals are in the grammar's regexes

 private:
  static constexpr uint32_t kUnknown = 0xffffffffu, kNoState = 0xffffffffu;
  struct Item {
    uint32_t terminal;
    RegexId rest;
    friend bool operator==(const Item&, const Item&) = default;
  };
  struct StateData {
    uint32_t begin = 0, size = 0;  // of items_
    uint32_t accept = kNoAccept;
    uint32_t row = 0;  // where its row begins; that of the dead state or the unknown one at first
    uint32_t hash = 0;
    bool can_continue = false;
  };
  void find_own_classes();
  State step(State state, uint8_t byte);
  void derive(std::vector<Item>& items, uint8_t byte);
  size_t max_nodes() const { return limits_.max_nodes * (alone_ ? 3 : 1); }
  uint32_t hash_of(std::span<const Item> items) const;
  // kNoState for a new one unless it may be added.
  State intern(std::span<const Item> items, bool may_add = true);
  uint32_t intern_accept(std::span<const uint32_t> terminals);

  Grammar& grammar_;
  Limits limits_;
  std::mutex mutex_;
  uint64_t epoch_ = 0;
  bool exhausted_ = false, alone_ = false;
  RegexSet::Mark mark_;
  size_t bytes_at_mark_ = 0;  // of the regexes
  size_t kept_bytes_ = 0;     // of the regexes when expressions were last forgotten
  size_t nodes_to_forget_at_ = 0;
  std::array<uint8_t, 256> class_of_{};
  std::vector<uint8_t> byte_of_;  // a byte of each class
  // Terminals whose derivatives cost most have classes of their own, which are fewer: per terminal
  // 0 or an index + 1 in stand_ins_, the byte that stands for each.
  std::vector<uint8_t> own_classes_;
  std::vector<std::array<uint8_t, 256>> stand_ins_;
  uint32_t n_classes_ = 1;

  std::vector<StateData> states_;
  std::vector<Item> items_;
  // [..][n_classes]: the dead state's row, one where nothing is known, which all states have until
  // they are left for the first time, and then one for each.
  std::vector<uint32_t> rows_;
  std::vector<State> index_;                                // open addressing by StateData::hash
  std::vector<std::pair<uint32_t, uint32_t>> accept_sets_;  // begin, size
  std::vector<uint32_t> accept_terminals_;
  FlatMap<uint32_t> accept_index_;     // hash of the terminals -> the first such set
  std::vector<uint32_t> accept_next_;  // per set: another one of the same hash, or 0
  std::vector<Item> scratch_;
  std::vector<uint32_t> accepted_;
  void index_all(size_t slots);
};

}  // namespace deepmint::grammar
