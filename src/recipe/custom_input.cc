#include "recipe/custom_input.h"

#include <charconv>
#include <cstdint>
#include <optional>

#include "core/utf8.h"

namespace deepmint::recipe {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

enum class Match : unsigned char { kYes, kNo, kMore };

// Whether `s` starts with {"input":" with white space between the parts; `length` is that of the
// match.
Match match_prefix(std::string_view s, size_t& length) {
  size_t i = 0;
  for (const std::string_view part : {std::string_view("{"), std::string_view("\"input\""),
                                      std::string_view(":"), std::string_view("\"")}) {
    while (i < s.size() && is_space(s[i])) ++i;
    for (const char c : part) {
      if (i == s.size()) return Match::kMore;
      if (s[i++] != c) return Match::kNo;
    }
  }
  length = i;
  return Match::kYes;
}

std::optional<uint32_t> hex4(std::string_view s) {
  uint32_t v = 0;
  const auto r = std::from_chars(s.data(), s.data() + 4, v, 16);
  if (r.ec != std::errc() || r.ptr != s.data() + 4) return std::nullopt;
  return v;
}

}  // namespace

void CustomInput::reset() {
  mode_ = Mode::kUndecided;
  pending_.clear();
  out_.clear();
}

std::string_view CustomInput::push(std::string_view piece) {
  out_.clear();
  if (mode_ == Mode::kDone) return {};
  if (mode_ == Mode::kPassThrough) {
    out_.append(piece);
    return out_;
  }
  pending_.append(piece);
  if (mode_ == Mode::kUndecided) {
    size_t length = 0;
    switch (match_prefix(pending_, length)) {
      case Match::kMore:
        return {};
      case Match::kNo:
        mode_ = Mode::kPassThrough;
        out_ = std::move(pending_);
        pending_.clear();
        return out_;
      case Match::kYes:
        mode_ = Mode::kString;
        pending_.erase(0, length);
        break;
    }
  }
  decode();
  return out_;
}

void CustomInput::decode() {
  size_t i = 0;
  while (i < pending_.size()) {
    const char c = pending_[i];
    if (c == '"') {
      mode_ = Mode::kDone;
      pending_.clear();
      return;
    }
    if (c != '\\') {
      const size_t run = pending_.find_first_of("\"\\", i);
      const size_t end = run == std::string::npos ? pending_.size() : run;
      out_.append(pending_, i, end - i);
      i = end;
      continue;
    }
    if (i + 1 >= pending_.size()) break;
    const char e = pending_[i + 1];
    if (e != 'u') {
      const char plain = e == 'n'   ? '\n'
                         : e == 't' ? '\t'
                         : e == 'r' ? '\r'
                         : e == 'b' ? '\b'
                         : e == 'f' ? '\f'
                                    : e;
      out_.push_back(plain);
      i += 2;
      continue;
    }
    if (i + 6 > pending_.size()) break;
    auto code = hex4(std::string_view(pending_).substr(i + 2));
    if (!code) {
      out_.append("\\u");
      i += 2;
      continue;
    }
    size_t used = 6;
    if (*code >= 0xD800 && *code < 0xDC00) {
      const std::string_view rest = std::string_view(pending_).substr(i + 6);
      if (rest.size() < 6 && std::string_view("\\u").substr(0, rest.size()) == rest.substr(0, 2))
        break;  // may become a pair
      if (rest.size() >= 6 && rest.starts_with("\\u")) {
        const auto low = hex4(rest.substr(2));
        if (low && *low >= 0xDC00 && *low < 0xE000) {
          code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
          used = 12;
        }
      }
    }
    if (*code >= 0xD800 && *code < 0xE000) code = 0xFFFD;
    utf8::append(out_, *code);
    i += used;
  }
  pending_.erase(0, i);
}

std::string_view CustomInput::finish() {
  out_.clear();
  if (mode_ == Mode::kUndecided) out_ = pending_;
  pending_.clear();
  mode_ = Mode::kDone;
  return out_;
}

}  // namespace deepmint::recipe
