#include "grammar/ebnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/names.h"
#include "core/utf8.h"
#include "grammar/unicode_sets.h"

namespace deepmint::grammar {

namespace {

constexpr int kMaxDepth = 200;
constexpr size_t kMaxRules = 20'000;
constexpr size_t kMaxNodes = 300'000;
constexpr uint32_t kMaxRepeat = 10'000;
constexpr int kMaxMarks = 8;
// A rule or part of one that is regular becomes one lexeme up to this many expressions. Larger
// ones keep their structure, so that equal parts (a string in each of fifty fields) stay equal
// lexemes and share what is computed for them.
constexpr size_t kMaxLexemeWeight = 400;
constexpr size_t kMaxFiniteWeight = 100'000;  // without repetition: lists of words

struct Node {
  enum Kind : uint8_t {
    kLiteral,
    kClass,
    kRule,
    kSequence,
    kChoice,
    kRepeat,
    kToken
  } kind = kSequence;
  uint32_t index = 0;  // of the literal, class, rule or token; of the body for kRepeat
  std::vector<uint32_t> kids;
  uint32_t min = 0, max = 0;
};

struct Rule {
  std::string name;
  size_t at = 0;  // byte of its first mention
  std::optional<uint32_t> body;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Status run() {
    if (const size_t bad = utf8::find_invalid(text_); bad != utf8::npos)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("expected UTF-8, found byte {:#04x}", static_cast<uint8_t>(text_[bad])),
          place(bad));
    skip(true);
    while (pos_ < text_.size() && !error_) rule();
    if (!error_ && rule_index_.find("root") == rule_index_.end())
      stop(fmt::format("expected a rule named root{}", rules_.empty() ? ", found nothing" : ""), 0);
    for (const Rule& rule : rules_)
      if (!error_ && !rule.body)
        stop(fmt::format("rule {} is not defined", quote_name(rule.name)), rule.at);
    if (error_) return tl::unexpected<Error>(*error_);
    return {};
  }

  std::vector<Node> nodes;
  std::vector<std::string> literals;
  std::vector<std::vector<CodePointRange>> classes;
  std::vector<TokenId> tokens;
  const std::vector<Rule>& rules() const { return rules_; }
  uint32_t root() const { return rule_index_.at("root"); }

 private:
  std::string place(size_t at) const {
    const std::string_view before = text_.substr(0, at);
    const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
    const size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    size_t column = 1;  // in characters
    for (size_t i = start; i < at; ++i) column += (static_cast<uint8_t>(text_[i]) & 0xc0) != 0x80;
    return fmt::format("{}:{}", line, column);
  }
  std::nullopt_t stop(std::string message, size_t at,
                      ErrorCode code = ErrorCode::kInvalidArgument) {
    if (!error_) error_ = Error{code, std::move(message), place(std::min(at, text_.size()))};
    return std::nullopt;
  }
  std::string found() const {
    if (pos_ >= text_.size()) return "the end";
    size_t end = pos_ + 1;
    while (end < text_.size() && (static_cast<uint8_t>(text_[end]) & 0xc0) == 0x80) ++end;
    return quote_name(text_.substr(pos_, end - pos_));
  }

  char peek(size_t ahead = 0) const {
    return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0';
  }
  bool take(std::string_view what) {
    if (text_.substr(pos_, what.size()) != what) return false;
    pos_ += what.size();
    return true;
  }
  void skip(bool lines) {
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == '#')
        while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
      else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))
        ++pos_;
      else
        return;
    }
  }
  static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  std::string_view name() {
    const size_t from = pos_;
    while (pos_ < text_.size() && name_char(text_[pos_])) ++pos_;
    return text_.substr(from, pos_ - from);
  }
  uint32_t rule_of(std::string_view n, size_t at) {
    const auto [it, is_new] =
        rule_index_.try_emplace(std::string(n), static_cast<uint32_t>(rules_.size()));
    if (is_new) rules_.push_back({std::string(n), at, std::nullopt});
    if (rules_.size() > kMaxRules)
      stop(fmt::format("more than {} rules", kMaxRules), at, ErrorCode::kTooLarge);
    return it->second;
  }
  uint32_t add(Node node) {
    if (nodes.size() >= kMaxNodes)
      stop(fmt::format("more than {} parts", kMaxNodes), pos_, ErrorCode::kTooLarge);
    nodes.push_back(std::move(node));
    return static_cast<uint32_t>(nodes.size() - 1);
  }

  void rule() {
    const size_t at = pos_;
    const std::string_view n = name();
    if (n.empty()) {
      stop(fmt::format("expected a rule name, found {}", found()), pos_);
      return;
    }
    skip(false);
    if (!take("::=")) {
      stop(fmt::format("expected ::= after {}, found {}", quote_name(n), found()), pos_);
      return;
    }
    const uint32_t index = rule_of(n, at);
    if (rules_[index].body) {
      stop(fmt::format("rule {} is defined twice", quote_name(n)), at);
      return;
    }
    skip(true);
    const auto body = choice(0);
    if (!body) return;
    rules_[index].body = body;
    if (pos_ < text_.size() && peek() == ')') stop("unexpected )", pos_);
  }

  // At the beginning of the next rule, or of nothing.
  bool rule_ends() {
    if (pos_ >= text_.size()) return true;
    const size_t back = pos_;
    const bool ends = !name().empty() && (skip(false), take("::="));
    pos_ = back;
    return ends;
  }

  std::optional<uint32_t> choice(int depth) {
    if (depth > kMaxDepth)
      return stop(fmt::format("groups are nested deeper than {}", kMaxDepth), pos_,
                  ErrorCode::kTooLarge);
    Node out{.kind = Node::kChoice, .kids = {}};
    do {
      skip(true);
      const auto one = sequence(depth);
      if (!one) return std::nullopt;
      out.kids.push_back(*one);
    } while (take("|"));
    if (out.kids.size() == 1) return out.kids[0];
    return add(std::move(out));
  }

  std::optional<uint32_t> sequence(int depth) {
    Node out{.kind = Node::kSequence, .kids = {}};
    for (;;) {
      skip(true);
      const char c = peek();
      if (pos_ >= text_.size() || c == '|' || c == ')') break;
      if (name_char(c) && rule_ends()) {
        if (depth > 0) return stop("missing )", pos_);
        break;
      }
      auto one = part(depth);
      if (!one) return std::nullopt;
      one = repeated(*one);
      if (!one) return std::nullopt;
      out.kids.push_back(*one);
    }
    if (out.kids.size() == 1) return out.kids[0];
    return add(std::move(out));
  }

  std::optional<uint32_t> repeated(uint32_t body) {
    for (int marks = 0;; ++marks) {
      skip(false);
      uint32_t min = 0, max = kUnbounded;
      const size_t at = pos_;
      if (marks > kMaxMarks)
        return stop(fmt::format("more than {} repetition marks in a row", kMaxMarks), at,
                    ErrorCode::kTooLarge);
      if (take("*")) {
      } else if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (take("{")) {
        const auto number = [&]() -> std::optional<uint32_t> {
          skip(false);
          uint64_t value = 0;
          const size_t from = pos_;
          for (; peek() >= '0' && peek() <= '9'; ++pos_)
            value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(peek() - '0'),
                                       kUnbounded - 1);
          if (pos_ == from) return std::nullopt;
          skip(false);
          return static_cast<uint32_t>(value);
        };
        const auto low = number();
        min = low.value_or(0);
        max = min;
        if (take(",")) {
          const auto high = number();
          max = high.value_or(kUnbounded);
        } else if (!low) {
          return stop(fmt::format("expected a number, found {}", found()), pos_);
        }
        if (!take("}")) return stop(fmt::format("expected }}, found {}", found()), pos_);
        if (min > max) return stop("the count is the wrong way round", at);
        if (min > kMaxRepeat || (max != kUnbounded && max > kMaxRepeat))
          return stop(fmt::format("a count is above {}", kMaxRepeat), at, ErrorCode::kTooLarge);
      } else {
        return body;
      }
      body = add({.kind = Node::kRepeat, .index = body, .kids = {}, .min = min, .max = max});
    }
  }

  std::optional<uint32_t> part(int depth) {
    const size_t at = pos_;
    const char c = peek();
    if (c == '"') return literal();
    if (c == '[') return char_class();
    if (take(".")) {
      classes.push_back({{0, 0x10ffff}});
      return add(
          {.kind = Node::kClass, .index = static_cast<uint32_t>(classes.size() - 1), .kids = {}});
    }
    if (take("(")) {
      const auto inside = choice(depth + 1);
      if (!inside) return std::nullopt;
      if (!take(")")) return stop("missing )", at);
      return inside;
    }
    if (take("<")) {
      uint64_t id = 0;
      const bool bracket = take("[");
      const size_t from = pos_;
      for (; peek() >= '0' && peek() <= '9'; ++pos_)
        id = std::min<uint64_t>(id * 10 + static_cast<uint64_t>(peek() - '0'), 0x7fffffff);
      if (!bracket || pos_ == from || !take("]>")) return stop("expected a token id: <[123]>", at);
      tokens.push_back(static_cast<TokenId>(id));
      return add(
          {.kind = Node::kToken, .index = static_cast<uint32_t>(tokens.size() - 1), .kids = {}});
    }
    if (name_char(c)) return add({.kind = Node::kRule, .index = rule_of(name(), at), .kids = {}});
    return stop(fmt::format("unexpected {}", found()), pos_);
  }

  std::optional<uint32_t> code_point() {
    const size_t at = pos_;
    if (const uint32_t plain = utf8::next(text_, pos_); plain != '\\') return plain;
    const char c = peek();
    if (pos_ < text_.size()) ++pos_;
    switch (c) {
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case '"':
      case '\\':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<uint32_t>(c);
      case 'x':
      case 'u':
      case 'U': {
        uint32_t value = 0;
        for (int i = c == 'x' ? 2 : c == 'u' ? 4 : 8; i > 0; --i, ++pos_) {
          const char d = peek();
          const int digit = d >= '0' && d <= '9'                 ? d - '0'
                            : (d | 32) >= 'a' && (d | 32) <= 'f' ? (d | 32) - 'a' + 10
                                                                 : -1;
          if (digit < 0)
            return stop(fmt::format("expected {} hexadecimal digits after \\{}",
                                    c == 'x'   ? 2
                                    : c == 'u' ? 4
                                               : 8,
                                    c),
                        at);
          value = value << 4 | static_cast<uint32_t>(digit);
        }
        if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
          return stop(fmt::format("U+{:04X} is not a character", value), at);
        return value;
      }
      default:
        return stop("unknown escape", at);
    }
  }

  std::optional<uint32_t> literal() {
    const size_t at = pos_++;
    std::string out;
    while (peek() != '"') {
      if (pos_ >= text_.size() || peek() == '\n') return stop("missing \"", at);
      const auto cp = code_point();
      if (!cp) return std::nullopt;
      utf8::append(out, *cp);
    }
    ++pos_;
    literals.push_back(std::move(out));
    return add(
        {.kind = Node::kLiteral, .index = static_cast<uint32_t>(literals.size() - 1), .kids = {}});
  }

  std::optional<uint32_t> char_class() {
    const size_t at = pos_++;
    const bool negative = take("^");
    std::vector<CodePointRange> ranges;
    while (peek() != ']') {
      if (pos_ >= text_.size() || peek() == '\n') return stop("missing ]", at);
      const size_t from = pos_;
      const auto low = code_point();
      if (!low) return std::nullopt;
      uint32_t high = *low;
      if (peek() == '-' && peek(1) != ']' && pos_ + 1 < text_.size()) {
        ++pos_;
        const auto to = code_point();
        if (!to) return std::nullopt;
        high = *to;
        if (high < *low) return stop("the range is the wrong way round", from);
      }
      ranges.push_back({*low, high});
    }
    ++pos_;
    classes.push_back(negative ? invert(std::move(ranges)) : std::move(ranges));
    return add(
        {.kind = Node::kClass, .index = static_cast<uint32_t>(classes.size() - 1), .kids = {}});
  }

  std::string_view text_;
  size_t pos_ = 0;
  std::vector<Rule> rules_;
  std::unordered_map<std::string, uint32_t> rule_index_;
  std::optional<Error> error_;
};

// Rules to symbols: what is regular and small becomes a lexeme.
class Lowering {
 public:
  Lowering(const Reader& in, GrammarBuilder& builder)
      : in_(in), g_(builder), lexeme_(in.rules().size()), symbol_(in.rules().size()) {}

  Symbol run() {
    find_lexemes();
    // Only what the root reaches: a rule that nobody uses need not mean anything.
    const Symbol root = symbol(in_.root());
    while (!queue_.empty()) {
      const uint32_t rule = queue_.back();
      queue_.pop_back();
      const Node& body = in_.nodes[*in_.rules()[rule].body];
      if (body.kind == Node::kChoice) {
        for (const uint32_t kid : body.kids) g_.add(*symbol_[rule], {lower(kid)});
      } else {
        g_.add(*symbol_[rule], {lower(*in_.rules()[rule].body)});
      }
    }
    return root;
  }

 private:
  RegexSet& set() { return g_.regexes(); }

  // From the leaves up; rules that take part in recursion never come up.
  void find_lexemes() {
    const size_t n = in_.rules().size();
    std::vector<std::vector<uint32_t>> users(n);
    std::vector<uint32_t> waits(n, 0), ready;
    for (uint32_t rule = 0; rule < n; ++rule) {
      std::vector<uint32_t> stack{*in_.rules()[rule].body};
      while (!stack.empty()) {
        const Node& node = in_.nodes[stack.back()];
        stack.pop_back();
        if (node.kind == Node::kRule) {
          users[node.index].push_back(rule);
          ++waits[rule];
        } else if (node.kind == Node::kRepeat) {
          stack.push_back(node.index);
        } else if (node.kind == Node::kToken) {
          ++waits[rule];  // for ever
        }
        stack.insert(stack.end(), node.kids.begin(), node.kids.end());
      }
      if (waits[rule] == 0) ready.push_back(rule);
    }
    while (!ready.empty()) {
      const uint32_t rule = ready.back();
      ready.pop_back();
      lexeme_[rule] = regular(*in_.rules()[rule].body);
      if (!lexeme_[rule]) continue;
      for (const uint32_t user : users[rule])
        if (--waits[user] == 0) ready.push_back(user);
    }
  }

  bool small(RegexId id, bool finite) {
    const size_t limit = finite ? kMaxFiniteWeight : kMaxLexemeWeight;
    return set().weight(id, limit + 1) <= limit;
  }

  struct Lexeme {
    RegexId id;
    bool finite;
  };
  // The language of a part, when it is regular and small.
  std::optional<RegexId> regular(uint32_t at) {
    const auto out = lexeme(at);
    if (!out) return std::nullopt;
    return out->id;
  }
  std::optional<Lexeme> lexeme(uint32_t at) {
    if (const auto it = known_.find(at); it != known_.end()) return it->second;
    const auto out = compute_lexeme(at);  // every rule inside is decided by now (find_lexemes)
    known_.emplace(at, out);
    return out;
  }

  std::optional<Lexeme> compute_lexeme(uint32_t at) {
    const Node& node = in_.nodes[at];
    switch (node.kind) {
      case Node::kLiteral:
        return Lexeme{set().literal(in_.literals[node.index]), true};
      case Node::kClass:
        return Lexeme{set().code_points(in_.classes[node.index]), true};
      case Node::kRule:
        if (!lexeme_[node.index]) return std::nullopt;
        return Lexeme{*lexeme_[node.index], finite_rule(node.index)};
      case Node::kToken:
        return std::nullopt;
      case Node::kRepeat: {
        const auto body = lexeme(node.index);
        if (!body) return std::nullopt;
        const Lexeme out{set().repeat(body->id, node.min, node.max), body->finite && node.max <= 1};
        return small(out.id, out.finite) ? std::optional(out) : std::nullopt;
      }
      case Node::kSequence:
      case Node::kChoice: {
        std::vector<RegexId> parts;
        bool finite = true;
        for (const uint32_t kid : node.kids) {
          const auto part = lexeme(kid);
          if (!part) return std::nullopt;
          parts.push_back(part->id);
          finite &= part->finite;
        }
        const RegexId id =
            node.kind == Node::kSequence ? set().concat(parts) : set().alternate(parts);
        return small(id, finite) ? std::optional(Lexeme{id, finite}) : std::nullopt;
      }
    }
    return std::nullopt;
  }
  bool finite_rule(uint32_t rule) {
    const auto it = known_.find(*in_.rules()[rule].body);
    return it != known_.end() && it->second && it->second->finite;
  }

  Symbol symbol(uint32_t rule) {
    if (!symbol_[rule]) {
      if (lexeme_[rule]) {
        symbol_[rule] = g_.terminal(*lexeme_[rule]);
      } else {
        symbol_[rule] = g_.nonterminal(in_.rules()[rule].name);
        queue_.push_back(rule);
      }
    }
    return *symbol_[rule];
  }

  Symbol lower(uint32_t at) {
    const Node& node = in_.nodes[at];
    if (const auto id = regular(at)) return g_.terminal(*id);
    switch (node.kind) {
      case Node::kRule:
        return symbol(node.index);
      case Node::kToken:
        return g_.token(in_.tokens[node.index]);
      case Node::kRepeat:
        return g_.repeat(lower(node.index), node.min, node.max);
      case Node::kChoice: {
        std::vector<Symbol> parts;
        parts.reserve(node.kids.size());
        for (const uint32_t kid : node.kids) parts.push_back(lower(kid));
        return g_.choice(parts);
      }
      default: {  // neighbours that are regular become one lexeme
        std::vector<Symbol> parts;
        RegexId run = set().epsilon();
        const auto close = [&] {
          if (run != set().epsilon()) parts.push_back(g_.terminal(run));
          run = set().epsilon();
        };
        for (const uint32_t kid : node.kids) {
          const auto id = regular(kid);
          if (!id) {
            close();
            parts.push_back(lower(kid));
            continue;
          }
          const RegexId longer = set().concat(run, *id);
          if (!small(longer, false)) close();
          run = run == set().epsilon() ? *id : longer;
        }
        close();
        return g_.sequence(parts);
      }
    }
  }

  const Reader& in_;
  GrammarBuilder& g_;
  std::vector<std::optional<RegexId>> lexeme_;  // per rule
  std::vector<std::optional<Symbol>> symbol_;   // per rule
  std::unordered_map<uint32_t, std::optional<Lexeme>> known_;
  std::vector<uint32_t> queue_;
};

}  // namespace

Result<Symbol> add_ebnf(GrammarBuilder& builder, std::string_view text) {
  Reader reader(text);
  DEEPMINT_CHECK_OK(reader.run());
  return Lowering(reader, builder).run();
}

Result<Grammar> compile_ebnf(std::string_view text) {
  GrammarBuilder builder;
  DEEPMINT_TRY(root, add_ebnf(builder, text));
  builder.set_start(root);
  return builder.build();
}

}  // namespace deepmint::grammar
