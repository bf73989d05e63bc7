#include "grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/names.h"

namespace deepmint::grammar {

size_t Grammar::memory_bytes() const {
  return regexes.memory_bytes() + terminals.capacity() * sizeof(RegexId) +
         tokens.capacity() * sizeof(TokenId) +
         (next.capacity() + first_dot.capacity() + productions_begin.capacity()) * 4 +
         nullable.capacity();
}

GrammarBuilder::GrammarBuilder(const Limits& limits)
    : limits_(limits), regexes_(limits.regex), empty_set_(regexes_.mark()) {}

Symbol GrammarBuilder::nonterminal(std::string_view name) {
  if (names_.size() >= limits_.max_symbols) exhausted_ = true;
  if (exhausted_) return {SymbolKind::kNonterminal, 0};
  names_.emplace_back(name);
  return {SymbolKind::kNonterminal, static_cast<uint32_t>(names_.size() - 1)};
}

Symbol GrammarBuilder::terminal(RegexId regex) {
  const auto [it, is_new] = terminal_index_.try_emplace(static_cast<uint32_t>(regex),
                                                        static_cast<uint32_t>(terminals_.size()));
  if (is_new) terminals_.push_back(regex);
  return {SymbolKind::kTerminal, it->second};
}

Symbol GrammarBuilder::token(TokenId id) {
  const auto [it, is_new] = token_index_.try_emplace(id, static_cast<uint32_t>(tokens_.size()));
  if (is_new) tokens_.push_back(id);
  return {SymbolKind::kToken, it->second};
}

Symbol GrammarBuilder::empty() {
  if (!has_empty_) {
    empty_ = nonterminal();
    add(empty_, {});
    has_empty_ = true;
  }
  return empty_;
}

void GrammarBuilder::add(Symbol lhs, std::span<const Symbol> rhs) {
  if (rhs_.size() + productions_.size() + rhs.size() >= limits_.max_symbols) exhausted_ = true;
  if (exhausted_) return;
  productions_.push_back(
      {lhs.index, static_cast<uint32_t>(rhs_.size()), static_cast<uint32_t>(rhs.size())});
  rhs_.insert(rhs_.end(), rhs.begin(), rhs.end());
}

Symbol GrammarBuilder::sequence(std::span<const Symbol> parts) {
  if (parts.empty()) return empty();
  if (parts.size() == 1) return parts[0];
  const Symbol out = nonterminal();
  add(out, parts);
  return out;
}

Symbol GrammarBuilder::choice(std::span<const Symbol> parts) {
  if (parts.size() == 1) return parts[0];
  const Symbol out = nonterminal();
  for (const Symbol& part : parts) add(out, {part});
  return out;
}

Symbol GrammarBuilder::optional(Symbol s) {
  const Symbol out = nonterminal();
  add(out, {});
  add(out, {s});
  return out;
}

Symbol GrammarBuilder::twice(Symbol s) {
  const uint64_t key = Grammar::code(s);
  if (const auto it = twice_.find(key); it != twice_.end()) return it->second;
  const Symbol out = sequence({s, s});
  twice_.emplace(key, out);
  return out;
}

// s{n} through pairs: s{2k} = (ss){k}.
Symbol GrammarBuilder::exactly(Symbol s, uint32_t n) {
  if (n == 0) return empty();
  if (n == 1) return s;
  const Symbol half = exactly(twice(s), n / 2);
  return n % 2 == 0 ? half : sequence({half, s});
}

// s{0,n}, each count in exactly one way, so that the parser never sees an ambiguity that the
// grammar does not have: s{0,2k+1} = (ss){0,k} s?  and  s{0,2k} = (ss){0,k-1} s? | (ss){k}.
Symbol GrammarBuilder::at_most(Symbol s, uint32_t n) {
  if (n == 0) return empty();
  if (n == 1) return optional(s);
  const Symbol pair = twice(s);
  if (n % 2 == 1) return sequence({at_most(pair, n / 2), optional(s)});
  return choice({sequence({at_most(pair, n / 2 - 1), optional(s)}), exactly(pair, n / 2)});
}

Symbol GrammarBuilder::repeat(Symbol s, uint32_t min, uint32_t max) {
  if (max == kUnbounded) {
    const Symbol list = nonterminal();  // left recursion: one item per set, however long the list
    add(list, {exactly(s, min)});
    add(list, {list, s});
    return list;
  }
  if (min == 0) return at_most(s, max);
  if (min == max) return exactly(s, min);
  return sequence({exactly(s, min), at_most(s, max - min)});
}

void GrammarBuilder::set_start(Symbol start) {
  start_ = start;
  has_start_ = true;
}

GrammarBuilder::Productive GrammarBuilder::find_productive(
    std::span<const uint8_t> terminal_ok) const {
  const size_t n = names_.size();
  Productive out{std::vector<uint8_t>(n, 0), std::vector<uint8_t>(productions_.size(), 0)};
  std::vector<std::vector<uint32_t>> uses(n);  // productions by nonterminal of their right side
  std::vector<uint32_t> waiting(productions_.size(), 0), queue;
  std::vector<uint8_t> bad(productions_.size(), 0);
  const auto settle = [&](uint32_t p) {
    out.productions[p] = 1;
    const uint32_t lhs = productions_[p].lhs;
    if (std::exchange(out.nonterminals[lhs], 1) == 0) queue.push_back(lhs);
  };
  for (uint32_t p = 0; p < productions_.size(); ++p) {
    const Production& production = productions_[p];
    for (uint32_t i = 0; i < production.size; ++i) {
      const Symbol s = rhs_[production.begin + i];
      if (s.kind == SymbolKind::kTerminal) bad[p] |= !terminal_ok[s.index];
      if (s.kind != SymbolKind::kNonterminal) continue;
      ++waiting[p];
      uses[s.index].push_back(p);
    }
    if (waiting[p] == 0 && !bad[p]) settle(p);
  }
  while (!queue.empty()) {
    const uint32_t done = queue.back();
    queue.pop_back();
    for (const uint32_t p : uses[done])
      if (--waiting[p] == 0 && !bad[p]) settle(p);
  }
  return out;
}

size_t GrammarBuilder::first_empty(std::span<const Symbol> symbols) {
  std::vector<uint8_t> terminal_ok(terminals_.size(), 0);
  for (size_t t = 0; t < terminals_.size() && !exhausted(); ++t)
    terminal_ok[t] = !regexes_.empty(terminals_[t]);
  const Productive found = find_productive(terminal_ok);
  for (size_t i = 0; i < symbols.size(); ++i) {
    const Symbol s = symbols[i];
    if (s.kind == SymbolKind::kNonterminal
            ? !found.nonterminals[s.index]
            : s.kind == SymbolKind::kTerminal && !terminal_ok[s.index])
      return i;
  }
  return symbols.size();
}

Result<Grammar> GrammarBuilder::build() {
  if (has_start_ && start_.kind != SymbolKind::kNonterminal) {
    const Symbol root = nonterminal();
    add(root, {start_});
    start_ = root;
  }
  // Terminals never match the empty string: what does becomes "nothing, or the rest of it".
  std::vector<uint8_t> terminal_ok(terminals_.size(), 0);
  std::vector<Symbol> stand_in(terminals_.size());
  const size_t n_terminals = terminals_.size();
  for (size_t t = 0; t < n_terminals && !exhausted(); ++t) {
    stand_in[t] = {SymbolKind::kTerminal, static_cast<uint32_t>(t)};
    if (!regexes_.nullable(terminals_[t])) continue;
    const RegexId rest = regexes_.without_epsilon(terminals_[t]);
    stand_in[t] = rest == regexes_.none() ? empty() : nonterminal();
    if (rest == regexes_.none()) continue;
    add(stand_in[t], {});
    add(stand_in[t], {terminal(rest)});
  }
  const size_t n_old = stand_in.size();
  const auto resolve = [&](Symbol s) {
    return s.kind == SymbolKind::kTerminal && s.index < n_old ? stand_in[s.index] : s;
  };
  // A stand-in's own production must keep its terminal; those are the ones added above, whose
  // terminals do not match the empty string and so stand for themselves.
  for (Symbol& s : rhs_) s = resolve(s);
  terminal_ok.resize(terminals_.size(), 0);
  for (size_t t = 0; t < terminals_.size() && !exhausted(); ++t)
    terminal_ok[t] = !regexes_.nullable(terminals_[t]) && !regexes_.empty(terminals_[t]);
  if (exhausted())
    return fail(ErrorCode::kTooLarge,
                fmt::format("the grammar passes a limit: {} symbols in rules, {} regex nodes",
                            limits_.max_symbols, limits_.regex.max_nodes));
  if (!has_start_) return fail(ErrorCode::kInvalidArgument, "the grammar has no start rule");

  const size_t n = names_.size();
  std::vector<uint8_t> defined(n, 0);
  for (const Production& production : productions_) defined[production.lhs] = 1;
  for (size_t i = 0; i < n; ++i)
    if (!defined[i])
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("rule {} is used but not defined", quote_name(names_[i])));
  const auto [productive, usable] = find_productive(terminal_ok);
  if (!productive[start_.index])
    return fail(ErrorCode::kInvalidArgument, "nothing satisfies it: the language is empty");

  // Reachable through productive productions, renumbered in that order.
  std::vector<std::vector<uint32_t>> of(n);
  for (size_t p = 0; p < productions_.size(); ++p)
    if (usable[p]) of[productions_[p].lhs].push_back(static_cast<uint32_t>(p));
  constexpr uint32_t kNone = 0xffffffffu;
  std::vector<uint32_t> number(n, kNone), order{start_.index};
  number[start_.index] = 0;
  std::vector<uint32_t> terminal_number(terminals_.size(), kNone),
      token_number(tokens_.size(), kNone);
  Grammar out;
  for (size_t at = 0; at < order.size(); ++at) {
    out.productions_begin.push_back(static_cast<uint32_t>(out.first_dot.size()));
    for (const uint32_t p : of[order[at]]) {
      const Production& production = productions_[p];
      if (production.size == 1 &&
          rhs_[production.begin] == Symbol{SymbolKind::kNonterminal, production.lhs})
        continue;  // A → A says nothing
      out.first_dot.push_back(static_cast<uint32_t>(out.next.size()));
      for (uint32_t i = 0; i < production.size; ++i) {
        Symbol s = rhs_[production.begin + i];
        switch (s.kind) {
          case SymbolKind::kNonterminal:
            if (number[s.index] == kNone) {
              number[s.index] = static_cast<uint32_t>(order.size());
              order.push_back(s.index);
            }
            s.index = number[s.index];
            break;
          case SymbolKind::kTerminal:
            if (terminal_number[s.index] == kNone) {
              terminal_number[s.index] = static_cast<uint32_t>(out.terminals.size());
              out.terminals.push_back(terminals_[s.index]);
            }
            s.index = terminal_number[s.index];
            break;
          case SymbolKind::kToken:
            if (token_number[s.index] == kNone) {
              token_number[s.index] = static_cast<uint32_t>(out.tokens.size());
              out.tokens.push_back(tokens_[s.index]);
            }
            s.index = token_number[s.index];
            break;
        }
        out.next.push_back(Grammar::code(s));
      }
      out.next.push_back(Grammar::kEnd | static_cast<uint32_t>(at));
    }
  }
  out.productions_begin.push_back(static_cast<uint32_t>(out.first_dot.size()));

  // Nullable nonterminals: a production whose symbols are all nullable makes its left side so.
  out.nullable.assign(order.size(), 0);
  std::vector<std::vector<uint32_t>> used_by(order.size());
  std::vector<uint32_t> left(out.first_dot.size(), 0), lhs_of(out.first_dot.size(), 0), pending;
  const auto mark = [&](uint32_t p) {
    if (!out.nullable[lhs_of[p]]) {
      out.nullable[lhs_of[p]] = 1;
      pending.push_back(lhs_of[p]);
    }
  };
  for (uint32_t p = 0; p < out.first_dot.size(); ++p) {
    uint32_t dot = out.first_dot[p];
    bool text = false;
    for (; out.next[dot] < Grammar::kEnd; ++dot)
      text |= (out.next[dot] >> Grammar::kKindShift) != 0;
    lhs_of[p] = out.next[dot] & Grammar::kIndexMask;
    if (text) continue;
    for (dot = out.first_dot[p]; out.next[dot] < Grammar::kEnd; ++dot, ++left[p])
      used_by[out.next[dot]].push_back(p);
    if (left[p] == 0) mark(p);
  }
  while (!pending.empty()) {
    const uint32_t nt = pending.back();
    pending.pop_back();
    for (const uint32_t p : used_by[nt])
      if (--left[p] == 0) mark(p);
  }
  out.regexes = std::move(regexes_);
  out.regexes.keep_only(empty_set_, out.terminals);  // what only compiling needed goes
  return out;
}

}  // namespace deepmint::grammar
