#include "grammar/earley.h"

#include <algorithm>

#include "core/check.h"

namespace deepmint::grammar {

namespace {
constexpr uint32_t kTerminalCode = static_cast<uint32_t>(SymbolKind::kTerminal)
                                   << Grammar::kKindShift;
constexpr uint32_t kTokenCode = static_cast<uint32_t>(SymbolKind::kToken) << Grammar::kKindShift;
}  // namespace

Parser::Parser(const Grammar& grammar, Lexer& lexer)
    : grammar_(grammar), lexer_(lexer), predicted_(grammar.nonterminals(), 0), seen_(256) {
  // Set 0 predicts the start: as if an item before it had just been scanned.
  ++stamp_;
  building_ = 0;
  for (uint32_t p = grammar_.productions_begin[grammar_.start];
       p < grammar_.productions_begin[grammar_.start + 1]; ++p)
    add(grammar_.first_dot[p], 0);
  predicted_[grammar_.start] = stamp_;
  const uint32_t set = close(0);
  sets_[set].complete = grammar_.nullable[grammar_.start] != 0;
  here_.boundary = set;
  if (sets_[set].start != Lexer::kDead) threads_.push_back({set, sets_[set].start});
  here_.threads_end = static_cast<uint32_t>(threads_.size());
  here_.n_sets = 1;
  here_.n_items = static_cast<uint32_t>(items_.size());
  here_.epoch = lexer_.epoch();
}

void Parser::go_back(const Frame& frame) {
  here_ = frame;
  threads_.resize(frame.threads_end);
  if (looking_ahead_) return;  // sets stay until the end
  sets_.resize(frame.n_sets);
  items_.resize(frame.n_items);
}

void Parser::add(uint32_t dot, uint32_t origin) {
  if (seen_count_ * 2 >= seen_.size()) {
    std::vector<Slot> old(seen_.size() * 2, Slot{0, 0, 0});
    old.swap(seen_);
    for (const Slot& slot : old) {
      if (slot.stamp != stamp_) continue;
      size_t at = mix_hash(slot.dot, slot.origin) & (seen_.size() - 1);
      while (seen_[at].stamp == stamp_) at = (at + 1) & (seen_.size() - 1);
      seen_[at] = slot;
    }
  }
  size_t at = mix_hash(dot, origin) & (seen_.size() - 1);
  for (; seen_[at].stamp == stamp_; at = (at + 1) & (seen_.size() - 1))
    if (seen_[at].dot == dot && seen_[at].origin == origin) return;
  seen_[at] = {stamp_, dot, origin};
  ++seen_count_;
  items_.push_back({dot, origin});
}

std::pair<uint32_t, uint32_t> Parser::waiting(uint32_t set, uint32_t code) const {
  const Set& s = sets_[set];
  const auto begin = items_.begin() + s.begin, end = items_.begin() + s.end;
  const auto first = std::lower_bound(
      begin, end, code, [&](const Item& item, uint32_t c) { return grammar_.next[item.dot] < c; });
  auto last = first;
  while (last != end && grammar_.next[last->dot] == code) ++last;
  return {static_cast<uint32_t>(first - items_.begin()),
          static_cast<uint32_t>(last - items_.begin())};
}

uint32_t Parser::close(uint32_t first_item) {
  const auto self = building_;
  bool complete = false;
  for (size_t at = first_item; at < items_.size(); ++at) {
    if (items_.size() - first_item > limits_.max_set_items || items_.size() > limits_.max_items) {
      exhausted_ = true;
      break;
    }
    const Item item = items_[at];
    const uint32_t code = grammar_.next[item.dot];
    if (code < kTerminalCode) {
      if (predicted_[code] != stamp_) {
        predicted_[code] = stamp_;
        for (uint32_t p = grammar_.productions_begin[code];
             p < grammar_.productions_begin[code + 1]; ++p)
          add(grammar_.first_dot[p], self);
      }
      if (grammar_.nullable[code]) add(item.dot + 1, item.origin);
    } else if (code >= Grammar::kEnd && item.origin != self) {
      const uint32_t lhs = code & Grammar::kIndexMask;
      complete |= lhs == grammar_.start && item.origin == 0;
      const auto [begin, end] = waiting(item.origin, lhs);
      for (uint32_t w = begin; w < end; ++w) add(items_[w].dot + 1, items_[w].origin);
    }
  }
  seen_count_ = 0;
  // Completed items have done their work.
  items_.erase(
      std::remove_if(items_.begin() + first_item, items_.end(),
                     [&](const Item& item) { return grammar_.next[item.dot] >= Grammar::kEnd; }),
      items_.end());
  std::sort(items_.begin() + first_item, items_.end(), [&](const Item& x, const Item& y) {
    return grammar_.next[x.dot] < grammar_.next[y.dot];
  });
  Set set;
  set.begin = first_item;
  set.end = static_cast<uint32_t>(items_.size());
  set.complete = complete;
  set.position = here_.position;
  sets_.push_back(set);
  sets_.back().start = start_state(set.begin, set.end);
  return self;
}

void Parser::collect_starts(uint32_t begin, uint32_t end) {
  starts_.clear();
  for (uint32_t i = begin; i < end; ++i) {
    const uint32_t code = grammar_.next[items_[i].dot];
    if (code < kTerminalCode || code >= kTokenCode) continue;
    const uint32_t terminal = code & Grammar::kIndexMask;
    if (starts_.empty() || starts_.back() != terminal) starts_.push_back(terminal);
  }
}

Lexer::State Parser::start_state(uint32_t begin, uint32_t end) {
  collect_starts(begin, end);
  return starts_.empty() ? Lexer::kDead : lexer_.start(starts_);
}

uint32_t Parser::set_of(std::span<const Scan> scans) {
  uint64_t key = scans.size();
  if (looking_ahead_) {
    for (const Scan& scan : scans) key = mix_hash(key, (uint64_t{scan.set} << 32) | scan.accept);
    for (size_t at = key & (known_.size() - 1); known_[at].stamp == ahead_stamp_;
         at = (at + 1) & (known_.size() - 1)) {
      const Known& known = known_[at];
      if (known.key == key && known.size == scans.size() &&
          std::equal(scans.begin(), scans.end(), known_scans_.begin() + known.begin))
        return known.set;
    }
  }
  ++stamp_;
  building_ = static_cast<uint32_t>(sets_.size());
  const auto first_item = static_cast<uint32_t>(items_.size());
  for (const Scan& scan : scans)
    for (const uint32_t terminal : lexer_.accept_set(scan.accept)) {
      const auto [begin, end] = waiting(scan.set, kTerminalCode | terminal);
      for (uint32_t w = begin; w < end; ++w) add(items_[w].dot + 1, items_[w].origin);
    }
  const uint32_t set = close(first_item);
  if (looking_ahead_) remember(key, scans, set);
  return set;
}

void Parser::remember(uint64_t key, std::span<const Scan> scans, uint32_t set) {
  const auto place = [&](const Known& one) {
    size_t at = one.key & (known_.size() - 1);
    while (known_[at].stamp == ahead_stamp_) at = (at + 1) & (known_.size() - 1);
    known_[at] = one;
  };
  if (++known_count_ * 3 > known_.size() * 2) {
    std::vector<Known> old(known_.size() * 2);
    old.swap(known_);
    for (const Known& one : old)
      if (one.stamp == ahead_stamp_) place(one);
  }
  const auto begin = static_cast<uint32_t>(known_scans_.size());
  known_scans_.insert(known_scans_.end(), scans.begin(), scans.end());
  place({ahead_stamp_, set, begin, static_cast<uint32_t>(scans.size()), key});
}

bool Parser::push(uint8_t byte) {
  const Frame from = here_;
  here_.threads_begin = from.threads_end;
  here_.boundary = kNone;
  ++here_.position;
  scans_.clear();
  for (uint32_t t = from.threads_begin; t < from.threads_end; ++t) {
    const Thread thread = threads_[t];
    const Lexer::State to = lexer_.next(thread.state, byte);
    if (to == Lexer::kDead) continue;
    if (const uint32_t accept = lexer_.accepts(to); accept != Lexer::kNoAccept)
      scans_.push_back({thread.set, accept});
    if (lexer_.can_continue(to)) threads_.push_back({thread.set, to});
  }
  if (!scans_.empty()) {
    here_.boundary = set_of(scans_);
    if (const Lexer::State start = sets_[here_.boundary].start; start != Lexer::kDead)
      threads_.push_back({here_.boundary, start});
  }
  if (threads_.size() - here_.threads_begin > limits_.max_threads) exhausted_ = true;
  here_.threads_end = static_cast<uint32_t>(threads_.size());
  here_.n_sets = static_cast<uint32_t>(sets_.size());
  here_.n_items = static_cast<uint32_t>(items_.size());
  return alive();
}

bool Parser::push_token(uint32_t token_index) {
  const uint32_t from = here_.boundary;
  here_.threads_begin = here_.threads_end;
  here_.boundary = kNone;
  if (from == kNone) return false;
  ++stamp_;
  building_ = static_cast<uint32_t>(sets_.size());
  const auto first_item = static_cast<uint32_t>(items_.size());
  const auto [begin, end] = waiting(from, kTokenCode | token_index);
  if (begin == end) return false;
  for (uint32_t w = begin; w < end; ++w) add(items_[w].dot + 1, items_[w].origin);
  here_.boundary = close(first_item);
  if (const Lexer::State start = sets_[here_.boundary].start; start != Lexer::kDead)
    threads_.push_back({here_.boundary, start});
  here_.threads_end = static_cast<uint32_t>(threads_.size());
  here_.n_sets = static_cast<uint32_t>(sets_.size());
  here_.n_items = static_cast<uint32_t>(items_.size());
  return true;
}

bool Parser::takes_byte(uint8_t byte) {
  for (const Thread& thread : live())
    if (lexer_.next(thread.state, byte) != Lexer::kDead) return true;
  return false;
}

bool Parser::takes_token() const {
  if (here_.boundary == kNone) return false;
  const Set& set = sets_[here_.boundary];  // sorted by what comes next: tokens last
  return set.end > set.begin && grammar_.next[items_[set.end - 1].dot] >= kTokenCode;
}

void Parser::next_tokens(std::vector<uint32_t>& out) const {
  out.clear();
  if (here_.boundary == kNone) return;
  const Set& set = sets_[here_.boundary];
  for (uint32_t i = set.end; i-- > set.begin;) {
    const uint32_t code = grammar_.next[items_[i].dot];
    if (code < kTokenCode) break;
    const uint32_t token = code & Grammar::kIndexMask;
    if (out.empty() || out.back() != token) out.push_back(token);
  }
}

void Parser::settle(const Frame& frame) {
  const uint32_t n = here_.threads_end - here_.threads_begin;
  std::copy(threads_.begin() + here_.threads_begin, threads_.begin() + here_.threads_end,
            threads_.begin() + frame.threads_end);
  here_.threads_begin = frame.threads_end;
  here_.threads_end = frame.threads_end + n;
  threads_.resize(here_.threads_end);
}

void Parser::begin_lookahead() {
  ahead_ = here_;
  looking_ahead_ = true;
  if (known_.empty()) known_.resize(64);
  if (++ahead_stamp_ == 0) {
    std::fill(known_.begin(), known_.end(), Known());
    ahead_stamp_ = 1;
  }
  known_count_ = 0;
  known_scans_.clear();
}

void Parser::end_lookahead() {
  looking_ahead_ = false;
  go_back(ahead_);
}

void Parser::find_states_again(std::string_view text) {
  here_.epoch = lexer_.epoch();
  for (uint32_t t = here_.threads_begin; t < here_.threads_end; ++t) {
    Thread& thread = threads_[t];
    const Set& set = sets_[thread.set];
    collect_starts(set.begin, set.end);
    thread.state = lexer_.behind(starts_, text.substr(set.position, here_.position - set.position));
  }
}

}  // namespace deepmint::grammar
