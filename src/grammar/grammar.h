// Context-free grammars whose terminals are regular languages (lexemes).
//
//   GrammarBuilder g;
//   Symbol item = g.nonterminal("item"), list = g.nonterminal("list");
//   Symbol digit = g.terminal(g.regexes().bytes(ByteSet::range('0', '9')));
//   g.add(item, {{digit}});
//   g.add(list, {{g.literal("["), g.repeat(item, 0, kUnbounded), g.literal("]")}});
//   g.set_start(list);
//   DEEPMINT_TRY(grammar, g.build());
//
// The meaning is exact: the language is the set of byte strings (with explicit tokens between)
// that the context-free grammar generates when each terminal stands for any string of its regular
// language. There is no longest-match rule and no white space of its own.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "deepmint/result.h"
#include "deepmint/types.h"
#include "grammar/regex_ast.h"

namespace deepmint::grammar {

enum class SymbolKind : uint8_t { kNonterminal, kTerminal, kToken };

struct Symbol {
  SymbolKind kind = SymbolKind::kNonterminal;
  uint32_t index = 0;
  friend bool operator==(const Symbol&, const Symbol&) = default;
};

// A checked grammar in the flat form that the parser reads. Made by GrammarBuilder::build; every
// symbol in it is productive and reachable, no terminal matches the empty string.
struct Grammar {
  // A dot is a place in a production: dots of one production follow each other, and `next` says
  // what comes after the dot: a code() of a symbol, or end() of the production's left side.
  static constexpr uint32_t kKindShift = 30, kIndexMask = (1u << kKindShift) - 1;
  static constexpr uint32_t kEnd = 3u << kKindShift;
  static uint32_t code(Symbol s) { return (static_cast<uint32_t>(s.kind) << kKindShift) | s.index; }

  RegexSet regexes;
  std::vector<RegexId> terminals;
  std::vector<TokenId> tokens;
  std::vector<uint32_t> next;       // per dot
  std::vector<uint32_t> first_dot;  // per production, grouped by left side
  std::vector<uint32_t>
      productions_begin;          // per nonterminal: range in first_dot; one more at the end
  std::vector<uint8_t> nullable;  // per nonterminal
  uint32_t start = 0;

  size_t nonterminals() const { return nullable.size(); }
  size_t memory_bytes() const;
};

// Of the automaton that is grown over a grammar as it is used (lexer.h).
struct AutomatonLimits {
  size_t soft_bytes = size_t{16} << 20;   // thrown away between calls above this; what the grammar
                                          // itself takes does not count
  size_t forget_bytes = size_t{1} << 20;  // growth of what is remembered of expressions, after
                                          // which only those behind states are kept
  size_t max_states = 200'000;            // error where one step or one slice needs more
  size_t max_nodes = 1'000'000;           // expressions behind them, of the same
};

class GrammarBuilder {
 public:
  struct Limits {
    size_t max_symbols = 400'000;  // right-hand sides together
    RegexSet::Limits regex;
  };

  GrammarBuilder() : GrammarBuilder(Limits()) {}
  explicit GrammarBuilder(const Limits& limits);

  RegexSet& regexes() { return regexes_; }

  Symbol nonterminal(std::string_view name = {});  // a new one each time; the name is for messages
  Symbol terminal(RegexId regex);  // one lexeme; the same regex gives the same symbol
  Symbol token(TokenId id);        // a special token, by explicit reference
  Symbol literal(std::string_view text) { return terminal(regexes_.literal(text)); }
  Symbol empty();  // the empty string

  void add(Symbol lhs, std::span<const Symbol> rhs);  // lhs: a nonterminal
  void add(Symbol lhs, std::initializer_list<Symbol> rhs) {
    add(lhs, std::span<const Symbol>(rhs.begin(), rhs.size()));
  }

  // New nonterminals made of others. A repetition takes O(log max) productions.
  Symbol sequence(std::span<const Symbol> parts);
  Symbol sequence(std::initializer_list<Symbol> parts) {
    return sequence(std::span<const Symbol>(parts.begin(), parts.size()));
  }
  Symbol choice(std::span<const Symbol> parts);
  Symbol choice(std::initializer_list<Symbol> parts) {
    return choice(std::span<const Symbol>(parts.begin(), parts.size()));
  }
  Symbol optional(Symbol s);
  Symbol repeat(Symbol s, uint32_t min, uint32_t max);

  void set_start(Symbol start);

  // The first of `symbols` that generates no text, or their number: for errors that name the part
  // at fault, where build() would leave it out and all that needs it. Meaningless once exhausted().
  size_t first_empty(std::span<const Symbol> symbols);

  bool exhausted() const { return exhausted_ || regexes_.exhausted(); }

  // Checks and flattens; the builder is spent. kInvalidArgument: no start, a nonterminal without
  // production, an empty language. kTooLarge: a limit was passed.
  Result<Grammar> build();

 private:
  struct Production {
    uint32_t lhs, begin, size;
  };
  struct Productive {
    std::vector<uint8_t> nonterminals, productions;
  };
  Productive find_productive(std::span<const uint8_t> terminal_ok) const;
  Symbol twice(Symbol s);
  Symbol exactly(Symbol s, uint32_t n);
  Symbol at_most(Symbol s, uint32_t n);

  Limits limits_;
  RegexSet regexes_;
  RegexSet::Mark empty_set_;
  std::vector<std::string> names_;
  std::vector<RegexId> terminals_;
  std::unordered_map<uint32_t, uint32_t> terminal_index_;
  std::vector<TokenId> tokens_;
  std::unordered_map<TokenId, uint32_t> token_index_;
  std::vector<Production> productions_;
  std::vector<Symbol> rhs_;
  std::unordered_map<uint64_t, Symbol> twice_;
  Symbol empty_{}, start_{};
  bool has_empty_ = false, has_start_ = false, exhausted_ = false;
};

}  // namespace deepmint::grammar
