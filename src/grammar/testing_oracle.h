// A slow and simple second opinion for tests: regular expressions and context-free grammars as
// trees, read by fixpoints over spans of one text. Nothing here is shared with the product.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace deepmint::grammar::testing {

struct Tree {
  enum Kind { kEmpty, kChars, kConcat, kAlternate, kRepeat, kIntersect, kComplement } kind = kEmpty;
  std::string chars;
  std::vector<Tree> kids;
  uint32_t min = 0, max = 0;  // max kUnbounded = no limit
};

// Ends of matches of `t` that begin at `from`.
inline std::set<size_t> ends(const Tree& t, std::string_view text, size_t from) {
  switch (t.kind) {
    case Tree::kEmpty:
      return {from};
    case Tree::kChars:
      if (from < text.size() && t.chars.find(text[from]) != std::string::npos) return {from + 1};
      return {};
    case Tree::kConcat: {
      std::set<size_t> at{from};
      for (const Tree& kid : t.kids) {
        std::set<size_t> next;
        for (const size_t i : at) next.merge(ends(kid, text, i));
        at = next;
      }
      return at;
    }
    case Tree::kAlternate: {
      std::set<size_t> out;
      for (const Tree& kid : t.kids) out.merge(ends(kid, text, from));
      return out;
    }
    case Tree::kRepeat: {
      std::set<size_t> out, at{from};
      const uint32_t rounds =
          t.max == kUnbounded ? t.min + static_cast<uint32_t>(text.size()) + 1 : t.max;
      for (uint32_t count = 0;; ++count) {
        if (count >= t.min) out.insert(at.begin(), at.end());
        if (count == rounds) return out;
        std::set<size_t> next;
        for (const size_t i : at) next.merge(ends(t.kids[0], text, i));
        at = next;
      }
    }
    case Tree::kIntersect: {
      std::set<size_t> out, b = ends(t.kids[1], text, from);
      for (const size_t i : ends(t.kids[0], text, from))
        if (b.count(i)) out.insert(i);
      return out;
    }
    case Tree::kComplement: {
      std::set<size_t> out, a = ends(t.kids[0], text, from);
      for (size_t i = from; i <= text.size(); ++i)
        if (!a.count(i)) out.insert(i);
      return out;
    }
  }
  return {};
}

// Whether all of text from `from` on is the beginning of a match. Not for kIntersect, kComplement.
inline bool begins(const Tree& t, std::string_view text, size_t from) {
  if (from == text.size()) return true;  // every tree here matches something
  switch (t.kind) {
    case Tree::kEmpty:
      return false;
    case Tree::kChars:
      return from + 1 == text.size() && !ends(t, text, from).empty();
    case Tree::kConcat: {
      std::set<size_t> at{from};
      for (const Tree& kid : t.kids) {
        std::set<size_t> next;
        for (const size_t i : at) {
          if (begins(kid, text, i)) return true;
          next.merge(ends(kid, text, i));
        }
        at = next;
      }
      return at.count(text.size()) > 0;
    }
    case Tree::kAlternate:
      for (const Tree& kid : t.kids)
        if (begins(kid, text, from)) return true;
      return false;
    case Tree::kRepeat: {
      std::set<size_t> at{from};
      const uint32_t rounds =
          t.max == kUnbounded ? t.min + static_cast<uint32_t>(text.size()) + 1 : t.max;
      for (uint32_t count = 0; count < rounds; ++count) {
        std::set<size_t> next;
        for (const size_t i : at) {
          if (begins(t.kids[0], text, i)) return true;
          next.merge(ends(t.kids[0], text, i));
        }
        at = next;
      }
      return false;
    }
    default:
      return false;
  }
}

inline RegexId build(RegexSet& set, const Tree& t) {
  std::vector<RegexId> kids;
  for (const Tree& kid : t.kids) kids.push_back(build(set, kid));
  switch (t.kind) {
    case Tree::kEmpty:
      return set.epsilon();
    case Tree::kChars: {
      ByteSet bytes;
      for (const char c : t.chars) bytes.add(static_cast<uint8_t>(c));
      return set.bytes(bytes);
    }
    case Tree::kConcat:
      return set.concat(kids);
    case Tree::kAlternate:
      return set.alternate(kids);
    case Tree::kRepeat:
      return set.repeat(kids[0], t.min, t.max);
    case Tree::kIntersect:
      return set.intersect(kids[0], kids[1]);
    case Tree::kComplement:
      return set.complement(kids[0]);
  }
  return set.none();
}

inline Tree random_tree(std::mt19937_64& rng, int depth, bool boolean,
                        std::string_view alphabet = "abc") {
  const auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
  Tree t;
  const int kind = depth == 0 ? pick(5) == 0 ? 0 : 1 : pick(boolean ? 7 : 5);
  if (kind <= 1) {
    t.kind = kind == 0 && pick(3) == 0 ? Tree::kEmpty : Tree::kChars;
    for (const char c : alphabet)
      if (pick(2)) t.chars += c;
    if (t.chars.empty())
      t.chars = alphabet[static_cast<size_t>(pick(static_cast<int>(alphabet.size())))];
    return t;
  }
  t.kind = static_cast<Tree::Kind>(kind);
  const int n = t.kind == Tree::kConcat || t.kind == Tree::kAlternate ? 2 + pick(2)
                : t.kind == Tree::kIntersect                          ? 2
                                                                      : 1;
  for (int i = 0; i < n; ++i) t.kids.push_back(random_tree(rng, depth - 1, boolean, alphabet));
  if (t.kind == Tree::kRepeat) {
    t.min = static_cast<uint32_t>(pick(3));
    t.max = pick(3) == 0 ? kUnbounded : t.min + static_cast<uint32_t>(pick(4));
  }
  return t;
}

// A grammar whose right sides mix nonterminals (index below trees' range) and trees.
struct TreeGrammar {
  struct Sym {
    bool is_tree;
    size_t index;
  };
  std::vector<Tree> trees;
  std::vector<std::vector<std::vector<Sym>>> rules;  // [nonterminal][production]

  // exact[A][i] = ends of what A derives from i; begins[A][i] = the rest of the text begins a
  // derivation of A. Fixpoint by rounds.
  struct Answer {
    bool member = false, prefix = false;
  };
  Answer ask(std::string_view text) const {
    const size_t n = text.size() + 1;
    std::vector<std::vector<std::set<size_t>>> exact(rules.size(),
                                                     std::vector<std::set<size_t>>(n));
    std::vector<std::vector<uint8_t>> begin(rules.size(), std::vector<uint8_t>(n, 0));
    const std::vector<uint8_t> ok = productive();
    std::vector<std::vector<std::set<size_t>>> tree_ends(trees.size(),
                                                         std::vector<std::set<size_t>>(n));
    std::vector<std::vector<uint8_t>> tree_begins(trees.size(), std::vector<uint8_t>(n, 0));
    for (size_t t = 0; t < trees.size(); ++t)
      for (size_t i = 0; i < n; ++i) {
        tree_ends[t][i] = ends(trees[t], text, i);
        tree_begins[t][i] = begins(trees[t], text, i);
      }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t a = 0; a < rules.size(); ++a)
        for (const auto& production : rules[a]) {
          if (!all_of(production, ok)) continue;
          for (size_t i = 0; i < n; ++i) {
            std::set<size_t> at{i};
            bool starts = i + 1 == n;
            for (const Sym& s : production) {
              std::set<size_t> next;
              for (const size_t j : at) {
                starts |= s.is_tree ? tree_begins[s.index][j] != 0 : begin[s.index][j] != 0;
                const auto& more = s.is_tree ? tree_ends[s.index][j] : exact[s.index][j];
                next.insert(more.begin(), more.end());
              }
              at = next;
            }
            starts |= at.count(n - 1) > 0;
            const size_t before = exact[a][i].size();
            exact[a][i].insert(at.begin(), at.end());
            if (exact[a][i].size() != before || (starts && !begin[a][i])) changed = true;
            begin[a][i] |= starts;
          }
        }
    }
    return {exact[0][0].count(n - 1) > 0, ok[0] && begin[0][0]};
  }

  // Whether every nonterminal of a production is in a set of rules.
  static bool all_of(const std::vector<Sym>& production, const std::vector<uint8_t>& set) {
    return std::ranges::all_of(production, [&](const Sym& s) { return s.is_tree || set[s.index]; });
  }

  std::vector<uint8_t> productive() const {
    std::vector<uint8_t> ok(rules.size(), 0);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t a = 0; a < rules.size(); ++a)
        for (const auto& production : rules[a])
          if (!ok[a] && all_of(production, ok)) ok[a] = changed = true;
    }
    return ok;
  }

  Result<Grammar> build() const {
    GrammarBuilder g;
    std::vector<Symbol> nonterminals, terminals;
    for (size_t a = 0; a < rules.size(); ++a)
      nonterminals.push_back(g.nonterminal(std::string(1, static_cast<char>('A' + a))));
    for (const Tree& t : trees) terminals.push_back(g.terminal(testing::build(g.regexes(), t)));
    for (size_t a = 0; a < rules.size(); ++a)
      for (const auto& production : rules[a]) {
        std::vector<Symbol> rhs;
        for (const Sym& s : production)
          rhs.push_back(s.is_tree ? terminals[s.index] : nonterminals[s.index]);
        g.add(nonterminals[a], rhs);
      }
    g.set_start(nonterminals[0]);
    return g.build();
  }
};

// Left, right, hidden and mutual recursion, nullable rules and unproductive ones all occur.
inline TreeGrammar random_grammar(std::mt19937_64& rng, std::string_view alphabet = "abc") {
  const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
  TreeGrammar g;
  const size_t n_trees = 1 + pick(4), n_rules = 1 + pick(4);
  for (size_t t = 0; t < n_trees; ++t)
    g.trees.push_back(random_tree(rng, static_cast<int>(pick(3)), false, alphabet));
  g.rules.resize(n_rules);
  for (auto& rule : g.rules) {
    rule.resize(1 + pick(3));
    for (auto& production : rule) {
      production.resize(pick(4));
      for (auto& s : production) {
        s.is_tree = pick(2) == 0;
        s.index = pick(s.is_tree ? n_trees : n_rules);
      }
    }
  }
  return g;
}

inline std::string random_text(std::mt19937_64& rng, size_t max,
                               std::string_view alphabet = "abc") {
  std::string out(rng() % (max + 1), ' ');
  for (char& c : out) c = alphabet[rng() % alphabet.size()];
  return out;
}

}  // namespace deepmint::grammar::testing
