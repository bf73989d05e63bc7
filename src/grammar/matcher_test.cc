#include "grammar/matcher.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "grammar/lexer.h"
#include "grammar/testing_oracle.h"
#include "support/counting_new.h"

namespace deepmint::grammar {
namespace {

using testing::TreeGrammar;

constexpr TokenId kStop = 1;

// Every byte of the alphabet and all texts over it up to three bytes, some twice, and specials.
std::shared_ptr<const Vocabulary> small_vocabulary(std::string_view alphabet = "abc") {
  std::vector<std::string> bytes{"", "", ""};
  std::vector<std::string> level{""};
  for (int length = 1; length <= 3; ++length) {
    std::vector<std::string> next;
    for (const std::string& text : level)
      for (const char c : alphabet) next.push_back(text + c);
    bytes.insert(bytes.end(), next.begin(), next.end());
    level = next;
  }
  bytes.push_back("ab");
  bytes.push_back("ab");
  const size_t width = bytes.size() + 5;
  return Vocabulary::make(bytes, width, {kStop}).value();
}

// Every byte, and tokens of what strings are made of.
std::shared_ptr<const Vocabulary> vocabulary_of_strings(std::mt19937_64& rng) {
  std::vector<std::string> bytes{"", ""};
  for (int b = 0; b < 256; ++b) bytes.push_back(std::string(1, static_cast<char>(b)));
  const char* pieces[] = {"a",    "B",    " ",    "é", "日", "😀", "\"", "\\",  "\n",
                          "\x7f", "\xe6", "\x97", ",", ":",  "}",  "1",  "xyz", "0123456789"};
  for (int i = 0; i < 1500; ++i) {
    std::string token;
    for (uint64_t n = 1 + rng() % 6; n > 0; --n) token += pieces[rng() % std::size(pieces)];
    bytes.push_back(token);
  }
  bytes.push_back(std::string(24, 'q'));
  bytes.push_back(std::string(25, 'q'));
  return Vocabulary::make(bytes, bytes.size(), {kStop}).value();
}

std::vector<uint32_t> mask_of(Matcher& m, const Vocabulary& v) {
  std::vector<uint32_t> bits(v.mask_words());
  m.mask(bits);
  return bits;
}
bool has(const std::vector<uint32_t>& bits, TokenId id) {
  return (bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1;
}

TEST(Matcher, MasksMembershipAndPrefixesMatchTheOracle) {
  const auto vocabulary = small_vocabulary();
  int compiled_ones = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed);
    const TreeGrammar tree = testing::random_grammar(rng);
    auto grammar = tree.build();
    ASSERT_EQ(grammar.has_value(), tree.productive()[0] != 0);
    if (!grammar) continue;
    ++compiled_ones;
    const auto compiled = Compiled::make(std::move(*grammar), vocabulary).value();
    for (int i = 0; i < 12; ++i) {
      const std::string text = testing::random_text(rng, 8);
      Matcher m(compiled);
      const auto viable = m.accepts_bytes(text);
      for (size_t n = 0; n <= text.size(); ++n) {
        const auto answer = tree.ask(std::string_view(text).substr(0, n));
        ASSERT_EQ(viable.bytes >= n, answer.prefix) << text.substr(0, n);
        ASSERT_EQ(m.accepts_bytes(std::string_view(text).substr(0, n)).complete, answer.member)
            << text.substr(0, n);
      }
    }
    // A random walk: the mask at each place against the oracle, for every token.
    Matcher m(compiled);
    std::string text;
    for (int step = 0; step < 4 && !m.stopped(); ++step) {
      const auto bits = mask_of(m, *vocabulary);
      ASSERT_TRUE(m.status()) << m.status().error().str();
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < static_cast<TokenId>(vocabulary->width()); ++id) {
        const std::string token(vocabulary->bytes(id));
        const bool expected =
            id == kStop ? tree.ask(text).member : !token.empty() && tree.ask(text + token).prefix;
        ASSERT_EQ(has(bits, id), expected) << text << " + " << token << " (" << id << ")";
        ASSERT_EQ(m.allowed(id), expected);
        if (expected) allowed.push_back(id);
      }
      ASSERT_FALSE(allowed.empty());
      const TokenId next = allowed[rng() % allowed.size()];
      ASSERT_TRUE(m.accept(next));
      text += vocabulary->bytes(next);
    }
  }
  EXPECT_GT(compiled_ones, 300);
}

TEST(Matcher, AnySplitIntoTokensAndAnyHistoryGiveTheSameMask) {
  const auto vocabulary = small_vocabulary();
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed * 977);
    auto grammar = testing::random_grammar(rng).build();
    if (!grammar) continue;
    const auto compiled = Compiled::make(std::move(*grammar), vocabulary).value();
    // Walk with detours: tokens taken back, forks, questions between.
    Matcher m(compiled);
    std::string text;
    std::vector<size_t> lengths;
    for (int step = 0; step < 30; ++step) {
      if (rng() % 3 == 0 && !lengths.empty()) {
        const size_t n = 1 + rng() % lengths.size();
        m.rollback(n);
        lengths.resize(lengths.size() - n);
        text.resize(lengths.empty() ? 0 : lengths.back());
      } else {
        const auto id = static_cast<TokenId>(rng() % vocabulary->width());
        if (m.accept(id)) {
          text += vocabulary->bytes(id);
          lengths.push_back(text.size());
        }
      }
      if (rng() % 4 == 0) m = m.fork();
      if (rng() % 3 == 0) m.forced();
      if (m.stopped()) {
        m.rollback(1);
        lengths.pop_back();
      }
    }
    ASSERT_EQ(m.accepted(), lengths.size());
    const auto expected = mask_of(m, *vocabulary);
    Matcher bytewise(compiled);
    for (const char c : text) ASSERT_TRUE(bytewise.accept(3 + (c - 'a')));
    ASSERT_EQ(mask_of(bytewise, *vocabulary), expected) << text;
    ASSERT_EQ(bytewise.may_stop(), m.may_stop());
    ASSERT_EQ(bytewise.forced(), m.forced());
    // A grammar compiled afresh, whose automaton holds nothing yet.
    std::mt19937_64 again(seed * 977);
    const auto fresh =
        Compiled::make(testing::random_grammar(again).build().value(), vocabulary).value();
    Matcher cold(fresh);
    for (const char c : text) ASSERT_TRUE(cold.accept(3 + (c - 'a')));
    ASSERT_EQ(mask_of(cold, *vocabulary), expected) << text;
  }
}

std::shared_ptr<const Compiled> compile_tree(GrammarBuilder& g, std::string_view alphabet = "abc") {
  return Compiled::make(g.build().value(), small_vocabulary(alphabet)).value();
}

TEST(Matcher, RepetitionsCountExactly) {
  for (const uint32_t min : {0u, 1u, 2u, 3u, 7u})
    for (const uint32_t more : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 13u, 1000u}) {
      GrammarBuilder g;
      const Symbol item = g.nonterminal("item");
      g.add(item, {g.literal("a")});
      g.set_start(g.repeat(item, min, more == 1000 ? kUnbounded : min + more));
      const auto compiled = compile_tree(g);
      Matcher m(compiled);
      for (size_t n = 0; n < 30; ++n)
        ASSERT_EQ(m.accepts_bytes(std::string(n, 'a')).complete,
                  n >= min && (more == 1000 || n <= min + more))
            << min << "+" << more << ": " << n;
    }
}

TEST(Matcher, SpecialTokensComeByReferenceOnly) {
  GrammarBuilder g;
  g.set_start(g.sequence({g.literal("a"), g.token(2), g.literal("b")}));
  const auto compiled = compile_tree(g);
  Matcher m(compiled);
  EXPECT_FALSE(m.accept(2));
  ASSERT_TRUE(m.accept(3));  // a
  EXPECT_EQ(m.accepts_bytes("b").bytes, 0u);
  const auto bits = mask_of(m, compiled->vocabulary());
  for (TokenId id = 0; id < static_cast<TokenId>(compiled->vocabulary().width()); ++id)
    EXPECT_EQ(has(bits, id), id == 2);
  ASSERT_TRUE(m.accept(2));
  EXPECT_EQ(m.forced(), "b");
  ASSERT_TRUE(m.accept(4));  // b
  EXPECT_TRUE(m.may_stop());
  EXPECT_TRUE(m.accept(kStop));
  EXPECT_TRUE(m.stopped());
  m.rollback(3);
  EXPECT_TRUE(m.accept(2));
}

TEST(Matcher, AVocabularyThatCannotSpellTheTextIsAnError) {
  GrammarBuilder g;
  g.set_start(g.literal("abz"));
  const auto compiled = compile_tree(g);
  Matcher m(compiled);
  ASSERT_TRUE(m.accept(3));
  ASSERT_TRUE(m.accept(4));
  std::vector<uint32_t> bits(compiled->vocabulary().mask_words());
  m.mask(bits);
  ASSERT_FALSE(m.status());
  EXPECT_NE(m.status().error().message.find("no token"), std::string::npos);
}

TEST(Matcher, AnEmptyLanguageAndAnUndefinedRuleAreErrors) {
  GrammarBuilder empty;
  const Symbol loop = empty.nonterminal("loop");
  empty.add(loop, {empty.literal("a"), loop});
  empty.set_start(loop);
  EXPECT_NE(empty.build().error().message.find("empty"), std::string::npos);
  GrammarBuilder undefined;
  undefined.set_start(undefined.nonterminal("missing"));
  EXPECT_NE(undefined.build().error().message.find("\"missing\""), std::string::npos);
  GrammarBuilder none;
  EXPECT_NE(none.build().error().message.find("start"), std::string::npos);
}

TEST(Matcher, AnOverfullAutomatonIsThrownAwayWithoutATrace) {
  // (a|b)*a(a|b){12}: thousands of states; the lexer may keep a few.
  GrammarBuilder g;
  RegexSet& r = g.regexes();
  const RegexId ab = r.bytes(ByteSet::range('a', 'b'));
  g.set_start(g.terminal(r.concat(r.concat(r.star(ab), r.literal("a")), r.repeat(ab, 12, 12))));
  const auto compiled = compile_tree(g, "ab");
  Matcher m(compiled), steady(compiled);
  std::mt19937_64 rng(5);
  for (int i = 0; i < 200; ++i) {
    const auto id = static_cast<TokenId>(3 + rng() % 2);
    ASSERT_TRUE(m.accept(id));
    ASSERT_TRUE(steady.accept(id));
    const auto expected = mask_of(steady, compiled->vocabulary());
    {
      const auto held = compiled->lexer().lock();
      compiled->lexer().reset();
    }
    ASSERT_EQ(mask_of(m, compiled->vocabulary()), expected);
    if (i % 7 == 0) {
      m.rollback(i < 3 ? 1 : 3);
      steady.rollback(i < 3 ? 1 : 3);
    }
  }
}

// What is remembered of expressions goes at every look; states, masks and the way back stay.
TEST(Matcher, ForgottenExpressionsLeaveNoTrace) {
  std::mt19937_64 rng(8);
  const auto vocabulary = vocabulary_of_strings(rng);
  const Spec spec{.text = R"({"type": "object", "properties": {"a": {"enum": ["xyzB", "xyz1"]},
    "B": {"type": "string", "pattern": "^(a|B)*a.{3,6}$", "maxLength": 30}},
    "additionalProperties": {"type": "integer", "minimum": 17}})"};
  const auto keeping = compile(spec, vocabulary).value();
  const auto forgetting =
      Compiled::make(compile_grammar(spec).value(), vocabulary, {.forget_bytes = 0}).value();
  for (int text = 0; text < 8; ++text) {
    Matcher m(keeping), other(forgetting);
    const uint64_t epoch = forgetting->lexer().epoch();
    for (int step = 0; step < 80 && !m.stopped(); ++step) {
      const auto bits = mask_of(m, *vocabulary);
      ASSERT_EQ(mask_of(other, *vocabulary), bits) << text << ", step " << step;
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < static_cast<TokenId>(vocabulary->width()); ++id)
        if (has(bits, id)) allowed.push_back(id);
      const TokenId id = allowed[rng() % allowed.size()];
      ASSERT_TRUE(m.accept(id));
      ASSERT_TRUE(other.accept(id));
      if (step % 7 == 6 && !m.stopped()) {
        m.rollback(3);
        other.rollback(3);
      }
    }
    EXPECT_EQ(forgetting->lexer().epoch(), epoch);
  }
  EXPECT_LT(forgetting->memory_bytes(), keeping->memory_bytes());
}

TEST(Matcher, AGrammarLargerThanTheAutomatonsBudgetKeepsItsAutomaton) {
  GrammarBuilder g;
  g.set_start(g.literal(std::string(400'000, 'a')));
  const auto compiled = compile_tree(g, "a");
  ASSERT_GT(compiled->grammar().memory_bytes(), Lexer::Limits().soft_bytes);
  Matcher m(compiled);
  const uint64_t epoch = compiled->lexer().epoch();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(m.accept(3));
  EXPECT_EQ(compiled->lexer().epoch(), epoch);
}

// The same tokens in a grammar that others have used, run over, cut short and thrown away, and in
// one that nobody has: the same masks, and the same ones over the limits.
TEST(Matcher, WhatIsOverALimitDoesNotDependOnHistory) {
  const auto vocabulary = small_vocabulary();
  int over = 0, within = 0;
  for (uint64_t seed = 1; seed <= 250; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed * 31337);
    const TreeGrammar tree = testing::random_grammar(rng);
    if (!tree.productive()[0]) continue;
    const AutomatonLimits limits{.soft_bytes = rng() % 2 == 0 ? size_t{16} << 20 : rng() % 4000,
                                 .max_states = 2 + rng() % 25,
                                 .max_nodes = rng() % 3 == 0 ? 1 + rng() % 60 : 1'000'000};
    const auto compiled_anew = [&] {
      return Compiled::make(tree.build().value(), small_vocabulary(), limits).value();
    };
    const auto used = compiled_anew();
    std::vector<std::vector<TokenId>> texts;
    for (int i = 0; i < 12; ++i) {
      Matcher m(used);
      std::vector<TokenId> tokens;
      for (int step = 0; step < 12 && tokens.size() < 6; ++step)
        if (const auto id = static_cast<TokenId>(rng() % (vocabulary->width() - 5)); m.accept(id))
          tokens.push_back(id);
      texts.push_back(tokens);
    }
    for (int round = 0; round < 2; ++round) {
      std::shuffle(texts.begin(), texts.end(), rng);
      for (const auto& tokens : texts) {
        Matcher warm(used), cold(compiled_anew());
        for (const TokenId id : tokens) {
          if (rng() % 4 == 0) mask_of(*std::make_unique<Matcher>(warm.fork()), *vocabulary);
          if (rng() % 8 == 0) {
            const auto held = used->lexer().lock();
            used->lexer().reset();
          }
          ASSERT_EQ(warm.accept(id), cold.accept(id));
          ASSERT_EQ(warm.status().has_value(), cold.status().has_value());
        }
        ASSERT_EQ(mask_of(warm, *vocabulary), mask_of(cold, *vocabulary));
        ASSERT_EQ(warm.status().has_value(), cold.status().has_value());
        (warm.status() ? within : over)++;
      }
    }
  }
  EXPECT_GT(over, 50);
  EXPECT_GT(within, 100);
}

// Bytes, and 3,000 tokens of up to five pieces, quotes and parts of characters among them.
std::shared_ptr<const Vocabulary> text_vocabulary(std::span<const std::string> more = {}) {
  std::vector<std::string> bytes{"", ""};
  for (int b = 0; b < 256; ++b) bytes.push_back(std::string(1, static_cast<char>(b)));
  std::mt19937_64 rng(7);
  const std::string pieces[] = {"a",  "b",  "c",  "d", "name", "na", "x",    "é",    "日",
                                "😀", "\"", "\"", ":", ",",    " ",  "\\",   "\\n",  "u",
                                "{",  "}",  "[",  "1", "0.5",  "\n", "\xe6", "\x97", "\\u00"};
  for (int i = 0; i < 3000; ++i) {
    std::string token;
    for (uint64_t n = 1 + rng() % 5; n > 0; --n) token += pieces[rng() % std::size(pieces)];
    bytes.push_back(token);
  }
  for (const size_t n : {7, 8, 9, 23, 24, 25, 60}) bytes.push_back(std::string(n, 'a'));
  bytes.insert(bytes.end(), more.begin(), more.end());
  return Vocabulary::make(bytes, bytes.size(), {kStop}).value();
}

// Keys that are none of the named ones, counted strings, patterns: every way in which a slice is
// told by another or by a tier, token by token against accept().
TEST(Matcher, MasksOfJsonAgreeWithAccept) {
  const auto vocabulary = text_vocabulary();
  const char* schemas[] = {
      R"({"properties":{"name":{"type":"string","maxLength":70},"names":{"maxLength":5,"type":"string"},)"
      R"("b":{"type":"string","minLength":3,"maxLength":9}},"additionalProperties":{"type":"string","minLength":2}})",
      R"({"type":"object","properties":{"na":{"pattern":"^[a-d]{2,30}$"},"a\\nb":{}},)"
      R"("patternProperties":{"^x":{"type":"string","pattern":"a.*b"}}})",
      R"({"type":"array","items":{"enum":["name","names","b",1,0.5,null]},"maxItems":40})",
      R"({"anyOf":[{"type":"string","maxLength":10},{"type":"string","minLength":15}]})",
      R"({"type":"string","minLength":200,"maxLength":400})"};
  for (const char* schema : schemas) {
    SCOPED_TRACE(schema);
    const auto compiled = compile({SpecKind::kJsonSchema, schema}, vocabulary).value();
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      std::mt19937_64 rng(seed);
      Matcher m(compiled);
      for (int step = 0; step < 25 && !m.stopped(); ++step) {
        const auto bits = mask_of(m, *vocabulary);
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < static_cast<TokenId>(vocabulary->width()); ++id) {
          ASSERT_EQ(has(bits, id), m.allowed(id))
              << "step " << step << ", token " << id << " \"" << vocabulary->bytes(id) << "\"";
          if (has(bits, id)) allowed.push_back(id);
        }
        ASSERT_FALSE(allowed.empty());
        ASSERT_TRUE(m.accept(allowed[rng() % allowed.size()]));
      }
    }
  }
}

TEST(Matcher, ASteadyStateAllocatesNothing) {
  const auto vocabulary = text_vocabulary();
  const auto compiled =
      compile({SpecKind::kJsonSchema,
               R"({"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},)"
               R"("b":{"type":"number"}},"required":["name"]}})"},
              vocabulary)
          .value();
  const std::string text =
      R"([{"name": "aé\n日", "b": 0.5}, {"name": "x", "x": [1, {"a": null}]}])";
  Matcher m(compiled);
  std::vector<uint32_t> bits(vocabulary->mask_words());
  const auto walk = [&] {
    for (const char c : text) {
      m.mask(bits);
      if (!m.accept(2 + static_cast<uint8_t>(c))) return false;
    }
    const bool may_stop = m.may_stop();
    m.rollback(text.size());
    return may_stop;
  };
  ASSERT_TRUE(walk());
  ASSERT_TRUE(walk());
  const uint64_t before = deepmint::testing::allocations();
  ASSERT_TRUE(walk());
  EXPECT_EQ(deepmint::testing::allocations() - before, 0u);
}

// Strings with and without a limit, over a vocabulary with quotes, escapes, cut characters and long
// words: what the slices say against accept(), token by token.
// Walks at random, the tokens of every mask asked one by one.
void expect_masks_agree_with_accept(Matcher& m, const Vocabulary& vocabulary, int steps,
                                    std::mt19937_64& rng) {
  for (int step = 0; step < steps && !m.stopped(); ++step) {
    const auto bits = mask_of(m, vocabulary);
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.width()); ++id) {
      ASSERT_EQ(has(bits, id), m.allowed(id))
          << "step " << step << ", token " << id << " \"" << vocabulary.bytes(id) << "\"";
      if (has(bits, id)) allowed.push_back(id);
    }
    ASSERT_FALSE(allowed.empty());
    ASSERT_TRUE(m.accept(allowed[rng() % allowed.size()]));
  }
}

TEST(Matcher, MasksOfStringsAgreeWithAccept) {
  std::mt19937_64 rng(99);
  const auto vocabulary = vocabulary_of_strings(rng);
  for (const uint32_t max : {3u, 9u, 30u, kUnbounded}) {
    GrammarBuilder g;
    RegexSet& r = g.regexes();
    const std::vector<CodePointRange> safe{{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
    const RegexId body =
        r.alternate(r.code_points(safe),
                    r.concat(r.literal("\\"), r.bytes(ByteSet::one('n') | ByteSet::one('"'))));
    const RegexId quoted =
        r.concat(std::array{r.literal("\""), r.repeat(body, 0, max), r.literal("\"")});
    const Symbol item = g.nonterminal("item");
    g.add(item, {g.terminal(quoted)});
    g.add(item, {g.terminal(r.repeat(r.bytes(ByteSet::range('0', '9')), 1, kUnbounded))});
    g.set_start(g.sequence(
        {g.literal("{"),
         g.repeat(g.sequence({item, g.literal(":"), item, g.literal(",")}), 1, kUnbounded),
         g.literal("}")}));
    const auto compiled = Compiled::make(g.build().value(), vocabulary).value();
    Matcher m(compiled);
    ASSERT_TRUE(m.accept(2 + '{'));
    SCOPED_TRACE(max);
    expect_masks_agree_with_accept(m, *vocabulary, 60, rng);
  }
}

// A pattern and a length together (RegexSet::within forgets the length far from its end), warm and
// with nothing known.
TEST(Matcher, MasksOfPatternsWithALengthAgreeWithAccept) {
  std::mt19937_64 rng(7);
  const auto vocabulary = vocabulary_of_strings(rng);
  for (const std::string_view pattern :
       {R"(^(?:\\S+\\s+){0,9}\\S+$)", R"([aB]{3}|\u65e5)", R"(^.{0,40}z?$)"})
    for (const uint32_t max : {20u, 60u, 130u, 400u}) {
      SCOPED_TRACE(fmt::format("{} {}", pattern, max));
      const Spec spec{
          .text = fmt::format(
              R"({{"type": "string", "pattern": "{}", "minLength": 1, "maxLength": {}}})", pattern,
              max)};
      const auto compiled = compile(spec, vocabulary).value();
      for (int text = 0; text < 2; ++text) {
        Matcher warm(compiled);
        ASSERT_TRUE(warm.accept(2 + '"'));
        expect_masks_agree_with_accept(warm, *vocabulary, 12, rng);
        const size_t back = std::min<size_t>(warm.accepted(), 5);
        warm.rollback(back);
        Matcher moved = warm.fork();
        const auto before = mask_of(moved, *vocabulary);
        compiled->lexer().lock();
        compiled->lexer().reset();
        EXPECT_EQ(mask_of(warm, *vocabulary), before);
      }
    }
}

// Searches, in which all text is viable, with a minimum, and several of which exactly one may
// match.
TEST(Matcher, MasksOfSearchesAgreeWithAccept) {
  std::mt19937_64 rng(9);
  const auto vocabulary = vocabulary_of_strings(rng);
  for (const std::string_view schema :
       {R"({"type": "string", "pattern": "[0-9]+a[aB]{3}"})",
        R"({"type": "string", "pattern": "[0-9]+a[aB]{3}", "minLength": 30})",
        R"({"type": "string", "oneOf": [{"pattern": "aB"}, {"pattern": "Ba"}, {"pattern": "1x"}]})",
        R"({"type": "string", "not": {"pattern": "aB|\u65e5"}, "minLength": 4})"}) {
    SCOPED_TRACE(schema);
    const auto compiled = compile(Spec{.text = std::string(schema)}, vocabulary).value();
    for (int text = 0; text < 3; ++text) {
      Matcher m(compiled);
      ASSERT_TRUE(m.accept(2 + '"'));
      expect_masks_agree_with_accept(m, *vocabulary, 12, rng);
    }
  }
}

// The states behind one mask are those of the tokens, not of all texts that a search lets through
// or of every count beside every length.
TEST(Matcher, MasksOfSearchesAndCountsNeedFewStates) {
  std::mt19937_64 rng(10);
  const auto vocabulary = vocabulary_of_strings(rng);
  for (const std::string_view schema :
       {R"({"type": "string", "pattern": "[0-9]+-[0-9a-f]*-[0-9a-f]{24}", "minLength": 35})",
        R"({"type": "string", "pattern": "^(?:\\S+\\s+){0,49}\\S+$", "maxLength": 500})"}) {
    const auto compiled = compile(Spec{.text = std::string(schema)}, vocabulary).value();
    const size_t before = compiled->memory_bytes();
    Matcher m(compiled);
    ASSERT_TRUE(m.accept(2 + '"'));
    mask_of(m, *vocabulary);
    EXPECT_LT(compiled->memory_bytes() - before, 150'000u) << schema;
  }
}

}  // namespace
}  // namespace deepmint::grammar
