// Earley's parser over lexemes, one byte at a time and with a way back.
//
// A position in the text is a set of threads. A thread is an Earley set, in which lexemes began,
// and the lexer's state over the lexemes that the set allows. A byte moves every thread; where
// lexemes end, the scanned items of all threads together make one new Earley set, which starts one
// new thread. So no longest-match rule is needed and the language is exact. Usually one or two
// threads live.
//
// Sets hold no completed items; the others are sorted by the symbol after the dot. Nullable
// nonterminals are passed when they are predicted (Aycock and Horspool 2002), so that a completion
// never has to look into the set that is being built.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/flat_map.h"
#include "grammar/grammar.h"
#include "grammar/lexer.h"

namespace deepmint::grammar {

class Parser {
 public:
  struct Limits {
    size_t max_set_items = 200'000;  // of one Earley set
    size_t max_items = 16'000'000;   // of all sets of a text
    size_t max_threads = 1'000;
  };
  static constexpr uint32_t kNone = 0xffffffffu;

  // A place to come back to: sizes of the stacks below.
  struct Frame {
    uint32_t threads_begin = 0, threads_end = 0;
    uint32_t boundary = kNone;  // the set of this position when a lexeme ended here
    uint32_t n_sets = 0, n_items = 0;
    uint32_t position = 0;  // bytes of text before it
    uint64_t epoch = 0;     // of the lexer whose states the threads hold
  };

  Parser(const Grammar& grammar, Lexer& lexer);  // the lexer is locked by the caller, always

  const Frame& here() const { return here_; }
  void go_back(const Frame& frame);  // to a frame that was here() earlier
  bool push(uint8_t byte);           // false: no continuation; the parser has moved all the same
  bool push_token(uint32_t token_index);  // an explicit token; false as above
  bool alive() const { return here_.threads_begin != here_.threads_end || here_.boundary != kNone; }
  bool complete() const { return here_.boundary != kNone && sets_[here_.boundary].complete; }
  bool takes_byte(uint8_t byte);  // push() would succeed
  bool can_take_bytes() const { return here_.threads_begin != here_.threads_end; }
  void next_tokens(std::vector<uint32_t>& out) const;  // indices of explicit tokens possible here
  bool takes_token() const;                            // any of them

  // Moves the threads of here() down onto those of `frame`, which stays reachable.
  void settle(const Frame& frame);
  // While looking ahead, sets are kept until the end and found again by what went into them.
  void begin_lookahead();
  void end_lookahead();

  // While looking ahead: the state in which lexemes begin once those of `accept`, begun in `set`,
  // have ended here; kDead when nothing can follow.
  Lexer::State start_after(uint32_t set, uint32_t accept) {
    const Scan scan{set, accept};
    return sets_[set_of({&scan, 1})].start;
  }

  // After the lexer forgot its states: finds those of here() from the bytes pushed so far.
  void find_states_again(std::string_view text);

  bool exhausted() const { return exhausted_; }

  struct Thread {
    uint32_t set;
    Lexer::State state;
  };
  std::span<const Thread> live() const {
    return {threads_.data() + here_.threads_begin, here_.threads_end - here_.threads_begin};
  }

 private:
  struct Item {
    uint32_t dot, origin;
  };
  struct Set {
    uint32_t begin = 0, end = 0;  // of items_
    Lexer::State start = Lexer::kDead;
    uint32_t position = 0;  // bytes of the text before it
    bool complete = false;
  };
  struct Scan {
    uint32_t set, accept;
    friend bool operator==(const Scan&, const Scan&) = default;
  };

  void add(uint32_t dot, uint32_t origin);
  void remember(uint64_t key, std::span<const Scan> scans, uint32_t set);
  uint32_t close(uint32_t first_item);  // builds a set from the kernel items at the end of items_
  uint32_t set_of(std::span<const Scan> scans);
  std::pair<uint32_t, uint32_t> waiting(uint32_t set, uint32_t code) const;
  void collect_starts(uint32_t begin, uint32_t end);  // terminals after the dots, into starts_
  Lexer::State start_state(uint32_t begin, uint32_t end);

  const Grammar& grammar_;
  Lexer& lexer_;
  Limits limits_;
  Frame here_;
  std::vector<Thread> threads_;
  std::vector<Set> sets_;
  std::vector<Item> items_;
  bool exhausted_ = false;

  bool looking_ahead_ = false;
  Frame ahead_;
  struct Known {
    uint32_t stamp = 0, set = 0, begin = 0, size = 0;  // begin, size: of known_scans_
    uint64_t key = 0;
  };
  std::vector<Known> known_;  // open addressing; entries of this look-ahead bear its stamp
  std::vector<Scan> known_scans_;
  uint32_t ahead_stamp_ = 0;
  size_t known_count_ = 0;

  // Of the set that is being built.
  uint32_t building_ = 0;
  std::vector<uint32_t> predicted_;  // per nonterminal: stamp
  uint32_t stamp_ = 0;
  struct Slot {
    uint32_t stamp, dot, origin;
  };
  std::vector<Slot> seen_;  // open addressing
  size_t seen_count_ = 0;
  std::vector<Scan> scans_;
  std::vector<uint32_t> starts_;
};

}  // namespace deepmint::grammar
