#include "recipe/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/names.h"
#include "core/utf8.h"
#include "recipe/jinja/unicode_text.h"

namespace deepmint::recipe::jinja {
namespace {

using Kind = Token::Kind;
constexpr size_t npos = std::string_view::npos;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}
int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// \r\n and \r become \n, and one newline at the very end is dropped.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view s) : s_(s) {}

  Result<std::vector<Token>> run() {
    while (at_ < s_.size()) {
      const size_t tag = next_tag(at_);
      if (tag == npos) {
        add(Kind::kData, s_.substr(at_));
        break;
      }
      DEEPMINT_CHECK_OK(take_tag(tag));
    }
    add(Kind::kEnd, {});
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> bad(std::string message) const {
    return template_error(ErrorCode::kInvalidArgument, line_, std::move(message));
  }
  void add(Kind kind, std::string_view text) {
    if (kind == Kind::kData && text.empty()) return;
    out_.push_back({kind, std::string(text), line_});
  }
  // Moves to `to` and counts the lines on the way.
  void advance(size_t to) {
    line_ += static_cast<int>(std::count(s_.begin() + static_cast<ptrdiff_t>(at_),
                                         s_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    at_ = to;
  }
  void skip_space() { advance(at_ + leading_space(s_.substr(at_))); }

  size_t next_tag(size_t from) const {
    for (size_t i = s_.find('{', from); i != npos && i + 1 < s_.size(); i = s_.find('{', i + 1))
      if (s_[i + 1] == '{' || s_[i + 1] == '%' || s_[i + 1] == '#') return i;
    return npos;
  }

  // Text in front of a tag whose opening is followed by `sign` ('-', '+' or anything).
  std::string_view before_tag(std::string_view text, char sign, bool is_print) const {
    if (sign == '-') return text.substr(0, text.size() - trailing_space(text));
    if (sign == '+' || is_print) return text;
    // lstrip_blocks: white space between the start of the line and the tag goes.
    const size_t newline = text.rfind('\n');
    if (newline == npos && !line_starting_) return text;
    const size_t line = newline == npos ? 0 : newline + 1;
    return leading_space(text.substr(line)) == text.size() - line ? text.substr(0, line) : text;
  }

  Status take_tag(size_t tag) {
    const char kind = s_[tag + 1];
    const char sign = tag + 2 < s_.size() ? s_[tag + 2] : '\0';
    add(Kind::kData, before_tag(s_.substr(at_, tag - at_), sign, kind == '{'));
    advance(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    line_starting_ = false;
    if (kind == '#') return comment();
    if (kind == '%')
      if (const size_t end = raw_begin(); end != npos) return raw(end);
    add(kind == '{' ? Kind::kPrintBegin : Kind::kBlockBegin, {});
    return code(kind == '{');
  }

  // The end of a block tag or comment at byte `at`: how long it is with the white space it takes.
  size_t tag_end(size_t at, std::string_view close, bool plus_allowed, bool trims_newline) const {
    const std::string_view rest = s_.substr(at);
    if (rest.starts_with('-') && rest.substr(1).starts_with(close))
      return 1 + close.size() + leading_space(rest.substr(1 + close.size()));
    if (plus_allowed && rest.starts_with('+') && rest.substr(1).starts_with(close))
      return 1 + close.size();
    if (!rest.starts_with(close)) return 0;
    const bool newline = trims_newline && rest.substr(close.size()).starts_with('\n');
    return close.size() + (newline ? 1 : 0);
  }
  void end_tag(size_t length) {
    advance(at_ + length);
    line_starting_ = s_[at_ - 1] == '\n';
  }

  Status comment() {
    for (size_t i = at_; i < s_.size(); ++i) {
      const size_t length = tag_end(i, "#}", true, true);
      if (length == 0) continue;
      advance(i);
      end_tag(length);
      return {};
    }
    if (at_ == s_.size()) return {};  // as jinja2 has it: an opening at the very end is nothing
    return bad("a comment is not closed");
  }

  // `raw %}` right here: where the raw text begins, else npos.
  size_t raw_begin() const {
    size_t i = at_ + leading_space(s_.substr(at_));
    if (!s_.substr(i).starts_with("raw")) return npos;
    i += 3;
    i += leading_space(s_.substr(i));
    const size_t length = tag_end(i, "%}", false, false);
    return length == 0 ? npos : i + length;
  }

  Status raw(size_t begin) {
    advance(begin);
    for (size_t i = s_.find("{%", at_); i != npos; i = s_.find("{%", i + 1)) {
      size_t j = i + 2;
      const char sign = j < s_.size() ? s_[j] : '\0';
      if (sign == '-' || sign == '+') ++j;
      j += leading_space(s_.substr(j));
      if (!s_.substr(j).starts_with("endraw")) continue;
      j += 6;
      j += leading_space(s_.substr(j));
      const size_t length = tag_end(j, "%}", true, true);
      if (length == 0) continue;
      add(Kind::kData, before_tag(s_.substr(at_, i - at_), sign, false));
      advance(j);
      end_tag(length);
      return {};
    }
    if (at_ == s_.size()) return {};
    return bad("a raw block is not closed");
  }

  Status code(bool is_print) {
    const std::string_view close = is_print ? "}}" : "%}";
    std::string open;  // brackets that wait for their partner
    while (true) {
      skip_space();
      if (at_ >= s_.size()) return bad(fmt::format("expected {} before the end", close));
      if (open.empty()) {
        if (const size_t length = tag_end(at_, close, !is_print, !is_print); length > 0) {
          add(is_print ? Kind::kPrintEnd : Kind::kBlockEnd, {});
          end_tag(length);
          return {};
        }
      }
      const char c = s_[at_];
      if (is_digit(c)) {
        DEEPMINT_CHECK_OK(number());
      } else if (is_word(c)) {
        size_t end = at_;
        while (end < s_.size() && is_word(s_[end])) ++end;
        add(Kind::kName, s_.substr(at_, end - at_));
        at_ = end;
      } else if (c == '"' || c == '\'') {
        DEEPMINT_CHECK_OK(string(c));
      } else {
        DEEPMINT_CHECK_OK(symbol(open));
      }
    }
  }

  Status symbol(std::string& open) {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    const std::string_view rest = s_.substr(at_);
    size_t length = 1;
    for (const std::string_view two : kTwo)
      if (rest.starts_with(two)) length = 2;
    const char c = rest.front();
    if (length == 1 && std::string_view("+-/*%~[](){}><=.:|,;").find(c) == npos) {
      const size_t bytes = std::min<size_t>(code_point_at(rest, 0).length, rest.size());
      return bad(fmt::format("unexpected character {}", quote_name(rest.substr(0, bytes))));
    }
    if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) return bad(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    add(Kind::kOperator, rest.substr(0, length));
    at_ += length;
    return {};
  }

  // Digits with single underscores between them, from `i`; returns the end.
  size_t digits(size_t i) const {
    while (i < s_.size() &&
           (is_digit(s_[i]) || (s_[i] == '_' && i + 1 < s_.size() && is_digit(s_[i + 1]))))
      ++i;
    return i;
  }

  Status number() {
    const size_t begin = at_;
    const bool behind_dot = !out_.empty() && out_.back().kind == Kind::kOperator &&
                            out_.back().text == "." && begin > 0 && s_[begin - 1] == '.';
    const auto digit_at = [&](size_t i) { return i < s_.size() && is_digit(s_[i]); };
    size_t end = digits(begin);
    bool is_float = false;
    if (!behind_dot) {
      if (end < s_.size() && s_[end] == '.' && digit_at(end + 1)) {
        end = digits(end + 1);
        is_float = true;
      }
      if (end < s_.size() && (s_[end] | 0x20) == 'e') {
        const size_t sign = end + 1 < s_.size() && (s_[end + 1] == '+' || s_[end + 1] == '-');
        if (digit_at(end + 1 + sign)) {
          end = digits(end + 1 + sign);
          is_float = true;
        }
      }
    }
    if (!is_float && end == begin + 1 && s_[begin] == '0' && end < s_.size() &&
        std::string_view("xXoObB").find(s_[end]) != npos)
      return template_error(ErrorCode::kUnsupported, line_,
                            "integers in other bases than 10 are not supported");
    std::string text(s_.substr(begin, end - begin));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    if (!is_float && text.size() > 1 && text.front() == '0' && text.find_first_not_of('0') != npos)
      return bad(fmt::format("the integer {} begins with a zero", quote_name(text)));
    if (end < s_.size() && is_word(s_[end]))
      return bad(fmt::format("unexpected letter behind the number {}", quote_name(text)));
    add(is_float ? Kind::kFloat : Kind::kInteger, text);
    at_ = end;
    return {};
  }

  // A literal with the escapes of Python's unicode-escape.
  Status string(char quote) {
    std::string out;
    size_t i = at_ + 1;
    const auto escape = [&](size_t count) -> Status {  // hexadecimal digits behind \x, \u, \U
      uint32_t value = 0;
      for (size_t k = 0; k < count; ++k) {
        const int digit = i < s_.size() ? hex_value(s_[i]) : -1;
        if (digit < 0) return bad("an escape in a string has too few hexadecimal digits");
        value = value << 4 | static_cast<uint32_t>(digit);
        ++i;
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
        return bad(fmt::format("an escape in a string is not a character: U+{:04X}", value));
      utf8::append(out, value);
      return {};
    };
    while (i < s_.size() && s_[i] != quote) {
      if (s_[i] != '\\') {
        out.push_back(s_[i++]);
        continue;
      }
      if (i + 1 >= s_.size()) break;
      const char c = s_[i + 1];
      i += 2;
      constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t k = kFrom.find(c); k != npos) {
        out.push_back(kTo[k]);
      } else if (c == '\n') {  // a continued line
      } else if (c == 'x') {
        DEEPMINT_CHECK_OK(escape(2));
      } else if (c == 'u') {
        DEEPMINT_CHECK_OK(escape(4));
      } else if (c == 'U') {
        DEEPMINT_CHECK_OK(escape(8));
      } else if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        --i;
        for (int n = 0; n < 3 && i < s_.size() && s_[i] >= '0' && s_[i] <= '7'; ++n)
          value = value * 8 + static_cast<uint32_t>(s_[i++] - '0');
        utf8::append(out, value);
      } else if (c == 'N') {
        return template_error(ErrorCode::kUnsupported, line_,
                              "the escape \\N{…} in a string is not supported");
      } else {  // not an escape; Python keeps the backslash
        out.push_back('\\');
        out.push_back(c);
      }
    }
    if (i >= s_.size()) return bad("a string is not closed");
    add(Kind::kString, out);
    advance(i + 1);
    return {};
  }

  std::string_view s_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // what came before ended in a newline, which is already taken
  std::vector<Token> out_;
};

}  // namespace

tl::unexpected<Error> template_error(ErrorCode code, int line, std::string message) {
  return fail(code, std::move(message), fmt::format("chat template line {}", line));
}

Result<std::vector<Token>> tokenize(std::string_view source) {
  const std::string text = normalized(source);
  return Lexer(text).run();
}

}  // namespace deepmint::recipe::jinja
