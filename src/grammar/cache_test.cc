#include "grammar/cache.h"

#include <gtest/gtest.h>

#include <random>

#include "grammar/matcher.h"
#include "grammar/testing_vocabulary.h"

namespace deepmint::grammar {
namespace {

constexpr TokenId kStop = 256;

std::shared_ptr<const Vocabulary> vocabulary() { return testing::byte_vocabulary(257); }

bool accepts(const std::shared_ptr<const Compiled>& compiled, std::string_view text) {
  return Matcher(compiled).accepts_bytes(text).complete;
}

TEST(CompiledCache, TheSameSpecificationIsCompiledOnce) {
  CompiledCache cache(vocabulary());
  const auto first = cache.get({SpecKind::kRegex, "[0-9]+"}).value();
  EXPECT_EQ(cache.get({SpecKind::kRegex, "[0-9]+"}).value(), first);
  EXPECT_NE(cache.get({SpecKind::kRegex, "[0-9]*"}).value(), first);
  int built = 0;
  const auto build = [&] {
    ++built;
    return compile_grammar({SpecKind::kRegex, "a"});
  };
  const auto own = cache.get("own", build).value();
  EXPECT_EQ(cache.get("own", build).value(), own);
  EXPECT_EQ(built, 1);
}

TEST(CompiledCache, AKindIsPartOfWhatIsAskedFor) {
  CompiledCache cache(vocabulary());
  const std::string text = "[\"x\"]";
  EXPECT_TRUE(accepts(cache.get({SpecKind::kRegex, text}).value(), "\""));
  EXPECT_TRUE(accepts(cache.get({SpecKind::kChoice, text}).value(), "x"));
}

TEST(CompiledCache, ErrorsAreNotKept) {
  CompiledCache cache(vocabulary());
  int built = 0;
  const auto build = [&]() -> Result<Grammar> {
    ++built;
    return fail(ErrorCode::kUnsupported, "no");
  };
  EXPECT_FALSE(cache.get("bad", build));
  EXPECT_FALSE(cache.get("bad", build));
  EXPECT_EQ(built, 2);
}

TEST(CompiledCache, WhatWasAskedForLongestAgoMakesRoom) {
  const Spec a{SpecKind::kRegex, "a{3}"}, b{SpecKind::kRegex, "b{3}"}, c{SpecKind::kRegex, "c{3}"};
  const size_t one = compile(a, vocabulary()).value()->memory_bytes() + 20;
  CompiledCache cache(vocabulary(), 2 * one);
  const auto first_a = cache.get(a).value(), first_b = cache.get(b).value();
  EXPECT_EQ(cache.get(a).value(), first_a);
  const auto first_c = cache.get(c).value();
  EXPECT_EQ(cache.get(c).value(), first_c);
  EXPECT_EQ(cache.get(a).value(), first_a);
  EXPECT_NE(cache.get(b).value(), first_b);
}

TEST(CompiledCache, AnAutomatonThatHasGrownCountsAsItIsNow) {
  const Spec small{SpecKind::kRegex, "x"}, growing{SpecKind::kRegex, "[ab]*a[ab]{12}"};
  CompiledCache cache(vocabulary(), size_t{1} << 20);
  const auto grown = cache.get(growing).value();
  const auto kept = cache.get(small).value();
  EXPECT_EQ(cache.get(growing).value(), grown);
  EXPECT_EQ(cache.get(small).value(), kept);
  std::mt19937_64 rng(1);
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += rng() % 2 == 0 ? 'a' : 'b';
  accepts(grown, text);
  ASSERT_GT(grown->memory_bytes(), size_t{1} << 20);
  EXPECT_EQ(cache.get(growing).value(), grown);  // the last one stays, alone
  EXPECT_NE(cache.get(small).value(), kept);
}

TEST(CompiledCache, ASizeSaysWhatEachPartTakesOnce) {
  GrammarBuilder g;
  g.set_start(g.literal(std::string(100'000, 'a')));
  auto grammar = g.build().value();
  const size_t bytes = grammar.memory_bytes();
  const auto compiled = Compiled::make(std::move(grammar), vocabulary()).value();
  EXPECT_GE(compiled->memory_bytes(), bytes / 2);  // what only compiling needed is forgotten
  EXPECT_LT(compiled->memory_bytes(), bytes + bytes / 2);
}

}  // namespace
}  // namespace deepmint::grammar
