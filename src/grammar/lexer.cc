#include "grammar/lexer.h"

#include <algorithm>
#include <bit>

namespace deepmint::grammar {

Lexer::Lexer(Grammar& grammar, const Limits& limits)
    : grammar_(grammar), limits_(limits), mark_(grammar.regexes.mark()) {
  n_classes_ = static_cast<uint32_t>(grammar_.regexes.byte_classes(grammar_.terminals, class_of_));
  byte_of_.resize(n_classes_);
  for (unsigned b = 0; b < 256; ++b) byte_of_[class_of_[b]] = static_cast<uint8_t>(b);
  find_own_classes();
  reset();
  kept_bytes_ = bytes_at_mark_ = grammar_.regexes.memory_bytes();
}

void Lexer::find_own_classes() {
  constexpr size_t kMost = 64;
  const std::vector<uint8_t> hard = grammar_.regexes.hard_inside();
  own_classes_.assign(grammar_.terminals.size(), 0);
  for (size_t t = 0; t < grammar_.terminals.size() && stand_ins_.size() < kMost; ++t) {
    if (hard[static_cast<uint32_t>(grammar_.terminals[t])] == 0) continue;
    std::array<uint8_t, 256> class_of, first, stand_in;
    grammar_.regexes.byte_classes({&grammar_.terminals[t], 1}, class_of);
    for (unsigned b = 256; b-- > 0;) first[class_of[b]] = static_cast<uint8_t>(b);
    for (unsigned b = 0; b < 256; ++b) stand_in[b] = first[class_of[b]];
    stand_ins_.push_back(stand_in);
    own_classes_[t] = static_cast<uint8_t>(stand_ins_.size());
  }
}

void Lexer::reset(bool alone) {
  ++epoch_;
  exhausted_ = false;
  alone_ = alone;
  grammar_.regexes.reset_to(mark_);
  grammar_.regexes.limit_growth(max_nodes());
  kept_bytes_ = grammar_.regexes.memory_bytes();
  nodes_to_forget_at_ = mark_.nodes + max_nodes() / 2;
  states_.assign(1, {});
  items_.clear();
  rows_.assign(n_classes_, kDead);
  rows_.resize(2 * n_classes_, kUnknown);
  states_.shrink_to_fit();
  items_.shrink_to_fit();
  rows_.shrink_to_fit();
  index_.clear();
  accept_sets_.assign(1, {0, 0});
  accept_terminals_.clear();
  accept_index_.clear();
  accept_next_.assign(1, 0);
}

// Makes the index anew, with so many slots.
void Lexer::index_all(size_t slots) {
  index_.assign(slots, kNoState);
  for (State id = 1; id < states_.size(); ++id) {
    size_t at = states_[id].hash & (slots - 1);
    while (index_[at] != kNoState) at = (at + 1) & (slots - 1);
    index_[at] = id;
  }
}

std::unique_lock<std::mutex> Lexer::lock() {
  std::unique_lock<std::mutex> held(mutex_);
  const size_t regexes = grammar_.regexes.memory_bytes();
  const size_t grown = memory_bytes() + regexes - bytes_at_mark_;
  if (exhausted() || alone_ || grown > limits_.soft_bytes)
    reset();
  else if (regexes > kept_bytes_ + limits_.forget_bytes + (kept_bytes_ - bytes_at_mark_) / 2)
    forget_expressions();
  return held;
}

uint32_t Lexer::intern_accept(std::span<const uint32_t> terminals) {
  if (terminals.empty()) return kNoAccept;
  uint64_t h = terminals.size();
  for (const uint32_t t : terminals) h = mix_hash(h, t);
  h &= ~uint64_t{0} >> 1;  // never the key that FlatMap keeps for itself
  uint32_t* first = accept_index_.find(h);
  for (uint32_t id = first != nullptr ? *first : 0; id != 0; id = accept_next_[id])
    if (std::ranges::equal(accept_set(id), terminals)) return id;
  accept_sets_.emplace_back(static_cast<uint32_t>(accept_terminals_.size()),
                            static_cast<uint32_t>(terminals.size()));
  accept_terminals_.insert(accept_terminals_.end(), terminals.begin(), terminals.end());
  const auto id = static_cast<uint32_t>(accept_sets_.size() - 1);
  accept_next_.push_back(first != nullptr ? *first : 0);
  if (first != nullptr)
    *first = id;
  else
    accept_index_.insert(h, id);
  return id;
}

uint32_t Lexer::hash_of(std::span<const Item> items) const {
  uint64_t h = items.size();
  for (const Item& item : items)
    h = mix_hash(h, (uint64_t{item.terminal} << 32) | static_cast<uint32_t>(item.rest));
  return static_cast<uint32_t>(h ^ (h >> 32));
}

// `items` are sorted by terminal and hold no empty language.
Lexer::State Lexer::intern(std::span<const Item> items, bool may_add) {
  if (items.empty()) return kDead;
  const uint32_t hash = hash_of(items);
  if (states_.size() * 3 >= index_.size() * 2) index_all(std::bit_ceil(states_.size() * 2 + 16));
  size_t slot = hash & (index_.size() - 1);
  for (; index_[slot] != kNoState; slot = (slot + 1) & (index_.size() - 1)) {
    const StateData& s = states_[index_[slot]];
    if (s.hash == hash && s.size == items.size() &&
        std::equal(items.begin(), items.end(), items_.begin() + s.begin))
      return index_[slot];
  }
  if (!may_add) return kNoState;
  if (states_.size() >= limits_.max_states * (alone_ ? 2 : 1)) {
    exhausted_ = true;
    return kDead;
  }
  const RegexSet& regexes = grammar_.regexes;
  StateData s;
  s.begin = static_cast<uint32_t>(items_.size());
  s.size = static_cast<uint32_t>(items.size());
  accepted_.clear();
  for (const Item& item : items) {
    if (regexes.nullable(item.rest)) accepted_.push_back(item.terminal);
    s.can_continue |= item.rest != regexes.epsilon();
  }
  s.accept = intern_accept(accepted_);
  s.row = n_classes_;
  s.hash = hash;
  const auto id = static_cast<State>(states_.size());
  items_.insert(items_.end(), items.begin(), items.end());
  states_.push_back(s);
  index_[slot] = id;
  return id;
}

Lexer::State Lexer::start(std::span<const uint32_t> terminals) {
  scratch_.clear();
  for (const uint32_t t : terminals) scratch_.push_back({t, grammar_.terminals[t]});
  return intern(scratch_);
}

// All bytes of a class are one to every residual: one stands for them, so that more is remembered.
void Lexer::derive(std::vector<Item>& items, uint8_t byte) {
  RegexSet& regexes = grammar_.regexes;
  byte = byte_of_[class_of_[byte]];
  size_t kept = 0;
  for (const Item& item : items) {
    const uint8_t own = own_classes_[item.terminal];
    const RegexId rest =
        regexes.derivative(item.rest, own == 0 ? byte : stand_ins_[own - 1u][byte]);
    if (!regexes.empty(rest)) items[kept++] = {item.terminal, rest};
  }
  items.resize(kept);
}

Lexer::State Lexer::step(State state, uint8_t byte) {
  if (exhausted()) return kDead;
  if (grammar_.regexes.size() > nodes_to_forget_at_) forget_expressions();
  const StateData s = states_[state];
  const uint32_t byte_class = class_of_[byte];
  scratch_.assign(items_.begin() + s.begin, items_.begin() + s.begin + s.size);
  derive(scratch_, byte);
  if (exhausted()) return kDead;
  const State to = intern(scratch_);
  if (exhausted()) return kDead;
  if (s.row == n_classes_) {
    states_[state].row = static_cast<uint32_t>(rows_.size());
    rows_.resize(rows_.size() + n_classes_, kUnknown);
  }
  rows_[states_[state].row + byte_class] = to;
  return to;
}

Lexer::State Lexer::behind(std::span<const uint32_t> terminals, std::string_view text) {
  std::vector<Item> items;
  for (const uint32_t t : terminals) items.push_back({t, grammar_.terminals[t]});
  size_t at = 0;
  if (State state = intern(items, false); state != kNoState) {
    for (; at < text.size(); ++at) {
      const uint32_t known = rows_[states_[state].row + class_of_[static_cast<uint8_t>(text[at])]];
      if (known == kUnknown) break;
      state = known;
    }
    const StateData s = states_[state];
    items.assign(items_.begin() + s.begin, items_.begin() + s.begin + s.size);
  }
  for (; at < text.size() && !exhausted(); ++at) {
    if (grammar_.regexes.size() > nodes_to_forget_at_) {
      items_.insert(items_.end(), items.begin(), items.end());  // as if of one more state
      forget_expressions();
      items.assign(items_.end() - static_cast<ptrdiff_t>(items.size()), items_.end());
      items_.resize(items_.size() - items.size());
    }
    derive(items, static_cast<uint8_t>(text[at]));
  }
  return exhausted() ? kDead : intern(items);
}

void Lexer::forget_expressions() {
  std::vector<RegexId> roots;
  roots.reserve(items_.size());
  for (const Item& item : items_) roots.push_back(item.rest);
  grammar_.regexes.keep_only(mark_, roots);
  for (size_t i = 0; i < roots.size(); ++i) items_[i].rest = roots[i];
  for (StateData& s : states_) s.hash = hash_of(std::span(items_).subspan(s.begin, s.size));
  index_all(std::bit_ceil(states_.size() * 2 + 16));
  kept_bytes_ = grammar_.regexes.memory_bytes();
  nodes_to_forget_at_ =
      std::max(mark_.nodes + max_nodes() / 2, grammar_.regexes.size() + max_nodes() / 8);
}

Lexer::State Lexer::within(State state, uint32_t limit) {
  const StateData s = states_[state];
  scratch_.assign(items_.begin() + s.begin, items_.begin() + s.begin + s.size);
  bool changed = false;
  for (Item& item : scratch_) {
    const RegexId rest = grammar_.regexes.within(item.rest, limit);
    changed |= rest != item.rest;
    item.rest = rest;
  }
  if (exhausted() || !changed) return state;
  const State to = intern(scratch_);
  return exhausted() ? state : to;
}

bool Lexer::takes_plain(State state) const {
  const StateData& s = states_[state];
  bool open = false;
  for (uint32_t i = s.begin; i < s.begin + s.size; ++i) {
    const RegexSet::InString in = grammar_.regexes.in_string(items_[i].rest);
    if (in == RegexSet::InString::kNo) return false;
    open |= in == RegexSet::InString::kOpen;
  }
  return open;
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
  return own_classes_.size() + stand_ins_.size() * 256 + states_.size() * sizeof(StateData) +
         items_.size() * sizeof(Item) + rows_.size() * 4 + index_.size() * 4 +
         accept_terminals_.size() * 4 + accept_sets_.size() * 12 + accept_index_.memory_bytes();
}

}  // namespace deepmint::grammar
