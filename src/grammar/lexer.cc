#include "grammar/lexer.h"

#include <algorithm>

namespace deepmint::grammar {

namespace {
uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}
}  // namespace

Lexer::Lexer(Grammar& grammar, const Limits& limits)
    : grammar_(grammar), limits_(limits), mark_(grammar.regexes.mark()) {
  n_classes_ = static_cast<uint32_t>(grammar_.regexes.byte_classes(grammar_.terminals, class_of_));
  byte_of_.resize(n_classes_);
  for (unsigned b = 0; b < 256; ++b) byte_of_[class_of_[b]] = static_cast<uint8_t>(b);
  reset();
  bytes_at_mark_ = grammar_.regexes.memory_bytes();
}

void Lexer::reset() {
  ++epoch_;
  exhausted_ = false;
  grammar_.regexes.reset_to(mark_);
  states_.clear();
  items_.clear();
  rows_.clear();
  index_.clear();
  accept_sets_.assign(1, {0, 0});
  accept_terminals_.clear();
  accept_index_.clear();
  states_.push_back({});
  rows_.assign(n_classes_, kDead);
}

std::unique_lock<std::mutex> Lexer::lock() {
  std::unique_lock<std::mutex> held(mutex_);
  const size_t grown = memory_bytes() + grammar_.regexes.memory_bytes() - bytes_at_mark_;
  if (exhausted() || grown > limits_.soft_bytes) reset();
  return held;
}

uint32_t Lexer::intern_accept(std::span<const uint32_t> terminals) {
  if (terminals.empty()) return kNoAccept;
  uint64_t h = terminals.size();
  for (const uint32_t t : terminals) h = mix(h, t);
  const auto [begin, end] = accept_index_.equal_range(h);
  for (auto it = begin; it != end; ++it)
    if (std::ranges::equal(accept_set(it->second), terminals)) return it->second;
  accept_sets_.emplace_back(static_cast<uint32_t>(accept_terminals_.size()),
                            static_cast<uint32_t>(terminals.size()));
  accept_terminals_.insert(accept_terminals_.end(), terminals.begin(), terminals.end());
  const auto id = static_cast<uint32_t>(accept_sets_.size() - 1);
  accept_index_.emplace(h, id);
  return id;
}

// `items` are sorted by terminal and hold no empty language.
Lexer::State Lexer::intern(std::vector<Item>& items) {
  if (items.empty()) return kDead;
  uint64_t h = items.size();
  for (const Item& item : items)
    h = mix(h, (uint64_t{item.terminal} << 32) | static_cast<uint32_t>(item.rest));
  const auto [begin, end] = index_.equal_range(h);
  for (auto it = begin; it != end; ++it) {
    const StateData& s = states_[it->second];
    if (s.size == items.size() && std::equal(items.begin(), items.end(), items_.begin() + s.begin))
      return it->second;
  }
  if (states_.size() >= limits_.max_states) {
    exhausted_ = true;
    return kDead;
  }
  const RegexSet& regexes = grammar_.regexes;
  StateData s;
  s.begin = static_cast<uint32_t>(items_.size());
  s.size = static_cast<uint32_t>(items.size());
  std::vector<uint32_t> accepted;
  for (const Item& item : items) {
    if (regexes.nullable(item.rest)) accepted.push_back(item.terminal);
    s.can_continue |= item.rest != regexes.epsilon();
  }
  s.accept = intern_accept(accepted);
  const auto id = static_cast<State>(states_.size());
  items_.insert(items_.end(), items.begin(), items.end());
  states_.push_back(s);
  rows_.resize(rows_.size() + n_classes_, kUnknown);
  index_.emplace(h, id);
  return id;
}

Lexer::State Lexer::start(std::span<const uint32_t> terminals) {
  scratch_.clear();
  for (const uint32_t t : terminals) scratch_.push_back({t, grammar_.terminals[t]});
  return intern(scratch_);
}

Lexer::State Lexer::step(State state, uint8_t byte) {
  if (exhausted()) return kDead;
  RegexSet& regexes = grammar_.regexes;
  const StateData s = states_[state];
  scratch_.clear();
  for (uint32_t i = s.begin; i < s.begin + s.size; ++i) {
    const RegexId rest = regexes.derivative(items_[i].rest, byte);
    if (!regexes.empty(rest)) scratch_.push_back({items_[i].terminal, rest});
  }
  const State to = intern(scratch_);
  if (exhausted()) return kDead;
  rows_[state * n_classes_ + class_of_[byte]] = to;
  return to;
}

Hash128 Lexer::residual_hash(State state) const {
  const StateData& s = states_[state];
  std::vector<Hash128> hashes;
  for (uint32_t i = s.begin; i < s.begin + s.size; ++i)
    hashes.push_back(grammar_.regexes.hash(items_[i].rest));
  return xxh3_128(std::as_bytes(std::span(hashes)));
}

std::vector<uint32_t> Lexer::items_of_accept(State state, uint32_t accept) const {
  const StateData& s = states_[state];
  std::vector<uint32_t> out;
  uint32_t i = 0;  // both are sorted by terminal
  for (const uint32_t terminal : accept_set(accept)) {
    while (items_[s.begin + i].terminal != terminal) ++i;
    out.push_back(i);
  }
  return out;
}

uint32_t Lexer::accept_of_items(State state, std::span<const uint32_t> items) {
  std::vector<uint32_t> terminals;
  for (const uint32_t i : items) terminals.push_back(items_[states_[state].begin + i].terminal);
  return intern_accept(terminals);
}

size_t Lexer::memory_bytes() const {
  return states_.size() * sizeof(StateData) + items_.size() * sizeof(Item) + rows_.size() * 4 +
         index_.size() * 40 + accept_terminals_.size() * 4 + accept_sets_.size() * 8;
}

}  // namespace deepmint::grammar
