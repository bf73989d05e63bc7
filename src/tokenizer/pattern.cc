#include "tokenizer/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "core/names.h"
#include "core/utf8.h"
#include "tokenizer/unicode.h"

namespace deepmint {
namespace {

using unicode::Range;
using Ranges = std::vector<Range>;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::array kGpt2Patterns = {kGpt2Pattern};
constexpr std::array kSmolLmPatterns = {std::string_view(R"(\p{N})"), kGpt2Pattern};
constexpr std::array kLlama3Patterns = {std::string_view(
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)")};
constexpr std::array kQwen2Patterns = {std::string_view(
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)")};
constexpr std::array kDeepSeekV3Patterns = {
    std::string_view(R"(\p{N}{1,3})"), std::string_view("[一-龥\u3040-ゟ゠-ヿ]+"),
    std::string_view(
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)")};

constexpr std::array kAllPre = {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2,
                                PreTokenizer::kSmolLm, PreTokenizer::kDeepSeekV3};

// The scripts that pre-tokenizers ask for, of Unicode 16.0.
std::optional<Ranges> script_ranges(std::string_view name) {
  if (name == "Han")
    return Ranges{{0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},
                  {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},
                  {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},   {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3},
                  {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739}, {0x2B740, 0x2B81D},
                  {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
                  {0x30000, 0x3134A}, {0x31350, 0x323AF}};
  if (name == "Hiragana")
    return Ranges{{0x3041, 0x3096},   {0x309D, 0x309F},   {0x1B001, 0x1B11F},
                  {0x1B132, 0x1B132}, {0x1B150, 0x1B152}, {0x1F200, 0x1F200}};
  if (name == "Katakana")
    return Ranges{{0x30A1, 0x30FA},   {0x30FD, 0x30FF},   {0x31F0, 0x31FF},   {0x32D0, 0x32FE},
                  {0x3300, 0x3357},   {0xFF66, 0xFF6F},   {0xFF71, 0xFF9D},   {0x1AFF0, 0x1AFF3},
                  {0x1AFF5, 0x1AFFB}, {0x1AFFD, 0x1AFFE}, {0x1B000, 0x1B000}, {0x1B120, 0x1B122},
                  {0x1B155, 0x1B155}, {0x1B164, 0x1B167}};
  if (name == "Hangul")
    return Ranges{{0x1100, 0x11FF}, {0x302E, 0x302F}, {0x3131, 0x318E}, {0x3200, 0x321E},
                  {0x3260, 0x327E}, {0xA960, 0xA97C}, {0xAC00, 0xD7A3}, {0xD7B0, 0xD7C6},
                  {0xD7CB, 0xD7FB}, {0xFFA0, 0xFFBE}, {0xFFC2, 0xFFC7}, {0xFFCA, 0xFFCF},
                  {0xFFD2, 0xFFD7}, {0xFFDA, 0xFFDC}};
  return std::nullopt;
}

Ranges merge(Ranges a, const Ranges& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end());
  Ranges out;
  for (const Range& r : a) {
    if (!out.empty() && r.first <= out.back().second + 1)
      out.back().second = std::max(out.back().second, r.second);
    else
      out.push_back(r);
  }
  return out;
}

// \w of Oniguruma 6.9.10, found by probing all code points: L, M, Nd, Nl, Pc, circled and squared
// letters, and outside of classes the superscripts and fractions of Latin 1.
Ranges word_ranges(bool inside_class) {
  Ranges out = {{0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  if (!inside_class) out = merge(std::move(out), {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}});
  for (std::string_view name : {"L", "M", "Nd", "Nl", "Pc"})
    out = merge(std::move(out), *unicode::category_ranges(name));
  return out;
}

// A set of characters as it is written inside a PCRE2 class.
std::string in_class(const Ranges& ranges) {
  std::string out;
  for (const auto& [first, last] : ranges) {
    out += fmt::format("\\x{{{:x}}}", first);
    if (last != first) out += fmt::format("-\\x{{{:x}}}", last);
  }
  return out;
}

struct Translator {
  std::string_view in;
  size_t at = 0;
  std::string out;

  tl::unexpected<Error> unsupported(std::string_view what, size_t offset) const {
    return fail(ErrorCode::kUnsupported,
                fmt::format("pattern construct {} is not supported", printable(what.substr(0, 80))),
                fmt::format("offset {}", offset));
  }

  Status run() {
    // Caseless, Oniguruma lets "ß" match "ss" and "ﬆ" match "st"; PCRE2 compares one character with
    // one.
    if (in.find("(?i") != std::string_view::npos) {
      std::string lower;
      for (char c : in) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      for (std::string_view folded : {"ss", "st", "ff", "fi", "fl"})
        if (const size_t found = lower.find(folded); found != std::string::npos)
          return unsupported(fmt::format("(?i with \"{}\"", folded), found);
      for (size_t i = 0; i < in.size(); ++i)
        if (static_cast<unsigned char>(in[i]) >= 0x80)
          return unsupported("(?i with characters beyond ASCII", i);
    }
    while (at < in.size()) DEEPMINT_CHECK_OK(step());
    return {};
  }

  Status step() {
    const char c = in[at];
    if (c == '\\') return escape(false);
    if (c == '[') return char_class();
    if (c == '(') return group();
    if (c == '{') return interval();
    ++at;
    if (c == '^' || c == '$') {  // Ruby syntax: always of a line
      out += c == '^' ? "(?m:^)" : "(?m:$)";
    } else {
      literal(c);
    }
    return {};
  }

  void literal(char c) {
    if (c == '\r')
      out += "\\r";
    else if (c == '\n')
      out += "\\n";
    else
      out += c;
  }

  Status interval() {
    const size_t start = at;
    size_t end = at + 1;
    while (end < in.size() && (std::isdigit(static_cast<unsigned char>(in[end])) || in[end] == ','))
      ++end;
    const std::string_view body = in.substr(start + 1, end - start - 1);
    const bool is_interval = end < in.size() && in[end] == '}' &&
                             body.find_first_of("0123456789") != std::string_view::npos &&
                             std::count(body.begin(), body.end(), ',') <= 1;
    ++at;
    if (!is_interval) {
      out += "\\{";
      return {};
    }
    at = end + 1;
    if (at < in.size() && in[at] == '+')
      return unsupported("{…}+", start);  // repetition there, possessive in PCRE2
    out += fmt::format("{{{}{}}}", body[0] == ',' ? "0" : "", body);
    return {};
  }

  Status group() {
    constexpr std::array<std::string_view, 8> kAllowed = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    if (in.substr(at).starts_with("(?i)") && at == 0) {
      out += "(?i)";
      at += 4;
      return {};
    }
    if (!in.substr(at).starts_with("(?")) {
      if (in.substr(at).starts_with("(*")) return unsupported("(*", at);
      out += "(?:";  // groups are never referred to
      ++at;
      return {};
    }
    for (std::string_view open : kAllowed) {
      if (!in.substr(at).starts_with(open)) continue;
      out += open;
      at += open.size();
      return {};
    }
    return unsupported(in.substr(at, 4), at);
  }

  Status char_class() {
    const size_t start = at++;
    out += '[';
    if (at < in.size() && in[at] == '^') {
      out += '^';
      ++at;
    }
    bool first = true;
    while (at < in.size() && (in[at] != ']' || first)) {
      const char c = in[at];
      if (c == '[') return unsupported("[ inside a class", at);
      if (in.substr(at).starts_with("&&")) return unsupported("&&", at);
      if (c == '\\') {
        DEEPMINT_CHECK_OK(escape(true));
      } else {
        ++at;
        if (c == ']' || c == '^') out += '\\';
        literal(c);
      }
      first = false;
    }
    if (at >= in.size()) return unsupported("[ without ]", start);
    ++at;
    out += ']';
    return {};
  }

  void put_set(const std::string& set, bool inside) { out += inside ? set : "[" + set + "]"; }

  Status escape(bool inside) {
    const size_t start = at++;
    if (at >= in.size()) return unsupported("\\ at the end", start);
    const char c = in[at++];
    switch (c) {
      case 'p':
      case 'P':
        return property(c == 'P', inside, start);
      case 's':
        put_set(in_class(unicode::space_ranges()), inside);
        return {};
      case 'S':
        put_set(in_class(unicode::complement(unicode::space_ranges())), inside);
        return {};
      case 'w':
        put_set(in_class(word_ranges(inside)), inside);
        return {};
      case 'W':
        put_set(in_class(unicode::complement(word_ranges(inside))), inside);
        return {};
      case 'd':
        put_category("Nd", false, inside);
        return {};
      case 'D':
        put_category("Nd", true, inside);
        return {};
      case 'h':
        put_set("0-9a-fA-F", inside);
        return {};
      case 'n':
        out += "\\n";
        return {};
      case 'r':
        out += "\\r";
        return {};
      case 't':
        out += "\\t";
        return {};
      case 'f':
        out += "\\f";
        return {};
      case 'v':
        out += "\\x0b";
        return {};
      case 'a':
        out += "\\x07";
        return {};
      case 'e':
        out += "\\x1b";
        return {};
      case 'x':
      case 'u':
        return code_point(c, start);
      case 'A':
      case 'z':
        if (inside) break;
        out += {'\\', c};
        return {};
      default:
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) {
          if (static_cast<unsigned char>(c) < 0x80 &&
              std::ispunct(static_cast<unsigned char>(c)) != 0)
            out += '\\';
          literal(c);
          return {};
        }
    }
    return unsupported(in.substr(start, 2), start);
  }

  Status code_point(char kind, size_t start) {
    size_t digits = kind == 'u' ? 4 : 2;
    const bool braced = kind == 'x' && at < in.size() && in[at] == '{';
    if (braced) {
      const size_t close = in.find('}', at);
      if (close == std::string_view::npos || close - at - 1 > 8) return unsupported("\\x{", start);
      digits = close - ++at;
    }
    uint32_t value = 0;
    const std::string_view text = in.substr(at, digits);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    const bool is_scalar = value < 0xD800 || (value > 0xDFFF && value < 0x110000);
    // Above 0x7F Oniguruma reads \xHH as a byte of the encoding.
    if (text.empty() || text.size() != digits || error != std::errc() ||
        end != text.data() + text.size() || !is_scalar || (kind == 'x' && !braced && value > 0x7F))
      return unsupported(in.substr(start, 2 + digits), start);
    at += digits + (braced ? 1 : 0);
    out += fmt::format("\\x{{{:x}}}", value);
    return {};
  }

  void put_category(std::string_view name, bool negated, bool inside) {
    const std::string all =
        fmt::format("\\p{{{}}}{}", name, in_class(unicode::category_ranges_since_14(name)));
    if (!negated)
      put_set(all, inside);
    else if (inside)
      out += in_class(unicode::complement(*unicode::category_ranges(name)));
    else
      out += "[^" + all + "]";
  }

  Status property(bool negated, bool inside, size_t start) {
    const size_t close = in.find('}', at);
    if (at >= in.size() || in[at] != '{' || close == std::string_view::npos)
      return unsupported("\\p without {name}", start);
    std::string_view name = in.substr(at + 1, close - at - 1);
    at = close + 1;
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    // C would take in the characters that 14.0 leaves unassigned and we do not.
    const bool whole = name == "C" || name == "Cn";
    if (whole) {
      const Ranges ranges = *unicode::category_ranges(name);
      put_set(in_class(negated ? unicode::complement(ranges) : ranges), inside);
    } else if (unicode::category_ranges(name)) {
      put_category(name, negated, inside);
    } else if (const auto script = script_ranges(name)) {
      put_set(in_class(negated ? unicode::complement(*script) : *script), inside);
    } else {
      return unsupported(in.substr(start, at - start), start);
    }
    return {};
  }
};

}  // namespace

std::span<const std::string_view> known_patterns(PreTokenizer pre) {
  switch (pre) {
    case PreTokenizer::kGpt2:
      return kGpt2Patterns;
    case PreTokenizer::kLlama3:
      return kLlama3Patterns;
    case PreTokenizer::kQwen2:
      return kQwen2Patterns;
    case PreTokenizer::kSmolLm:
      return kSmolLmPatterns;
    case PreTokenizer::kDeepSeekV3:
      return kDeepSeekV3Patterns;
  }
  return {};
}

std::string_view to_string(PreTokenizer pre) {
  switch (pre) {
    case PreTokenizer::kGpt2:
      return "gpt2";
    case PreTokenizer::kLlama3:
      return "llama3";
    case PreTokenizer::kQwen2:
      return "qwen2";
    case PreTokenizer::kSmolLm:
      return "smollm";
    case PreTokenizer::kDeepSeekV3:
      return "deepseek-v3";
  }
  return "unknown";
}

std::optional<PreTokenizer> recognize_patterns(std::span<const std::string> patterns) {
  std::vector<std::string> canonical;
  for (const std::string& pattern : patterns) {
    Result<std::string> translated = pattern_to_pcre2(pattern);
    if (!translated) return std::nullopt;
    canonical.push_back(std::move(*translated));
  }
  for (PreTokenizer pre : kAllPre) {
    const auto known = known_patterns(pre);
    if (std::equal(
            known.begin(), known.end(), canonical.begin(), canonical.end(),
            [](std::string_view k, const std::string& c) { return *pattern_to_pcre2(k) == c; }))
      return pre;
  }
  return std::nullopt;
}

Result<std::string> pattern_to_pcre2(std::string_view pattern) {
  if (const size_t bad = utf8::find_invalid(pattern); bad != utf8::npos)
    return fail(ErrorCode::kInvalidFile, "pattern is not valid UTF-8",
                fmt::format("offset {}", bad));
  Translator translator{pattern, 0, {}};
  DEEPMINT_CHECK_OK(translator.run());
  return std::move(translator.out);
}

}  // namespace deepmint
