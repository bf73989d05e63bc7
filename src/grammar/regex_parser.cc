#include "grammar/regex_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/names.h"
#include "core/utf8.h"
#include "grammar/unicode_sets.h"

namespace deepmint::grammar {

namespace {

using Ranges = std::vector<CodePointRange>;

constexpr int kMaxGroupDepth = 200;

// Languages of a piece of the pattern by where it stands: at[b][e] holds what it matches when it
// begins at the start of the text (b) and ends at the end of it (e). Without anchors inside, all
// four are one.
struct Piece {
  std::array<std::array<RegexId, 2>, 2> at{};
  bool plain = true;
};

class Parser {
 public:
  Parser(RegexSet& set, const RegexOptions& options) : set_(set), options_(options) {}

  Result<RegexId> run(std::string_view pattern) {
    if (pattern.size() > kMaxRegexBytes)
      return fail(ErrorCode::kTooLarge,
                  fmt::format("expected a pattern of at most {} bytes, found {}", kMaxRegexBytes,
                              pattern.size()));
    if (const size_t bad = utf8::find_invalid(pattern); bad != utf8::npos)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("expected UTF-8, found byte {:#04x}", static_cast<uint8_t>(pattern[bad])),
          fmt::format("byte {}", bad));
    for (size_t at = 0; at < pattern.size();) text_.push_back(utf8::next(pattern, at));
    const std::optional<Piece> all = alternatives(0);
    if (!all) return tl::unexpected<Error>(*error_);
    if (pos_ < text_.size()) return misplaced();
    const RegexId any = set_.star(set_.any_code_point());
    const RegexId some = set_.repeat(set_.any_code_point(), 1, kUnbounded);
    RegexId out = all->at[1][1];
    if (options_.search) {
      out = all->plain
                ? set_.concat(std::array{any, out, any})
                : set_.alternate(std::array{out, set_.concat(all->at[1][0], some),
                                            set_.concat(some, all->at[0][1]),
                                            set_.concat(std::array{some, all->at[0][0], some})});
    }
    if (set_.exhausted())
      return fail(ErrorCode::kTooLarge, "the pattern needs more expressions than the limit");
    return out;
  }

 private:
  bool ecma() const { return options_.dialect == RegexDialect::kEcma; }
  bool at_end() const { return pos_ >= text_.size(); }
  uint32_t peek(size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : 0xffffffffu;
  }
  bool take(uint32_t c) {
    if (peek() != c) return false;
    ++pos_;
    return true;
  }
  bool take(std::string_view ascii) {
    for (size_t i = 0; i < ascii.size(); ++i)
      if (peek(i) != static_cast<uint8_t>(ascii[i])) return false;
    pos_ += ascii.size();
    return true;
  }
  static std::string spelled(uint32_t cp) {
    std::string out;
    utf8::append(out, cp);
    return quote_name(out);
  }

  std::nullopt_t stop(ErrorCode code, std::string message, size_t at) {
    if (!error_) error_ = Error{code, std::move(message), fmt::format("character {}", at)};
    return std::nullopt;
  }
  std::nullopt_t refuse(std::string_view what, size_t at) {
    return stop(ErrorCode::kUnsupported, fmt::format("{} cannot be done", what), at);
  }
  tl::unexpected<Error> misplaced() {
    stop(ErrorCode::kInvalidArgument, fmt::format("unexpected {}", spelled(peek())), pos_);
    return tl::unexpected<Error>(*error_);
  }

  // --- pieces ------------------------------------------------------------------------------------

  static Piece plain(RegexId id) { return {{{{id, id}, {id, id}}}, true}; }

  // What `a` then `b` match. Where one of them matches nothing, the place between them is itself
  // the start (or the end) of the text.
  Piece then(const Piece& a, const Piece& b) {
    if (a.plain && b.plain) return plain(set_.concat(a.at[0][0], b.at[0][0]));
    Piece out{{}, false};
    for (size_t begin = 0; begin < 2; ++begin)
      for (size_t end = 0; end < 2; ++end) {
        std::vector<RegexId> parts;
        // a matches something, b matches something.
        parts.push_back(
            set_.concat(set_.without_epsilon(a.at[begin][0]), set_.without_epsilon(b.at[0][end])));
        if (set_.nullable(a.at[begin][0])) parts.push_back(set_.without_epsilon(b.at[begin][end]));
        if (set_.nullable(b.at[0][end])) parts.push_back(set_.without_epsilon(a.at[begin][end]));
        if (set_.nullable(a.at[begin][end]) && set_.nullable(b.at[begin][end]))
          parts.push_back(set_.epsilon());
        out.at[begin][end] = set_.alternate(parts);
      }
    return out;
  }

  Piece either(const std::vector<Piece>& pieces) {
    Piece out;
    out.plain = std::all_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.plain; });
    for (size_t begin = 0; begin < 2; ++begin)
      for (size_t end = 0; end < 2; ++end) {
        if (out.plain && begin + end > 0) {
          out.at[begin][end] = out.at[0][0];
          continue;
        }
        std::vector<RegexId> parts;
        parts.reserve(pieces.size());
        for (const Piece& p : pieces) parts.push_back(p.at[begin][end]);
        out.at[begin][end] = set_.alternate(parts);
      }
    return out;
  }

  // --- grammar -----------------------------------------------------------------------------------

  std::optional<Piece> alternatives(int depth) {
    if (depth > kMaxGroupDepth)
      return stop(ErrorCode::kTooLarge,
                  fmt::format("groups are nested deeper than {}", kMaxGroupDepth), pos_);
    const bool fold = fold_, dot_all = dot_all_;
    std::vector<Piece> all;
    do {
      std::optional<Piece> one = sequence(depth);
      if (!one) return std::nullopt;
      all.push_back(*one);
    } while (take('|'));
    fold_ = fold;
    dot_all_ = dot_all;
    return all.size() == 1 ? all[0] : either(all);
  }

  std::optional<Piece> sequence(int depth) {
    std::vector<Piece> parts;
    while (!at_end() && peek() != '|' && peek() != ')') {
      const size_t at = pos_;
      std::optional<Piece> one = atom(depth);
      if (!one) return std::nullopt;
      one = counted(*one, at);
      if (!one) return std::nullopt;
      parts.push_back(*one);
    }
    Piece out = plain(set_.epsilon());
    for (size_t i = parts.size(); i-- > 0;) out = then(parts[i], out);
    return out;
  }

  // {n}, {n,} or {n,m} here; false: not a count (and nothing is taken).
  bool count(uint32_t& min, uint32_t& max) {
    size_t at = pos_ + 1;
    const auto number = [&](uint32_t& out) {
      const size_t from = at;
      uint64_t value = 0;
      for (; at < text_.size() && text_[at] >= '0' && text_[at] <= '9'; ++at)
        value = std::min<uint64_t>(value * 10 + (text_[at] - '0'), kUnbounded - 1);
      out = static_cast<uint32_t>(value);
      return at > from;
    };
    if (!number(min)) return false;
    max = min;
    if (at < text_.size() && text_[at] == ',') {
      ++at;
      if (at < text_.size() && text_[at] == '}')
        max = kUnbounded;
      else if (!number(max))
        return false;
    }
    if (at >= text_.size() || text_[at] != '}') return false;
    pos_ = at + 1;
    return true;
  }

  bool quantifier(uint32_t& min, uint32_t& max) {
    min = 0;
    max = kUnbounded;
    if (take('*')) return true;
    if (take('+')) return min = 1, true;
    if (take('?')) return max = 1, true;
    return peek() == '{' && count(min, max);
  }

  std::optional<Piece> counted(const Piece& body, size_t at) {
    uint32_t min = 1, max = 1;
    const size_t from = pos_;
    if (!quantifier(min, max)) return body;
    if (max != kUnbounded && min > max)
      return stop(ErrorCode::kInvalidArgument,
                  fmt::format("count {{{},{}}} is the wrong way round", min, max), from);
    if (min > kMaxRegexRepeat || (max != kUnbounded && max > kMaxRegexRepeat))
      return stop(ErrorCode::kTooLarge, fmt::format("a count is above {}", kMaxRegexRepeat), from);
    take('?');  // lazy: the same language
    uint32_t again_min = 0, again_max = 0;
    if (const size_t next = pos_; quantifier(again_min, again_max))
      return stop(ErrorCode::kInvalidArgument, "a repetition of a repetition needs a group", next);
    if (body.plain) return plain(set_.repeat(body.at[0][0], min, max));
    if (min == 1 && max == 1) return body;
    if (min == 0 && max == 1) return either({plain(set_.epsilon()), body});
    return refuse("an anchor inside a repetition", at);
  }

  std::optional<Piece> atom(int depth) {
    const size_t at = pos_;
    const uint32_t c = text_[pos_++];
    switch (c) {
      case '(':
        return group(depth, at);
      case '[': {
        std::optional<Ranges> ranges = char_class(at);
        if (!ranges) return std::nullopt;
        return points(std::move(*ranges), /*fold=*/false);  // char_class() folds before it negates
      }
      case '.': {
        if (dot_all_) return plain(set_.any_code_point());
        Ranges line{{'\n', '\n'}};
        if (ecma()) line.insert(line.end(), {{'\r', '\r'}, {0x2028, 0x2029}});
        return points(invert(std::move(line)), /*fold=*/false);
      }
      case '^':
        return anchor(/*begin=*/true);
      case '$':
        return anchor(/*begin=*/false);
      case '*':
      case '+':
      case '?':
        return stop(ErrorCode::kInvalidArgument,
                    fmt::format("nothing to repeat before {}", spelled(c)), at);
      case '{': {
        uint32_t min = 0, max = 0;
        --pos_;
        if (count(min, max))
          return stop(ErrorCode::kInvalidArgument, "nothing to repeat before a count", at);
        ++pos_;
        return points({{c, c}});
      }
      case '\\':
        return escape(at);
      default:
        return points({{c, c}});
    }
  }

  Piece anchor(bool begin) {
    Piece out{{}, false};
    for (size_t b = 0; b < 2; ++b)
      for (size_t e = 0; e < 2; ++e)
        out.at[b][e] = (begin ? b : e) != 0 ? set_.epsilon() : set_.none();
    return out;
  }

  // One code point of the set. With (?i) in the sense of simple case folding: exact where all
  // letters with case are ASCII or every code point beyond ASCII is in the set anyway.
  std::optional<Piece> points(Ranges ranges, bool fold = true) {
    if (fold && fold_ && !add_other_case(ranges)) return std::nullopt;
    return plain(set_.code_points(ranges));
  }

  bool add_other_case(Ranges& ranges) {
    normalize(ranges);
    const auto has = [&](uint32_t cp) {
      return std::any_of(ranges.begin(), ranges.end(),
                         [&](const CodePointRange& r) { return r.first <= cp && cp <= r.last; });
    };
    const bool all_beyond = std::any_of(ranges.begin(), ranges.end(), [](const CodePointRange& r) {
      return r.first <= 0x80 && r.last == 0x10ffff;
    });
    if (!all_beyond && std::any_of(ranges.begin(), ranges.end(), [](const CodePointRange& r) {
          return r.last >= 0x80 && !(r.first == r.last && (r.first == 0x17f || r.first == 0x212a));
        })) {
      refuse("case-insensitive matching beyond ASCII", pos_ > 0 ? pos_ - 1 : 0);
      return false;
    }
    const bool kelvin = has(0x212a), long_s = has(0x17f);
    Ranges more;
    for (uint32_t lower = 'a'; lower <= 'z'; ++lower) {
      const bool in =
          has(lower) || has(lower - 32) || (lower == 'k' && kelvin) || (lower == 's' && long_s);
      if (!in) continue;
      more.insert(more.end(), {{lower, lower}, {lower - 32, lower - 32}});
      if (lower == 'k') more.push_back({0x212a, 0x212a});
      if (lower == 's') more.push_back({0x17f, 0x17f});
    }
    ranges.insert(ranges.end(), more.begin(), more.end());
    return true;
  }

  std::optional<Piece> group(int depth, size_t at) {
    const bool fold = fold_, dot_all = dot_all_;
    if (take("?")) {
      if (peek() == '=' || peek() == '!' || (peek() == '<' && (peek(1) == '=' || peek(1) == '!')))
        return refuse(peek() == '<' ? "look-behind" : "look-ahead", at);
      if (take(">")) return refuse("an atomic group", at);
      if (take(":")) {
      } else if (take("<") || (!ecma() && take("P<"))) {
        const size_t from = pos_;
        while (!at_end() && peek() != '>') {
          const uint32_t c = peek();
          if (!(c == '_' || c == '$' || c >= 0x80 || (c >= '0' && c <= '9' && pos_ > from) ||
                (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
            return stop(ErrorCode::kInvalidArgument, "expected a group name", pos_);
          ++pos_;
        }
        if (pos_ == from || !take('>'))
          return stop(ErrorCode::kInvalidArgument, "expected a group name and >", from);
      } else if (!ecma() && take("P=")) {
        return refuse("a back-reference", at);
      } else if (ecma()) {
        return refuse("this kind of group", at);
      } else {
        bool on = true;
        for (; !at_end() && peek() != ')' && peek() != ':'; ++pos_) {
          switch (peek()) {
            case '-':
              on = false;
              break;
            case 'i':
              fold_ = on;
              break;
            case 's':
              dot_all_ = on;
              break;
            case 'U':  // greedy or lazy: the same language
              break;
            case 'm':
              if (on) return refuse("the multi-line flag (?m)", pos_);
              break;
            default:
              return stop(ErrorCode::kInvalidArgument,
                          fmt::format("unknown flag {}", spelled(peek())), pos_);
          }
        }
        if (take(')')) return plain(set_.epsilon());  // holds to the end of the enclosing group
        if (!take(':')) return stop(ErrorCode::kInvalidArgument, "missing )", at);
      }
    }
    std::optional<Piece> inside = alternatives(depth + 1);
    if (!inside) return std::nullopt;
    if (!take(')')) return stop(ErrorCode::kInvalidArgument, "missing )", at);
    fold_ = fold;
    dot_all_ = dot_all;
    return inside;
  }

  static Ranges digits() { return {{'0', '9'}}; }
  static Ranges word() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
  Ranges space() const {
    if (!ecma()) return {{'\t', '\n'}, {'\f', '\r'}, {' ', ' '}};
    return {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
            {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
            {0x3000, 0x3000}, {0xfeff, 0xfeff}};
  }

  // \d \D \s \S \w \W \p \P, after the backslash; nullopt without an error: none of them.
  std::optional<Ranges> class_escape(size_t at) {
    switch (peek()) {
      case 'd':
      case 'D':
      case 's':
      case 'S':
      case 'w':
      case 'W': {
        const uint32_t c = text_[pos_++];
        Ranges out = c == 'd' || c == 'D' ? digits() : c == 's' || c == 'S' ? space() : word();
        if (c < 'a') out = invert(std::move(out));
        return out;
      }
      case 'p':
      case 'P':
        return property(at);
      default:
        return std::nullopt;
    }
  }

  std::optional<Ranges> property(size_t at) {
    bool negative = text_[pos_++] == 'P';
    std::string name;
    if (take('{')) {
      while (!at_end() && peek() != '}') {
        if (peek() >= 0x80)
          return stop(ErrorCode::kInvalidArgument, "expected a property name", pos_);
        name += static_cast<char>(text_[pos_++]);
      }
      if (!take('}'))
        return stop(ErrorCode::kInvalidArgument, "expected } after a property name", at);
    } else if (!ecma() && !at_end() && peek() < 0x80) {
      name = static_cast<char>(text_[pos_++]);
    } else {
      return stop(ErrorCode::kInvalidArgument, "expected {name} after \\p", at);
    }
    const std::string written = name;
    if (!ecma() && name.starts_with('^')) {
      negative = !negative;
      name.erase(0, 1);
    }
    std::shared_ptr<const Ranges> ranges;
    const auto value_of = [&](std::string_view key,
                              std::string_view short_key) -> std::optional<std::string> {
      for (const std::string_view one : {key, short_key})
        if (ecma() && name.starts_with(one)) return name.substr(one.size());
      return std::nullopt;
    };
    if (const auto general = value_of("General_Category=", "gc="))
      ranges = category(*general);
    else if (const auto script = value_of("Script=", "sc="))
      ranges = unicode_property("sc:" + *script);
    else if (const auto extensions = value_of("Script_Extensions=", "scx="))
      ranges = unicode_property("scx:" + *extensions);
    else if (name == "Any")
      ranges = std::make_shared<const Ranges>(Ranges{{0, 0x10ffff}});
    else if (ecma() && name == "Assigned")
      ranges = unicode_property("Cn")
                   ? std::make_shared<const Ranges>(invert(*unicode_property("Cn")))
                   : nullptr;
    else if (name.find(':') == std::string::npos) {
      ranges = category(name);
      if (ranges == nullptr && !(ecma() && is_script(name)))
        ranges = unicode_property(ecma() ? name : "sc:" + name);
    }
    if (ranges == nullptr)
      return stop(ErrorCode::kUnsupported, fmt::format("unknown property {}", quote_name(written)),
                  at);
    return negative ? invert(*ranges) : *ranges;
  }

  // ECMAScript wants Script= before a script; bare names are binary properties.
  // (PCRE2's own inventions begin with X and have three letters.)
  static bool is_script(const std::string& name) {
    return (name.size() == 3 && (name[0] | 32) == 'x') || unicode_property("sc:" + name) != nullptr;
  }

  std::shared_ptr<const Ranges> category(std::string_view name) const {
    static constexpr std::pair<std::string_view, std::string_view> kLong[] = {
        {"Other", "C"},
        {"Control", "Cc"},
        {"cntrl", "Cc"},
        {"Format", "Cf"},
        {"Unassigned", "Cn"},
        {"Private_Use", "Co"},
        {"Letter", "L"},
        {"Cased_Letter", "L&"},
        {"LC", "L&"},
        {"Lowercase_Letter", "Ll"},
        {"Modifier_Letter", "Lm"},
        {"Other_Letter", "Lo"},
        {"Titlecase_Letter", "Lt"},
        {"Uppercase_Letter", "Lu"},
        {"Mark", "M"},
        {"Combining_Mark", "M"},
        {"Spacing_Mark", "Mc"},
        {"Enclosing_Mark", "Me"},
        {"Nonspacing_Mark", "Mn"},
        {"Number", "N"},
        {"Decimal_Number", "Nd"},
        {"digit", "Nd"},
        {"Letter_Number", "Nl"},
        {"Other_Number", "No"},
        {"Punctuation", "P"},
        {"punct", "P"},
        {"Connector_Punctuation", "Pc"},
        {"Dash_Punctuation", "Pd"},
        {"Close_Punctuation", "Pe"},
        {"Final_Punctuation", "Pf"},
        {"Initial_Punctuation", "Pi"},
        {"Other_Punctuation", "Po"},
        {"Open_Punctuation", "Ps"},
        {"Symbol", "S"},
        {"Currency_Symbol", "Sc"},
        {"Modifier_Symbol", "Sk"},
        {"Math_Symbol", "Sm"},
        {"Other_Symbol", "So"},
        {"Separator", "Z"},
        {"Line_Separator", "Zl"},
        {"Paragraph_Separator", "Zp"},
        {"Space_Separator", "Zs"}};
    static constexpr std::string_view kShort[] = {
        "C",  "Cc", "Cf", "Cn", "Co", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
        "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf",
        "Pi", "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};
    for (const std::string_view known : kShort)
      if (name == known) return unicode_property(name);
    if (name == "Cs" || name == "Surrogate")  // no text holds one
      return std::make_shared<const Ranges>();
    if (ecma())
      for (const auto& [known, is] : kLong)
        if (name == known) return unicode_property(is);
    return nullptr;
  }

  static std::optional<uint32_t> hex_digit(uint32_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return std::nullopt;
  }
  std::optional<uint32_t> hex(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      const auto digit = hex_digit(peek(i));
      if (!digit) return std::nullopt;
      value = value << 4 | *digit;
    }
    pos_ += digits;
    return value;
  }

  // A single code point, after the backslash.
  std::optional<uint32_t> char_escape(size_t at, bool in_class) {
    if (at_end()) return stop(ErrorCode::kInvalidArgument, "the pattern ends in a backslash", at);
    const uint32_t c = text_[pos_++];
    const auto braced = [&]() -> std::optional<uint32_t> {
      uint32_t value = 0;
      const size_t from = pos_;
      while (const auto digit = hex_digit(peek())) {
        value = std::min<uint32_t>(value << 4 | *digit, 0x110000);
        ++pos_;
      }
      if (pos_ == from || !take('}') || value > 0x10ffff)
        return stop(ErrorCode::kInvalidArgument, "expected a code point in hexadecimal and }",
                    from);
      return value;
    };
    switch (c) {
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        if (!ecma()) return 7;
        break;
      case 'b':
        if (in_class && ecma()) return 8;
        return refuse("a word boundary (\\b)", at);
      case 'B':
        return refuse("a word boundary (\\B)", at);
      case 'c':
        if (ecma() && ((peek() | 32) >= 'a' && (peek() | 32) <= 'z')) return text_[pos_++] & 31;
        break;
      case 'x': {
        if (!ecma() && take('{')) return braced();
        if (const auto value = hex(2)) return value;
        return stop(ErrorCode::kInvalidArgument, "expected two hexadecimal digits after \\x", at);
      }
      case 'u': {
        if (!ecma()) break;
        if (take('{')) return braced();
        const auto value = hex(4);
        if (!value)
          return stop(ErrorCode::kInvalidArgument, "expected four hexadecimal digits after \\u",
                      at);
        if (*value >= 0xd800 && *value <= 0xdbff && peek() == '\\' && peek(1) == 'u') {
          const size_t back = pos_;
          pos_ += 2;
          if (const auto low = hex(4); low && *low >= 0xdc00 && *low <= 0xdfff)
            return 0x10000 + ((*value - 0xd800) << 10) + (*low - 0xdc00);
          pos_ = back;
        }
        return value;  // a lone surrogate is in no text; code_points() leaves it out
      }
      case 'k':
        return refuse("a back-reference", at);
      case 'C':
        if (!ecma()) return refuse("a single byte (\\C)", at);
        break;
      default:
        break;
    }
    if (c >= '0' && c <= '9') {
      const bool octal_next = peek() >= '0' && peek() <= '7';
      if (c == '0' && ecma() && !(peek() >= '0' && peek() <= '9')) return 0;
      if (c == '0' && !ecma()) {
        uint32_t value = 0;
        for (int i = 0; i < 2 && peek() >= '0' && peek() <= '7'; ++i)
          value = value * 8 + (text_[pos_++] - '0');
        return value;
      }
      return refuse(
          octal_next && c < '8' ? "an octal escape or back-reference" : "a back-reference", at);
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter || c >= 0x80)
      return stop(ErrorCode::kUnsupported,
                  fmt::format("unknown escape \\{}", printable(spelled_raw(c))), at);
    return c;
  }
  static std::string spelled_raw(uint32_t cp) {
    std::string out;
    utf8::append(out, cp);
    return out;
  }

  std::optional<Piece> escape(size_t at) {
    if (!ecma()) {
      if (take('A')) return anchor(true);
      if (take('z')) return anchor(false);
      if (take('Q')) {
        Piece out = plain(set_.epsilon());
        std::vector<Piece> parts;
        while (!at_end() && !take("\\E")) {
          const uint32_t c = text_[pos_++];
          std::optional<Piece> one = points({{c, c}});
          if (!one) return std::nullopt;
          parts.push_back(*one);
        }
        // A count after \E belongs to the last character.
        if (parts.empty()) return out;
        std::optional<Piece> last = counted(parts.back(), at);
        if (!last) return std::nullopt;
        parts.back() = *last;
        for (size_t i = parts.size(); i-- > 0;) out = then(parts[i], out);
        return out;
      }
    }
    if (std::optional<Ranges> ranges = class_escape(at)) return points(std::move(*ranges));
    if (error_) return std::nullopt;
    const std::optional<uint32_t> c = char_escape(at, false);
    if (!c) return std::nullopt;
    return points({{*c, *c}});
  }

  std::optional<Ranges> posix_class() {
    static const std::pair<std::string_view, Ranges> kClasses[] = {
        {"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}},
        {"alpha", {{'A', 'Z'}, {'a', 'z'}}},
        {"ascii", {{0, 0x7f}}},
        {"blank", {{'\t', '\t'}, {' ', ' '}}},
        {"cntrl", {{0, 31}, {127, 127}}},
        {"digit", {{'0', '9'}}},
        {"graph", {{'!', '~'}}},
        {"lower", {{'a', 'z'}}},
        {"print", {{' ', '~'}}},
        {"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}},
        {"space", {{'\t', '\r'}, {' ', ' '}}},
        {"upper", {{'A', 'Z'}}},
        {"word", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
        {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}}};
    for (const auto& [name, ranges] : kClasses)
      for (const bool negative : {false, true})
        if (take(fmt::format("[:{}{}:]", negative ? "^" : "", name)))
          return negative ? invert(ranges) : ranges;
    return std::nullopt;
  }

  std::optional<Ranges> char_class(size_t at) {
    const bool negative = take('^');
    Ranges out;
    const size_t first = pos_;
    for (;;) {
      if (at_end()) return stop(ErrorCode::kInvalidArgument, "missing ]", at);
      if (peek() == ']' && (ecma() || pos_ > first)) break;  // RE2: a first ] is a character
      if (!ecma() && peek() == '[' && peek(1) == ':') {
        const std::optional<Ranges> named = posix_class();
        if (!named) return stop(ErrorCode::kInvalidArgument, "unknown class [:…:]", pos_);
        out.insert(out.end(), named->begin(), named->end());
        continue;
      }
      const std::optional<Ranges> low = class_item();
      if (!low) return std::nullopt;
      const bool single = low_single_;
      if (peek() == '-' && peek(1) != ']' && pos_ + 1 < text_.size()) {
        const size_t dash = pos_++;
        const std::optional<Ranges> high = class_item();
        if (!high) return std::nullopt;
        if (!single || !low_single_)
          return stop(ErrorCode::kInvalidArgument, "a class cannot be an end of a range", dash);
        if ((*low)[0].first > (*high)[0].first)
          return stop(ErrorCode::kInvalidArgument, "a range is the wrong way round", dash);
        out.push_back({(*low)[0].first, (*high)[0].first});
        continue;
      }
      out.insert(out.end(), low->begin(), low->end());
    }
    ++pos_;
    if (fold_ && !add_other_case(out)) return std::nullopt;  // before the negation
    return negative ? invert(std::move(out)) : out;
  }

  // One code point (low_single_) or a class inside [ ].
  std::optional<Ranges> class_item() {
    const size_t at = pos_;
    const uint32_t c = text_[pos_++];
    low_single_ = true;
    if (c != '\\') return Ranges{{c, c}};
    if (std::optional<Ranges> ranges = class_escape(at)) {
      low_single_ = false;
      return ranges;
    }
    if (error_) return std::nullopt;
    const std::optional<uint32_t> one = char_escape(at, true);
    if (!one) return std::nullopt;
    return Ranges{{*one, *one}};
  }

  RegexSet& set_;
  RegexOptions options_;
  std::vector<uint32_t> text_;
  size_t pos_ = 0;
  bool fold_ = false, dot_all_ = false, low_single_ = false;
  std::optional<Error> error_;
};

}  // namespace

Result<RegexId> parse_regex(RegexSet& set, std::string_view pattern, const RegexOptions& options) {
  return Parser(set, options).run(pattern);
}

}  // namespace deepmint::grammar
