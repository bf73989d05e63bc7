// Whether the language of an expression is empty, where intersections or complements leave that
// open.
#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "grammar/regex_ast.h"

namespace deepmint::grammar {

namespace {
uint32_t index_of(RegexId id) { return static_cast<uint32_t>(id); }
}  // namespace

// The next expression on the straight line from `a`: by a plain character, which completes a code
// point at once, else by the first byte that leads on; none() at the end.
RegexSet::Line RegexSet::step_ahead(RegexId a) {
  const ByteSet first = first_bytes(a, 4);
  Line out;
  uint64_t tries = 0;
  const auto try_byte = [&](unsigned byte) {
    if (out.to != none() || !first.has(byte)) return;
    ++tries;
    out.to = derivative(a, static_cast<uint8_t>(byte));
  };
  try_byte('a');
  try_byte('0');
  for (unsigned byte = 0; byte < 256 && out.to == none(); ++byte) try_byte(byte);
  out.work = tries * (1 + node(a).front);
  return out;
}

// Where the straight line from `a` ends. What is remembered are lengths and work to the end, so
// that a limit counts the same from wherever a line is joined.
RegexSet::Line RegexSet::line(RegexId a) {
  std::vector<std::pair<RegexId, Line>> path;
  std::unordered_map<uint32_t, size_t> on_path;
  Line end;             // of the line from `at`
  uint64_t walked = 0;  // work
  for (RegexId at = a;; at = path.back().second.to) {
    if (at == none()) {
      end = {.end = LineEnd::kNowhere};
      break;
    }
    if (!node(at).hard || nullable(at)) {
      end = {.end = LineEnd::kText};
      break;
    }
    if (const Line* known = lines_.find(index_of(at))) {
      end = *known;
      break;
    }
    if (const auto [it, is_new] = on_path.try_emplace(index_of(at), path.size()); !is_new) {
      // Around a circle: every expression on it sees all of it.
      uint64_t work = 0;
      const auto around = static_cast<uint32_t>(path.size() - it->second);
      for (size_t i = it->second; i < path.size(); ++i) work += path[i].second.work;
      end = {.end = around > limits_.max_line || work > limits_.max_line_work ? LineEnd::kTooFar
                                                                              : LineEnd::kNowhere,
             .length = around,
             .work = work};
      for (size_t i = it->second; i < path.size(); ++i) lines_.insert(index_of(path[i].first), end);
      path.resize(it->second);
      break;
    }
    if (path.size() > limits_.max_line) {
      end = {.end = LineEnd::kTooFar};
      break;
    }
    path.emplace_back(at, step_ahead(at));
    if (exhausted_) return {.end = LineEnd::kTooFar};
    walked += path.back().second.work;
    if (walked > limits_.max_line_work) {
      end = {.end = LineEnd::kTooFar};
      break;
    }
  }
  for (size_t i = path.size(); i-- > 0;) {
    end.work += path[i].second.work;
    ++end.length;
    if (end.length > limits_.max_line || end.work > limits_.max_line_work)
      end.end = LineEnd::kTooFar;
    // Where a walk was cut short only its beginning is known to be too far away.
    if (end.end == LineEnd::kTooFar && i > 0) continue;
    lines_.insert(index_of(path[i].first), end);
  }
  return end;
}

// Nearest expressions first; wherever the straight line leads to a text the language is not empty.
// What is remembered saves time and changes neither the answer nor whether there is one: an answer
// is kept only where a search of its own would find it within the limits.
RegexSet::Emptiness RegexSet::search_empty(RegexId a) {
  constexpr int kFewBytes = 8;
  Line first = line(a);
  if (first.end == LineEnd::kText) return Emptiness::kNo;
  uint64_t work = first.end == LineEnd::kTooFar ? limits_.max_line_work : first.work;
  std::vector<uint8_t> byte_of_class, few;
  // Where only few bytes can come first (one side is a word), they are tried themselves; else one
  // byte of every class.
  const auto bytes_to_try = [&](RegexId id) -> const std::vector<uint8_t>& {
    const ByteSet next = first_bytes(id, 4);
    if (next.count() <= kFewBytes) {
      few.clear();
      for (unsigned b = 0; b < 256; ++b)
        if (next.has(b)) few.push_back(static_cast<uint8_t>(b));
      return few;
    }
    if (byte_of_class.empty()) {
      std::array<uint8_t, 256> class_of;
      byte_of_class.resize(static_cast<size_t>(byte_classes({&a, 1}, class_of)));
      for (unsigned b = 256; b-- > 0;) byte_of_class[class_of[b]] = static_cast<uint8_t>(b);
      std::sort(byte_of_class.begin(), byte_of_class.end());  // classes are in no order
    }
    return byte_of_class;
  };
  std::vector<RegexId> found{a};
  std::unordered_set<uint32_t> seen{index_of(a)};
  for (size_t at = 0; at < found.size(); ++at)
    for (const uint8_t byte : bytes_to_try(found[at])) {
      work += 1 + node(found[at]).front;
      if (work > limits_.max_search_work) return Emptiness::kTooLong;
      const RegexId next = derivative(found[at], byte);
      if (exhausted_) return Emptiness::kTooLong;
      if (next == none() || !seen.insert(index_of(next)).second) continue;
      if (!node(next).hard || nullable(next)) return Emptiness::kNo;
      if (found.size() >= limits_.max_search) return Emptiness::kTooLong;
      if (found.size() < limits_.max_lines) {
        const Line ahead = line(next);
        if (exhausted_) return Emptiness::kTooLong;
        if (ahead.end == LineEnd::kText) return Emptiness::kNo;
        work += ahead.end == LineEnd::kTooFar ? limits_.max_line_work : ahead.work;
      }
      found.push_back(next);
    }
  // A search from any of them would look at a part of them and of these lines, in less work.
  if (found.size() > limits_.max_lines) return Emptiness::kYes;
  for (const RegexId id : found)
    if (id != a && empty_.find(index_of(id)) == nullptr)
      empty_.insert(index_of(id), static_cast<uint8_t>(Emptiness::kYes));
  return Emptiness::kYes;
}

bool RegexSet::empty(RegexId a) {
  if (!node(a).hard) return a == none();
  if (nullable(a)) return false;
  Emptiness answer;
  if (const uint8_t* known = empty_.find(index_of(a))) {
    answer = static_cast<Emptiness>(*known);
  } else {
    answer = search_empty(a);
    if (exhausted_) return true;
    empty_.insert(index_of(a), static_cast<uint8_t>(answer));
  }
  if (answer == Emptiness::kTooLong) exhausted_ = true;
  return answer != Emptiness::kNo;
}

}  // namespace deepmint::grammar
