#include "recipe/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>

#include "core/names.h"
#include "recipe/jinja/filters.h"
#include "recipe/jinja/lexer.h"

namespace deepmint::recipe::jinja {
namespace {

using Kind = Token::Kind;
using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Body> run() { return body({}); }

 private:
  // --- tokens

  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  bool is(std::string_view symbol, size_t ahead = 0) const {
    return peek(ahead).kind == Kind::kOperator && peek(ahead).text == symbol;
  }
  bool is_word(std::string_view word, size_t ahead = 0) const {
    return peek(ahead).kind == Kind::kName && peek(ahead).text == word;
  }
  bool take(std::string_view symbol) {
    if (!is(symbol)) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (!is_word(word)) return false;
    ++at_;
    return true;
  }
  tl::unexpected<Error> bad(int line, std::string message) const {
    return template_error(ErrorCode::kInvalidArgument, line, std::move(message));
  }
  tl::unexpected<Error> unsupported(int line, std::string_view what) const {
    return template_error(ErrorCode::kUnsupported, line, fmt::format("{} is not supported", what));
  }
  tl::unexpected<Error> unexpected(std::string_view wanted) const {
    const Token& t = peek();
    std::string found;
    switch (t.kind) {
      case Kind::kEnd:
        found = "the end of the template";
        break;
      case Kind::kData:
        found = "text";
        break;
      case Kind::kPrintBegin:
        found = "{{";
        break;
      case Kind::kPrintEnd:
        found = "}}";
        break;
      case Kind::kBlockBegin:
        found = "{%";
        break;
      case Kind::kBlockEnd:
        found = "%}";
        break;
      default:
        found = quote_name(t.text, 40);
    }
    return bad(t.line, fmt::format("expected {}, found {}", wanted, found));
  }
  Status need(std::string_view symbol) {
    if (!take(symbol)) return unexpected(symbol);
    return {};
  }
  Status end_block() {
    if (peek().kind != Kind::kBlockEnd) return unexpected("%}");
    ++at_;
    return {};
  }
  Result<std::string> need_name() {
    if (peek().kind != Kind::kName) return unexpected("a name");
    return tokens_[at_++].text;
  }

  // Counts one level of nesting for as long as it lives.
  struct Level {
    explicit Level(int& d) : depth(d) { ++depth; }
    ~Level() { --depth; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    int& depth;
  };
  Status check_depth() const {
    if (depth_ <= kMaxNesting) return {};
    return template_error(ErrorCode::kTooLarge, peek().line,
                          fmt::format("nested more than {} levels deep", kMaxNesting));
  }

  // --- statements

  // Statements up to one of the `ends`, whose word is then the next token.
  Result<Body> body(Words ends) {
    const Level level(depth_);
    DEEPMINT_CHECK_OK(check_depth());
    Body out;
    while (true) {
      const Token& t = peek();
      switch (t.kind) {
        case Kind::kData: {
          auto s = make(Stmt::Kind::kText);
          s->text = Text(t.text, Origin::kTemplate);
          out.push_back(std::move(s));
          ++at_;
          break;
        }
        case Kind::kPrintBegin: {
          auto s = make(Stmt::Kind::kPrint);
          ++at_;
          DEEPMINT_TRY(e, tuple());
          s->expr = std::move(e);
          if (peek().kind != Kind::kPrintEnd) return unexpected("}}");
          ++at_;
          out.push_back(std::move(s));
          break;
        }
        case Kind::kBlockBegin: {
          ++at_;
          for (const std::string_view end : ends)
            if (is_word(end)) return out;
          DEEPMINT_TRY(s, statement());
          out.push_back(std::move(s));
          break;
        }
        default:
          if (t.kind == Kind::kEnd && ends.size() == 0) return out;
          return unexpected(ends.size() == 0
                                ? std::string("text")
                                : fmt::format("{{% {} %}}", std::string_view(*(ends.end() - 1))));
      }
    }
  }

  // body() and the closing `{% word %}`.
  Result<Body> whole_body(std::string_view word) {
    DEEPMINT_TRY(out, body({word}));
    ++at_;
    DEEPMINT_CHECK_OK(end_block());
    return out;
  }

  StmtPtr make(Stmt::Kind kind) const {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = peek().line;
    return s;
  }

  Result<StmtPtr> statement() {
    const int line = peek().line;
    DEEPMINT_TRY(word, need_name());
    if (word == "if") return if_statement();
    if (word == "for") return for_statement();
    if (word == "set") return set_statement();
    if (word == "macro") return macro_statement();
    if (word == "call") return call_statement();
    if (word == "filter") return filter_statement();
    if (word == "with") return with_statement();
    if (word == "generation") {  // marks what a training run computes a loss on
      auto s = make(Stmt::Kind::kScope);
      DEEPMINT_CHECK_OK(end_block());
      const LoopBarrier barrier(*this);
      DEEPMINT_TRY(inner, whole_body("endgeneration"));
      s->body = std::move(inner);
      return s;
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) return bad(line, fmt::format("{{% {} %}} stands outside of a loop", word));
      auto s = make(word == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue);
      DEEPMINT_CHECK_OK(end_block());
      return s;
    }
    constexpr std::string_view kOthers[] = {"block", "extends", "include",    "import", "from",
                                            "print", "do",      "autoescape", "trans",  "debug"};
    if (std::find(std::begin(kOthers), std::end(kOthers), word) != std::end(kOthers))
      return unsupported(line, fmt::format("the statement {{% {} %}}", word));
    return bad(line, fmt::format("unknown statement {{% {} %}}", printable(word.substr(0, 40))));
  }

  // Inside a macro, a call block or generation, the loop around is out of reach of break.
  struct LoopBarrier {
    explicit LoopBarrier(Parser& p) : parser(p), loops(std::exchange(p.loops_, 0)) {}
    ~LoopBarrier() { parser.loops_ = loops; }
    LoopBarrier(const LoopBarrier&) = delete;
    LoopBarrier& operator=(const LoopBarrier&) = delete;
    Parser& parser;
    int loops;
  };

  Result<StmtPtr> if_statement() {
    auto s = make(Stmt::Kind::kIf);
    while (true) {
      DEEPMINT_TRY(test, tuple(false));
      DEEPMINT_CHECK_OK(end_block());
      DEEPMINT_TRY(then, body({"elif", "else", "endif"}));
      s->branches.emplace_back(std::move(test), std::move(then));
      if (take_word("elif")) continue;
      if (take_word("else")) {
        DEEPMINT_CHECK_OK(end_block());
        DEEPMINT_TRY(otherwise, whole_body("endif"));
        s->else_body = std::move(otherwise);
        return s;
      }
      ++at_;  // endif
      DEEPMINT_CHECK_OK(end_block());
      return s;
    }
  }

  Result<StmtPtr> for_statement() {
    auto s = make(Stmt::Kind::kFor);
    DEEPMINT_TRY(variable, target(false));
    s->target = std::move(variable);
    if (!take_word("in")) return unexpected("in");
    DEEPMINT_TRY(items, tuple(false, "recursive"));
    s->expr = std::move(items);
    if (take_word("if")) {
      DEEPMINT_TRY(test, expression());
      s->test = std::move(test);
    }
    s->recursive = take_word("recursive");
    DEEPMINT_CHECK_OK(end_block());
    ++loops_;
    auto inner = body({"endfor", "else"});
    --loops_;
    if (!inner) return tl::unexpected(std::move(inner).error());
    s->body = std::move(*inner);
    if (take_word("else")) {
      DEEPMINT_CHECK_OK(end_block());
      DEEPMINT_TRY(otherwise, whole_body("endfor"));
      s->else_body = std::move(otherwise);
      return s;
    }
    ++at_;  // endfor
    DEEPMINT_CHECK_OK(end_block());
    return s;
  }

  // A chain of filters over the text of a block.
  Result<ExprPtr> block_filters() {
    auto captured = make(Expr::Kind::kCapturedText);
    return filters(std::move(captured), /*starts_inline=*/true);
  }

  Result<StmtPtr> set_statement() {
    auto s = make(Stmt::Kind::kSet);
    DEEPMINT_TRY(variable, target(true));
    s->target = std::move(variable);
    if (take("=")) {
      DEEPMINT_TRY(value, tuple());
      s->expr = std::move(value);
      DEEPMINT_CHECK_OK(end_block());
      return s;
    }
    s->kind = Stmt::Kind::kSetBlock;
    if (take("|")) {
      DEEPMINT_TRY(chain, block_filters());
      s->expr = std::move(chain);
    }
    DEEPMINT_CHECK_OK(end_block());
    const LoopBarrier barrier(*this);
    DEEPMINT_TRY(inner, whole_body("endset"));
    s->body = std::move(inner);
    return s;
  }

  Status parameters(Stmt& s) {
    DEEPMINT_CHECK_OK(need("("));
    while (!is(")")) {
      if (!s.parameters.empty()) DEEPMINT_CHECK_OK(need(","));
      Parameter p;
      DEEPMINT_TRY(name, need_name());
      p.name = std::move(name);
      if (p.name == "caller") return unsupported(peek().line, "a parameter named caller");
      if (take("=")) {
        DEEPMINT_TRY(fallback, expression());
        p.fallback = std::move(fallback);
      } else if (!s.parameters.empty() && s.parameters.back().fallback) {
        return bad(peek().line, "a parameter without a default follows one with a default");
      }
      s.parameters.push_back(std::move(p));
    }
    ++at_;
    return {};
  }

  // The body of a macro or call block, noting which of the special names it uses.
  Status function_body(Stmt& s, std::string_view end) {
    const LoopBarrier barrier(*this);
    const auto outer = std::exchange(uses_, {});
    auto inner = whole_body(end);
    if (!inner) return tl::unexpected(std::move(inner).error());
    s.body = std::move(*inner);
    s.uses_caller = uses_.caller;
    s.uses_varargs = uses_.varargs;
    s.uses_kwargs = uses_.kwargs;
    uses_ = outer;
    return {};
  }

  Result<StmtPtr> macro_statement() {
    auto s = make(Stmt::Kind::kMacro);
    DEEPMINT_TRY(name, need_name());
    s->name = std::move(name);
    DEEPMINT_CHECK_OK(parameters(*s));
    DEEPMINT_CHECK_OK(end_block());
    DEEPMINT_CHECK_OK(function_body(*s, "endmacro"));
    return s;
  }

  Result<StmtPtr> call_statement() {
    auto s = make(Stmt::Kind::kCallBlock);
    if (is("(")) DEEPMINT_CHECK_OK(parameters(*s));
    DEEPMINT_TRY(call, expression());
    if (call->kind != Expr::Kind::kCall) return bad(s->line, "expected a call in {% call %}");
    s->expr = std::move(call);
    DEEPMINT_CHECK_OK(end_block());
    DEEPMINT_CHECK_OK(function_body(*s, "endcall"));
    return s;
  }

  Result<StmtPtr> filter_statement() {
    auto s = make(Stmt::Kind::kFilterBlock);
    DEEPMINT_TRY(chain, block_filters());
    s->expr = std::move(chain);
    DEEPMINT_CHECK_OK(end_block());
    const LoopBarrier barrier(*this);
    DEEPMINT_TRY(inner, whole_body("endfilter"));
    s->body = std::move(inner);
    return s;
  }

  Result<StmtPtr> with_statement() {
    auto s = make(Stmt::Kind::kWith);
    while (peek().kind != Kind::kBlockEnd) {
      if (!s->assignments.empty()) DEEPMINT_CHECK_OK(need(","));
      DEEPMINT_TRY(variable, target(false));
      DEEPMINT_CHECK_OK(need("="));
      DEEPMINT_TRY(value, expression());
      s->assignments.emplace_back(std::move(variable), std::move(value));
    }
    ++at_;
    DEEPMINT_TRY(inner, whole_body("endwith"));
    s->body = std::move(inner);
    return s;
  }

  // What for and set assign to: a name, a namespace attribute (set), or several.
  Result<Target> target(bool is_set) {
    const Level level(depth_);
    DEEPMINT_CHECK_OK(check_depth());
    Target out;
    while (true) {
      Target one;
      if (take("(")) {
        DEEPMINT_TRY(inner, target(is_set));
        one = std::move(inner);
        DEEPMINT_CHECK_OK(need(")"));
      } else {
        const int line = peek().line;
        DEEPMINT_TRY(name, need_name());
        if (is_constant(name)) return bad(line, fmt::format("cannot assign to {}", name));
        one.name = std::move(name);
        if (is_set && take(".")) {
          DEEPMINT_TRY(attribute, need_name());
          one.attribute = std::move(attribute);
        }
      }
      const bool more = is(",");
      if (!more && !out.is_tuple) return one;
      out.is_tuple = true;
      out.items.push_back(std::move(one));
      if (!more) return out;
      ++at_;
      if (is_word("in") || is("=") || is(")")) return out;  // a trailing comma
    }
  }

  // --- expressions, loosest first

  ExprPtr make(Expr::Kind kind) const {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->line = peek().line;
    return e;
  }
  static void adopt(Expr& parent, ExprPtr child) {
    if (child) parent.height = std::max(parent.height, 1 + child->height);
    parent.args.push_back(std::move(child));
  }

  static bool is_constant(std::string_view name) {
    return name == "true" || name == "True" || name == "false" || name == "False" ||
           name == "none" || name == "None";
  }

  // Expressions separated by commas: a tuple, when there is a comma.
  Result<ExprPtr> tuple(bool allows_condition = true, std::string_view end_word = {},
                        bool in_parentheses = false) {
    auto out = make(Expr::Kind::kTuple);
    bool has_comma = false;
    const auto ends = [&] {
      const Kind k = peek().kind;
      return k == Kind::kPrintEnd || k == Kind::kBlockEnd || is(")") ||
             (!end_word.empty() && is_word(end_word));
    };
    while (!ends()) {
      if (has_comma || out->args.empty()) {
        auto item = allows_condition ? expression() : alternatives();
        if (!item) return item;
        adopt(*out, std::move(*item));
      }
      if (!take(",")) break;
      has_comma = true;
    }
    if (!has_comma) {
      if (!out->args.empty()) return std::move(out->args.front());
      if (!in_parentheses) return unexpected("an expression");
    }
    return out;
  }

  Result<ExprPtr> expression() {
    const Level level(depth_);
    DEEPMINT_CHECK_OK(check_depth());
    DEEPMINT_TRY(value, alternatives());
    DEEPMINT_CHECK_OK(grown(*value));
    while (is_word("if")) {
      auto out = make(Expr::Kind::kCond);
      ++at_;
      adopt(*out, std::move(value));
      DEEPMINT_TRY(test, alternatives());
      adopt(*out, std::move(test));
      ExprPtr otherwise;
      if (take_word("else")) {
        DEEPMINT_TRY(other, expression());
        otherwise = std::move(other);
      }
      adopt(*out, std::move(otherwise));
      DEEPMINT_CHECK_OK(grown(*out));
      value = std::move(out);
    }
    return value;
  }

  Result<ExprPtr> alternatives() {
    const Level level(depth_);
    DEEPMINT_CHECK_OK(check_depth());
    DEEPMINT_TRY(left, conjunction());
    while (is_word("or")) {
      auto out = make(Expr::Kind::kOr);
      ++at_;
      DEEPMINT_TRY(right, conjunction());
      adopt(*out, std::move(left));
      adopt(*out, std::move(right));
      DEEPMINT_CHECK_OK(grown(*out));
      left = std::move(out);
    }
    return left;
  }

  Result<ExprPtr> conjunction() {
    DEEPMINT_TRY(left, negation());
    while (is_word("and")) {
      auto out = make(Expr::Kind::kAnd);
      ++at_;
      DEEPMINT_TRY(right, negation());
      adopt(*out, std::move(left));
      adopt(*out, std::move(right));
      DEEPMINT_CHECK_OK(grown(*out));
      left = std::move(out);
    }
    return left;
  }

  Result<ExprPtr> negation() {
    if (!is_word("not")) return comparison();
    const Level level(depth_);
    DEEPMINT_CHECK_OK(check_depth());
    auto out = make(Expr::Kind::kNot);
    ++at_;
    DEEPMINT_TRY(inner, negation());
    adopt(*out, std::move(inner));
    return out;
  }

  Result<ExprPtr> comparison() {
    DEEPMINT_TRY(left, sum());
    ExprPtr out;
    while (true) {
      constexpr std::pair<std::string_view, CompareOp> kOps[] = {
          {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
          {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
      CompareOp op = CompareOp::kIn;
      const auto known = std::find_if(std::begin(kOps), std::end(kOps),
                                      [&](const auto& o) { return is(o.first); });
      if (known != std::end(kOps)) {
        op = known->second;
      } else if (is_word("not") && is_word("in", 1)) {
        op = CompareOp::kNotIn;
        ++at_;
      } else if (!is_word("in")) {
        break;
      }
      if (!out) {
        out = make(Expr::Kind::kCompare);
        adopt(*out, std::move(left));
      }
      ++at_;
      DEEPMINT_TRY(right, sum());
      out->compare.push_back(op);
      adopt(*out, std::move(right));
    }
    return out ? std::move(out) : std::move(left);
  }

  // A chain of operators of one rank leans to the left: its tree is as deep as the chain is long.
  Status grown(const Expr& e) const {
    if (e.height <= kMaxHeight) return {};
    return template_error(ErrorCode::kTooLarge, e.line,
                          fmt::format("more than {} operators on top of each other", kMaxHeight));
  }

  Result<ExprPtr> binary(ExprPtr left, BinaryOp op, Result<ExprPtr> right) {
    if (!right) return right;
    auto out = make(Expr::Kind::kBinary);
    out->op = op;
    adopt(*out, std::move(left));
    adopt(*out, std::move(*right));
    DEEPMINT_CHECK_OK(grown(*out));
    return out;
  }

  Result<ExprPtr> sum() {
    DEEPMINT_TRY(left, concatenation());
    while (is("+") || is("-")) {
      const BinaryOp op = take("+") ? BinaryOp::kAdd : (++at_, BinaryOp::kSub);
      DEEPMINT_TRY(out, binary(std::move(left), op, concatenation()));
      left = std::move(out);
    }
    return left;
  }

  Result<ExprPtr> concatenation() {
    DEEPMINT_TRY(left, product());
    if (!is("~")) return left;
    auto out = make(Expr::Kind::kConcat);
    adopt(*out, std::move(left));
    while (take("~")) {
      DEEPMINT_TRY(next, product());
      adopt(*out, std::move(next));
    }
    return out;
  }

  Result<ExprPtr> product() {
    DEEPMINT_TRY(left, power());
    while (true) {
      BinaryOp op;
      if (is("*"))
        op = BinaryOp::kMul;
      else if (is("/"))
        op = BinaryOp::kDiv;
      else if (is("//"))
        op = BinaryOp::kFloorDiv;
      else if (is("%"))
        op = BinaryOp::kMod;
      else
        return left;
      ++at_;
      DEEPMINT_TRY(out, binary(std::move(left), op, power()));
      left = std::move(out);
    }
  }

  Result<ExprPtr> power() {
    DEEPMINT_TRY(left, unary(true));
    while (take("**")) {
      DEEPMINT_TRY(out, binary(std::move(left), BinaryOp::kPow, unary(true)));
      left = std::move(out);
    }
    return left;
  }

  Result<ExprPtr> unary(bool with_filters) {
    const Level level(depth_);
    DEEPMINT_CHECK_OK(check_depth());
    ExprPtr node;
    if (is("-") || is("+")) {
      node = make(is("-") ? Expr::Kind::kNegative : Expr::Kind::kPositive);
      ++at_;
      DEEPMINT_TRY(inner, unary(false));
      adopt(*node, std::move(inner));
    } else {
      DEEPMINT_TRY(inner, primary());
      node = std::move(inner);
    }
    DEEPMINT_TRY(whole, postfix(std::move(node)));
    if (!with_filters) return whole;
    return filters(std::move(whole), false);
  }

  Result<ExprPtr> postfix(ExprPtr node) {
    while (true) {
      if (is("(")) {
        DEEPMINT_TRY(call, with_call_arguments(Expr::Kind::kCall, {}, std::move(node)));
        node = std::move(call);
      } else if (take(".")) {
        auto out = make(Expr::Kind::kAttr);
        if (peek().kind == Kind::kInteger) {
          out->kind = Expr::Kind::kItem;
          adopt(*out, std::move(node));
          DEEPMINT_TRY(index, primary());
          adopt(*out, std::move(index));
        } else {
          DEEPMINT_TRY(name, need_name());
          out->name = std::move(name);
          adopt(*out, std::move(node));
        }
        node = std::move(out);
      } else if (take("[")) {
        DEEPMINT_TRY(item, subscript(std::move(node)));
        node = std::move(item);
      } else {
        return node;
      }
      DEEPMINT_CHECK_OK(grown(*node));
    }
  }

  Result<ExprPtr> subscript(ExprPtr base) {
    auto out = make(Expr::Kind::kItem);
    adopt(*out, std::move(base));
    if (!is(":")) {
      DEEPMINT_TRY(index, expression());
      adopt(*out, std::move(index));
    } else {
      adopt(*out, nullptr);
    }
    if (take(":")) {
      out->kind = Expr::Kind::kSlice;
      for (int part = 0; part < 2; ++part) {
        ExprPtr bound;
        if (!is(":") && !is("]")) {
          DEEPMINT_TRY(value, expression());
          bound = std::move(value);
        }
        adopt(*out, std::move(bound));
        if (part == 0 && !take(":")) {
          adopt(*out, nullptr);
          break;
        }
      }
    }
    if (is(",")) return unsupported(peek().line, "a subscript of several values");
    DEEPMINT_CHECK_OK(need("]"));
    return out;
  }

  Result<ExprPtr> with_call_arguments(Expr::Kind kind, std::string name, ExprPtr base) {
    auto out = make(kind);
    out->name = std::move(name);
    adopt(*out, std::move(base));
    ++at_;  // (
    bool first = true;
    while (!is(")")) {
      if (!std::exchange(first, false)) {
        DEEPMINT_CHECK_OK(need(","));
        if (is(")")) break;
      }
      if (is("*") || is("**"))
        return unsupported(peek().line, fmt::format("an argument behind {}", peek().text));
      if (peek().kind == Kind::kName && is("=", 1)) {
        std::string keyword = peek().text;
        at_ += 2;
        DEEPMINT_TRY(value, expression());
        for (const auto& [other, unused] : out->keywords)
          if (other == keyword)
            return bad(peek().line, fmt::format("the argument {} is given twice", keyword));
        out->keywords.emplace_back(std::move(keyword), std::move(value));
      } else {
        if (!out->keywords.empty())
          return bad(peek().line, "a positional argument follows a keyword argument");
        DEEPMINT_TRY(value, expression());
        adopt(*out, std::move(value));
      }
    }
    ++at_;
    return out;
  }

  Result<std::string> dotted_name() {
    DEEPMINT_TRY(name, need_name());
    while (take(".")) {
      DEEPMINT_TRY(more, need_name());
      name += "." + more;
    }
    return name;
  }

  Result<ExprPtr> filters(ExprPtr node, bool starts_inline) {
    while (true) {
      const int line = peek().line;
      if (starts_inline || is("|")) {
        if (!std::exchange(starts_inline, false)) ++at_;
        DEEPMINT_TRY(name, dotted_name());
        if (!is_filter(name))
          return unsupported(line, fmt::format("the filter {}", quote_name(name, 40)));
        DEEPMINT_TRY(out, filter_or_test(Expr::Kind::kFilter, std::move(name), std::move(node)));
        node = std::move(out);
      } else if (take_word("is")) {
        DEEPMINT_TRY(out, test(std::move(node)));
        node = std::move(out);
      } else if (is("(")) {
        DEEPMINT_TRY(out, with_call_arguments(Expr::Kind::kCall, {}, std::move(node)));
        node = std::move(out);
      } else {
        return node;
      }
      DEEPMINT_CHECK_OK(grown(*node));
    }
  }

  Result<ExprPtr> filter_or_test(Expr::Kind kind, std::string name, ExprPtr base) {
    if (is("(")) return with_call_arguments(kind, std::move(name), std::move(base));
    auto out = make(kind);
    out->name = std::move(name);
    adopt(*out, std::move(base));
    return out;
  }

  Result<ExprPtr> test(ExprPtr node) {
    const int line = peek().line;
    const bool negated = take_word("not");
    DEEPMINT_TRY(name, dotted_name());
    if (!is_test(name)) return unsupported(line, fmt::format("the test {}", quote_name(name, 40)));
    DEEPMINT_TRY(out, filter_or_test(Expr::Kind::kTest, std::move(name), std::move(node)));
    const Kind next = peek().kind;
    const bool bare_argument =
        out->args.size() == 1 && tokens_[at_ - 1].text != ")" &&
        (next == Kind::kString || next == Kind::kInteger || next == Kind::kFloat || is("[") ||
         is("{") || (next == Kind::kName && !is_word("else") && !is_word("or") && !is_word("and")));
    if (bare_argument) {
      if (is_word("is")) return bad(line, "tests cannot be chained with is");
      DEEPMINT_TRY(argument, primary());
      DEEPMINT_TRY(whole, postfix(std::move(argument)));
      adopt(*out, std::move(whole));
    }
    if (!negated) return out;
    auto inverted = make(Expr::Kind::kNot);
    adopt(*inverted, std::move(out));
    return inverted;
  }

  Result<ExprPtr> primary() {
    const Token& t = peek();
    auto out = make(Expr::Kind::kLiteral);
    switch (t.kind) {
      case Kind::kName:
        ++at_;
        if (is_constant(t.text)) {
          const char c = static_cast<char>(t.text.front() | 0x20);
          out->literal = c == 'n' ? Value::none() : Value(c == 't');
        } else {
          out->kind = Expr::Kind::kName;
          out->name = t.text;
          uses_.caller |= t.text == "caller";
          uses_.varargs |= t.text == "varargs";
          uses_.kwargs |= t.text == "kwargs";
        }
        return out;
      case Kind::kString: {
        std::string text;
        while (peek().kind == Kind::kString) text += tokens_[at_++].text;
        out->literal = Value::text(text, Origin::kTemplate);
        return out;
      }
      case Kind::kInteger: {
        int64_t n = 0;
        const char* end = t.text.data() + t.text.size();
        if (std::from_chars(t.text.data(), end, n).ec != std::errc())
          return unsupported(t.line, "an integer beyond 64 bits");
        out->literal = Value(n);
        ++at_;
        return out;
      }
      case Kind::kFloat: {
        double d = 0;
        const char* end = t.text.data() + t.text.size();
        if (std::from_chars(t.text.data(), end, d).ec == std::errc::result_out_of_range)
          d = t.text.find('-') == std::string::npos ? std::numeric_limits<double>::infinity() : 0;
        out->literal = Value(d);
        ++at_;
        return out;
      }
      case Kind::kOperator:
        break;
      default:
        return unexpected("an expression");
    }
    if (take("(")) {
      DEEPMINT_TRY(inner, tuple(true, {}, true));
      DEEPMINT_CHECK_OK(need(")"));
      return inner;
    }
    if (take("[")) {
      out->kind = Expr::Kind::kList;
      while (!is("]")) {
        if (!out->args.empty()) DEEPMINT_CHECK_OK(need(","));
        if (is("]")) break;
        DEEPMINT_TRY(item, expression());
        adopt(*out, std::move(item));
      }
      ++at_;
      return out;
    }
    if (take("{")) {
      out->kind = Expr::Kind::kDict;
      while (!is("}")) {
        if (!out->args.empty()) DEEPMINT_CHECK_OK(need(","));
        if (is("}")) break;
        DEEPMINT_TRY(key, expression());
        DEEPMINT_CHECK_OK(need(":"));
        DEEPMINT_TRY(value, expression());
        adopt(*out, std::move(key));
        adopt(*out, std::move(value));
      }
      ++at_;
      return out;
    }
    return unexpected("an expression");
  }

  static constexpr int kMaxHeight = 300;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  struct Uses {
    bool caller = false, varargs = false, kwargs = false;
  } uses_;
};

}  // namespace

Result<Body> parse_template(std::string_view source) {
  DEEPMINT_TRY(tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace deepmint::recipe::jinja
