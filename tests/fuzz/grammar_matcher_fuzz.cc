// A grammar from a small list (the first byte) and operations (the other bytes): accept, mask,
// roll back, fork, forced bytes, questions about bytes, an emptied automaton. After each of them
// the matcher says what one says that was built afresh from the tokens, and every bit of a mask is
// what accept() answers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/compiled.h"
#include "grammar/lexer.h"
#include "grammar/matcher.h"
#include "promises.h"

namespace {

using namespace deepmint;
using namespace deepmint::grammar;

constexpr TokenId kStop = 1, kControl = 2;

std::shared_ptr<const Vocabulary> vocabulary() {
  static const auto* const made = [] {
    std::vector<std::string> ids{"", "", ""};
    for (const char c : std::string_view("abxy01.-+*()[]{}\":, \n\\u")) ids.emplace_back(1, c);
    for (const char* text :
         {"ab", "ba",   "abab",     "{\"",  "\":",   "\",",    "\"}",       "}}",   "]]",   "[[",
          "00", "10",   "1.",       "-1",   "\"a\"", "\"b\":", ", ",        "  ",   "\xc3", "\xa9",
          "é",  "日本", "\xe6\x97", "\xa5", "\\u00", "\\n",    "true",      "null", "fal",  "se",
          "(a", "a)",   "+a",       "*b",   "ab",    "\"ab",   "xyxyxyxyxy"})
      ids.emplace_back(text);
    return new Result<std::shared_ptr<const Vocabulary>>(
        Vocabulary::make(std::move(ids), 80, {kStop}));
  }();
  return **made;
}

const std::vector<Spec>& specs() {
  using K = SpecKind;
  static const std::vector<Spec> kSpecs{
      {K::kRegex, "(a|b)*a(a|b){6}"},
      {K::kRegex, "[ab]{2,5}(é|日本)?[xy]*"},
      {K::kEbnf,
       "root ::= root \"+\" term | term\nterm ::= term \"*\" atom | atom\n"
       "atom ::= [ab] | \"(\" root \")\""},
      {K::kEbnf, "root ::= x x x\nx ::= \"a\"* \"b\"? | \"\""},
      {K::kEbnf, "root ::= s\ns ::= s s | \"a\" | \"b\""},
      {K::kEbnf, "root ::= \"a\" <[2]> [ab]+ (<[2]> \"b\")?"},
      {K::kJsonObject, ""},
      {K::kJsonSchema, R"({"type":"object","properties":{"a":{"type":"integer","minimum":-10},
          "b":{"type":"string","maxLength":3,"pattern":"^[abé]*$"}},"required":["a"]})"},
      {K::kJsonSchema, R"({"type":"array","items":{"enum":["a","ab",1,10,null,true,[]]},
          "uniqueItems":true,"minItems":1,"maxItems":4})"},
      {K::kJsonSchema, R"({"anyOf":[{"type":"number","multipleOf":0.1,"maximum":10},
          {"type":"string","not":{"pattern":"ab"}},{"type":"array","items":{"$ref":"#"}}]})"},
      {K::kChoice, R"(["a","ab","abab","日本"])"},
      {K::kStructuralTag,
       R"json({"triggers":["(a","*"],"structures":[{"begin":"(ab","regex":"[xy]*","end":")"},
          {"begin":"*","schema":{"enum":["a",1,[]]},"end":"*"}]})json"},
  };
  return kSpecs;
}

std::shared_ptr<const Compiled> compiled(size_t index) {
  static auto* const made = new std::vector<std::shared_ptr<const Compiled>>(specs().size());
  if (!(*made)[index]) {
    auto one = compile(specs()[index], vocabulary());
    fuzz::require(one.has_value());
    (*made)[index] = std::move(*one);
  }
  return (*made)[index];
}

std::vector<uint32_t> mask_of(Matcher& m) {
  std::vector<uint32_t> bits(vocabulary()->mask_words());
  m.mask(bits);
  return bits;
}

std::string text_of(const std::vector<TokenId>& tokens) {
  std::string out;
  for (const TokenId id : tokens) out += vocabulary()->bytes(id);
  return out;
}

// What a matcher says without moving, besides the mask.
void require_same(Matcher& a, Matcher& b) {
  fuzz::require(a.accepted() == b.accepted());
  fuzz::require(a.stopped() == b.stopped());
  fuzz::require(a.may_stop() == b.may_stop());
  fuzz::require(a.may_continue() == b.may_continue());
  fuzz::require(mask_of(a) == mask_of(b));
  fuzz::require(a.status().has_value() == b.status().has_value());
  fuzz::require(a.next_bytes() == b.next_bytes());
  fuzz::require(a.forced() == b.forced());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto grammar = compiled(data[0] % specs().size());
  Matcher m(grammar);
  std::vector<TokenId> tokens;
  const auto width = static_cast<TokenId>(vocabulary()->width());
  for (size_t at = 1; at + 1 < size && at < 200; at += 2) {
    const uint8_t op = data[at], value = data[at + 1];
    switch (op % 8) {
      case 0: {  // any token; the mask says beforehand whether it is taken
        const TokenId id = value % width;
        const bool said = (mask_of(m)[static_cast<size_t>(id) / 32] >> (id % 32)) & 1;
        if (!m.status()) return 0;
        fuzz::require(m.accept(id) == said);
        if (said) tokens.push_back(id);
        break;
      }
      case 1:
      case 2:
      case 3: {  // one of the allowed tokens
        const auto bits = mask_of(m);
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < width; ++id)
          if ((bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1) allowed.push_back(id);
        if (allowed.empty()) {
          fuzz::require(m.stopped() || !m.status());
          if (!m.status()) return 0;
          break;
        }
        tokens.push_back(allowed[value % allowed.size()]);
        fuzz::require(m.accept(tokens.back()));
        break;
      }
      case 4: {  // back, and the same place built afresh
        const size_t n = tokens.empty() ? 0 : value % (tokens.size() + 1);
        m.rollback(n);
        tokens.resize(tokens.size() - n);
        Matcher fresh(grammar);
        for (const TokenId id : tokens) fuzz::require(fresh.accept(id));
        require_same(m, fresh);
        if (!m.status()) return 0;
        break;
      }
      case 5: {  // a fork goes its own way, and its mask is what accept() answers
        Matcher other = m.fork();
        const auto bits = mask_of(other);
        if (!other.status()) return 0;
        for (TokenId id = 0; id < width; ++id) {
          const bool said = (bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1;
          fuzz::require(other.allowed(id) == said);
        }
        other.accept(value % width);
        if (value & 1) m = std::move(other);
        if (m.accepted() > tokens.size()) tokens.push_back(value % width);
        break;
      }
      case 6: {  // the automaton forgets everything
        const auto expected = mask_of(m);
        {
          const auto held = grammar->lexer().lock();
          grammar->lexer().reset();
        }
        fuzz::require(mask_of(m) == expected);
        break;
      }
      case 7: {  // what follows as bytes: every prefix of a viable text is viable
        const std::string tail(reinterpret_cast<const char*>(data) + at,
                               std::min<size_t>(size - at, value % 16));
        const auto viable = m.accepts_bytes(tail);
        fuzz::require(viable.bytes <= tail.size());
        const auto shorter = m.accepts_bytes(std::string_view(tail).substr(0, viable.bytes));
        fuzz::require(shorter.bytes == viable.bytes || !m.status());
        const std::string forced = m.forced();
        fuzz::require(m.accepts_bytes(forced).bytes == forced.size() || !m.status());
        break;
      }
    }
    if (!m.status()) return 0;
    fuzz::require(m.accepted() == tokens.size());
  }
  // The same text in one piece of bytes.
  if (std::find(tokens.begin(), tokens.end(), kControl) == tokens.end()) {
    Matcher whole(grammar);
    const std::string text = text_of(tokens);
    const auto viable = whole.accepts_bytes(text);
    if (whole.status()) {
      fuzz::require(viable.bytes == text.size());
      fuzz::require(viable.complete == (m.may_stop() || m.stopped()));
    }
  }
  return 0;
}
