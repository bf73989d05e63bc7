#include "engine/grammar_masks.h"

#include <gtest/gtest.h>

namespace deepmint {
namespace {

// Tokens are the 256 bytes, "ab", an added "</think>" and an end token.
constexpr TokenId kAb = 256, kThinkEnd = 257, kEnd = 258;
constexpr size_t kWidth = 270;

std::shared_ptr<const Tokenizer> tokenizer() {
  TokenizerSpec spec;
  for (int b = 0; b < 256; ++b) spec.vocab.push_back(std::string(1, static_cast<char>(b)));
  spec.vocab.push_back("ab");
  spec.vocab.push_back("</think>");
  spec.vocab.push_back("<end>");
  spec.merges.emplace_back('a', 'b');
  spec.added.push_back({.id = kThinkEnd, .text = "</think>", .special = false});
  spec.added.push_back({.id = kEnd, .text = "<end>", .special = true});
  spec.pre = PreTokenizer::kGpt2;
  return Tokenizer::create(std::move(spec)).value();
}

std::vector<TokenId> allowed(TokenMask& mask) {
  std::vector<TokenId> out;
  const auto words = mask.allowed();
  for (size_t id = 0; id < kWidth; ++id)
    if (words.empty() || (words[id / 32] >> (id % 32)) & 1) out.push_back(static_cast<TokenId>(id));
  return out;
}

TEST(GrammarMasks, AMaskFollowsItsReply) {
  GrammarMasks grammars(tokenizer(), kWidth, {kEnd});
  const auto mask = grammars.mask({grammar::SpecKind::kRegex, "abc?"}).value();
  EXPECT_EQ(allowed(*mask), (std::vector<TokenId>{'a', kAb}));
  mask->accept('a');
  EXPECT_EQ(allowed(*mask), (std::vector<TokenId>{'b'}));
  mask->accept('b');
  EXPECT_EQ(allowed(*mask), (std::vector<TokenId>{'c', kEnd}));
  mask->accept(kEnd);
  EXPECT_EQ(allowed(*mask), std::vector<TokenId>{});
}

TEST(GrammarMasks, ChoicesOfOneRequestDoNotShareState) {
  GrammarMasks grammars(tokenizer(), kWidth, {kEnd});
  const grammar::Spec spec{grammar::SpecKind::kEbnf, "root ::= \"a\" root \"b\" | \"x\""};
  const auto one = grammars.mask(spec).value(), two = grammars.mask(spec).value();
  one->accept('a');
  one->accept('x');
  EXPECT_EQ(allowed(*one), (std::vector<TokenId>{'b'}));
  EXPECT_EQ(allowed(*two), (std::vector<TokenId>{'a', 'x'}));
}

TEST(GrammarMasks, TheGrammarBeginsBehindTheThinking) {
  GrammarMasks grammars(tokenizer(), kWidth, {kEnd});
  const auto mask = grammars.mask({grammar::SpecKind::kRegex, "b"}, kThinkEnd).value();
  const auto free = allowed(*mask);
  EXPECT_EQ(free.size(), kWidth - 1);  // everything but the end
  EXPECT_EQ(std::count(free.begin(), free.end(), kEnd), 0);
  mask->accept('z');
  mask->accept(kAb);
  EXPECT_EQ(allowed(*mask), free);
  mask->accept(kThinkEnd);
  EXPECT_EQ(allowed(*mask), (std::vector<TokenId>{'b'}));
}

TEST(GrammarMasks, ErrorsSayWhere) {
  GrammarMasks grammars(tokenizer(), kWidth, {kEnd});
  const auto bad = grammars.mask({grammar::SpecKind::kRegex, "a(?=b)"});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().str(), "character 1: look-ahead cannot be done");
  GrammarMasks endless(tokenizer(), kWidth, {});
  EXPECT_FALSE(endless.mask({grammar::SpecKind::kRegex, "a"}));
}

}  // namespace
}  // namespace deepmint
