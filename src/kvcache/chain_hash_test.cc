#include "kvcache/chain_hash.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "support/test_seed.h"

namespace deepmint::kvcache {
namespace {

std::vector<TokenId> some_tokens(size_t n, uint64_t seed = 1) {
  std::mt19937_64 rng(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(rng() % 50'000);
  return ids;
}

std::vector<BlockHash> hashes_of(const CacheIdentity& identity, std::span<const TokenId> tokens) {
  HashChain chain(identity);
  chain.append(tokens);
  return {chain.full_blocks().begin(), chain.full_blocks().end()};
}

TEST(HashChain, AnyCutGivesTheSameHashes) {
  std::mt19937_64 rng(testing::test_seed());
  const auto tokens = some_tokens(1000);
  const auto whole = hashes_of({1, 2, "salt"}, tokens);
  ASSERT_EQ(whole.size(), 15u);
  for (int round = 0; round < 100; ++round) {
    HashChain chain({1, 2, "salt"});
    for (size_t at = 0; at < tokens.size();) {
      const size_t n = std::min<size_t>(1 + rng() % 200, tokens.size() - at);
      chain.append(std::span(tokens).subspan(at, n));
      at += n;
      ASSERT_EQ(chain.tokens(), at);
      ASSERT_EQ(chain.full_blocks().size(), at / kBlockTokens);
    }
    ASSERT_TRUE(std::ranges::equal(chain.full_blocks(), whole));
  }
}

TEST(HashChain, ACopyGoesOnByItself) {
  const auto tokens = some_tokens(640);
  HashChain first({1, 2, ""});
  first.append(std::span(tokens).first(300));
  HashChain second = first;
  second.append(std::span(tokens).subspan(300));
  EXPECT_EQ(first.full_blocks().size(), 4u);
  EXPECT_TRUE(std::ranges::equal(second.full_blocks(), hashes_of({1, 2, ""}, tokens)));
}

// Whatever may not be exchanged must not have the same identity, from the first block on.
TEST(HashChain, EverythingThatMattersIsInTheHash) {
  const auto tokens = some_tokens(4 * kBlockTokens);
  std::set<std::pair<uint64_t, uint64_t>> seen;
  const auto add = [&](const std::vector<BlockHash>& hashes, size_t from) {
    for (size_t i = from; i < hashes.size(); ++i)
      EXPECT_TRUE(seen.insert({hashes[i].id.low, hashes[i].id.high}).second) << "block " << i;
  };
  add(hashes_of({1, 2, ""}, tokens), 0);
  add(hashes_of({3, 2, ""}, tokens), 0);
  add(hashes_of({1, 3, ""}, tokens), 0);
  add(hashes_of({2, 1, ""}, tokens), 0);
  add(hashes_of({1, 2, "a"}, tokens), 0);
  add(hashes_of({1, 2, std::string_view("a\0", 2)}, tokens), 0);
  for (const size_t at : {0, 63, 64, 255}) {
    auto other = tokens;
    ++other[at];
    const auto hashes = hashes_of({1, 2, ""}, other);
    const auto same = hashes_of({1, 2, ""}, tokens);
    for (size_t i = 0; i < at / kBlockTokens; ++i) EXPECT_EQ(hashes[i], same[i]);
    add(hashes, at / kBlockTokens);
  }
}

TEST(HashChain, ContextDiffersWhereTokensDoNot) {
  const auto tokens = some_tokens(kBlockTokens);
  const auto context = [&](const CacheIdentity& identity) {
    return hashes_of(identity, tokens)[0].context;
  };
  const std::set<uint64_t> all = {context({1, 2, ""}), context({2, 2, ""}), context({1, 1, ""}),
                                  context({1, 2, "a"}), context({1, 2, "b"})};
  EXPECT_EQ(all.size(), 5u);
}

TEST(HashChain, ImagesChangeTheBlocksThatTheyOverlapAndThoseBehind) {
  const auto tokens = some_tokens(5 * kBlockTokens);
  const auto plain = hashes_of({1, 2, ""}, tokens);
  const auto with = [&](const ImageKey& image) {
    HashChain chain({1, 2, ""});
    chain.append(std::span(tokens).first(10));
    chain.add_image(image);
    chain.append(std::span(tokens).subspan(10));
    return std::vector(chain.full_blocks().begin(), chain.full_blocks().end());
  };
  const auto a = with({.content = {1, 1}, .preprocessing = 1, .begin = 70, .end = 140});
  EXPECT_EQ(a[0], plain[0]);
  for (size_t i = 1; i < 5; ++i) {
    EXPECT_NE(a[i].id, plain[i].id);
    EXPECT_NE(a[i].context, plain[i].context);
  }
  EXPECT_EQ(a, with({.content = {1, 1}, .preprocessing = 1, .begin = 70, .end = 140}));
  EXPECT_NE(a, with({.content = {2, 1}, .preprocessing = 1, .begin = 70, .end = 140}));
  EXPECT_NE(a, with({.content = {1, 1}, .preprocessing = 2, .begin = 70, .end = 140}));
  EXPECT_NE(a[1], with({.content = {1, 1}, .preprocessing = 1, .begin = 71, .end = 140})[1]);
  // Ends on a block's edge: does not overlap the next one, which still differs through the chain.
  const auto edge = with({.content = {1, 1}, .preprocessing = 1, .begin = 70, .end = 128});
  EXPECT_EQ(edge[1], a[1]);
  EXPECT_NE(edge[2].id, a[2].id);
}

TEST(LayoutFingerprint, TellsLayoutsApart) {
  const std::vector<PartSpec> kv = {{"kv", PartFamily::kGlobal, 128}};
  const std::set<uint64_t> all = {
      layout_fingerprint(kv),
      layout_fingerprint(std::vector<PartSpec>{{"kv", PartFamily::kGlobal, 64}}),
      layout_fingerprint(std::vector<PartSpec>{{"kw", PartFamily::kGlobal, 128}}),
      layout_fingerprint(std::vector<PartSpec>{{"kv", PartFamily::kPrivate, 128}}),
      layout_fingerprint({})};
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(layout_fingerprint(kv), layout_fingerprint(std::vector(kv)));
}

TEST(HashChain, ReusableBlocksLeaveTheLastTokenToRun) {
  EXPECT_EQ(reusable_blocks(0), 0u);
  EXPECT_EQ(reusable_blocks(1), 0u);
  EXPECT_EQ(reusable_blocks(64), 0u);
  EXPECT_EQ(reusable_blocks(65), 1u);
  EXPECT_EQ(reusable_blocks(128), 1u);
  EXPECT_EQ(reusable_blocks(129), 2u);
}

}  // namespace
}  // namespace deepmint::kvcache
