#include "tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "support/random.h"

namespace deepmint {
namespace {

using ::testing::ElementsAre;
using testing::Random;
using Ids = std::vector<TokenId>;

// The definition, as plainly as it can be said: quadratic, no shared code.
Ids merge_naively(const TokenizerSpec& spec, std::string_view piece) {
  std::map<std::string, TokenId> ids;
  for (size_t id = 0; id < spec.vocab.size(); ++id)
    ids.emplace(spec.vocab[id], static_cast<TokenId>(id));
  std::map<std::pair<TokenId, TokenId>, size_t> ranks;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) ranks[spec.merges[rank]] = rank;
  Ids out;
  for (char c : piece)
    if (const auto it = ids.find(std::string(1, c)); it != ids.end()) out.push_back(it->second);
  while (true) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < out.size(); ++i)
      if (const auto it = ranks.find({out[i], out[i + 1]});
          it != ranks.end() && it->second < best) {
        best = it->second;
        at = i;
      }
    if (best == SIZE_MAX) return out;
    out[at] = ids.at(spec.vocab[static_cast<size_t>(out[at])] +
                     spec.vocab[static_cast<size_t>(out[at + 1])]);
    out.erase(out.begin() + static_cast<long>(at) + 1);
  }
}

Ids encode(const Bpe& bpe, std::string_view piece) {
  Ids out;
  bpe.encode(piece, out);
  return out;
}

TokenizerSpec letters(std::string_view alphabet) {
  TokenizerSpec spec;
  for (char c : alphabet) spec.vocab.emplace_back(1, c);
  return spec;
}

TokenId id_of(TokenizerSpec& spec, const std::string& text) {
  const auto it = std::find(spec.vocab.begin(), spec.vocab.end(), text);
  if (it != spec.vocab.end()) return static_cast<TokenId>(it - spec.vocab.begin());
  spec.vocab.push_back(text);
  return static_cast<TokenId>(spec.vocab.size() - 1);
}

// Merges of tokens that are there already, as a trainer makes them: in order by construction.
TokenizerSpec random_trained(Random& random, std::string_view alphabet, size_t n_merges) {
  TokenizerSpec spec = letters(alphabet);
  for (size_t i = 0; i < n_merges; ++i) {
    const auto left = static_cast<TokenId>(random.below(spec.vocab.size())),
               right = static_cast<TokenId>(random.below(spec.vocab.size()));
    const std::string joined =
        spec.vocab[static_cast<size_t>(left)] + spec.vocab[static_cast<size_t>(right)];
    if (joined.size() > 9 || std::find(spec.merges.begin(), spec.merges.end(),
                                       std::pair(left, right)) != spec.merges.end())
      continue;
    id_of(spec, joined);
    spec.merges.emplace_back(left, right);
  }
  return spec;
}

// A rank per token and every split of it as a merge, as in files converted from rank tables (Llama
// 3).
TokenizerSpec all_splits(const TokenizerSpec& trained) {
  TokenizerSpec spec = trained;
  spec.merges.clear();
  for (const std::string& token : trained.vocab)
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = std::find(spec.vocab.begin(), spec.vocab.end(), token.substr(0, cut));
      const auto right = std::find(spec.vocab.begin(), spec.vocab.end(), token.substr(cut));
      if (left != spec.vocab.end() && right != spec.vocab.end())
        spec.merges.emplace_back(static_cast<TokenId>(left - spec.vocab.begin()),
                                 static_cast<TokenId>(right - spec.vocab.begin()));
    }
  return spec;
}

std::string random_text(Random& random, std::string_view alphabet, size_t most) {
  std::string out;
  for (uint64_t n = 1 + random.below(most); n > 0; --n)
    out += std::string(random.below(5) == 0 ? 1 + random.below(6) : 1,
                       alphabet[random.below(alphabet.size())]);
  return out;
}

// Counts in `searched` whether the search was used.
void check_random(Random& random, const TokenizerSpec& spec, std::string_view alphabet, int texts,
                  int* searched = nullptr) {
  const Result<Bpe> bpe = Bpe::create(spec);
  ASSERT_TRUE(bpe) << bpe.error().str();
  if (searched != nullptr) *searched += bpe->merges_in_order() ? 1 : 0;
  for (int i = 0; i < texts; ++i) {
    const std::string text = random_text(random, alphabet, i % 10 == 0 ? 200 : 24);
    const Ids expected = merge_naively(spec, text);
    Ids merged;
    bpe->encode_by_merging(text, merged);
    ASSERT_EQ(merged, expected) << text;
    ASSERT_EQ(encode(*bpe, text), expected) << text << ", in order: " << bpe->merges_in_order();
    ASSERT_EQ(encode(*bpe, text), expected) << text << ", from the cache";
  }
}

TEST(Bpe, SearchEqualsMergingOnRandomVocabularies) {
  const uint64_t seed = testing::test_seed();
  SCOPED_TRACE(testing::seed_note(seed));
  Random random(seed);
  int trained = 0, converted = 0;
  for (int round = 0; round < 400 && !HasFatalFailure(); ++round) {
    const std::string_view alphabet = std::string_view("abcdefgh").substr(0, 1 + random.below(4));
    const TokenizerSpec spec = random_trained(random, alphabet, 1 + random.below(60));
    check_random(random, spec, alphabet, 40, &trained);
    check_random(random, all_splits(spec), alphabet, 40, &converted);
  }
  EXPECT_GT(trained, 300);
  EXPECT_GT(converted, 200);
}

TEST(Bpe, MergesOutOfOrderAreMergedOneByOne) {
  const uint64_t seed = testing::test_seed();
  SCOPED_TRACE(testing::seed_note(seed));
  Random random(seed);
  int out_of_order = 0;
  for (int round = 0; round < 200 && !HasFatalFailure(); ++round) {
    TokenizerSpec spec = random_trained(random, "abc", 30);
    for (size_t i = spec.merges.size(); i > 1; --i)
      std::swap(spec.merges[i - 1], spec.merges[random.below(i)]);
    const Result<Bpe> bpe = Bpe::create(spec);
    ASSERT_TRUE(bpe);
    out_of_order += bpe->merges_in_order() ? 0 : 1;
    check_random(random, spec, "abc", 30);
  }
  EXPECT_GT(out_of_order, 100);
}

TEST(Bpe, OfEqualMergesTheLeftmostGoesFirst) {
  TokenizerSpec spec = letters("ab");
  spec.merges = {{0, 0}};
  id_of(spec, "aa");
  const Result<Bpe> bpe = Bpe::create(spec);
  ASSERT_TRUE(bpe);
  EXPECT_THAT(encode(*bpe, "aaa"), ElementsAre(2, 0));
  EXPECT_THAT(encode(*bpe, "aaaab"), ElementsAre(2, 2, 1));
}

TEST(Bpe, ATokenThatItsOwnBytesDoNotGiveIsNeverGiven) {
  // "abc" can only come from ab + c, but b + c merges first.
  TokenizerSpec spec = letters("abc");
  spec.merges = {{1, 2}, {0, 1}, {4, 2}};
  id_of(spec, "bc");
  id_of(spec, "ab");
  id_of(spec, "abc");
  Result<Bpe> bpe = Bpe::create(spec);
  ASSERT_TRUE(bpe);
  EXPECT_THAT(encode(*bpe, "abc"), ElementsAre(0, 3));
  spec.ignore_merges = true;  // the whole piece is looked up first
  bpe = Bpe::create(spec);
  ASSERT_TRUE(bpe);
  EXPECT_THAT(encode(*bpe, "abc"), ElementsAre(5));
  EXPECT_THAT(encode(*bpe, "abca"), ElementsAre(0, 3, 0));
}

TEST(Bpe, BytesWithoutATokenAreLeftOutAndTheirNeighboursMeet) {
  TokenizerSpec spec = letters("ab");
  spec.merges = {{0, 1}};
  id_of(spec, "ab");
  const Result<Bpe> bpe = Bpe::create(spec);
  ASSERT_TRUE(bpe);
  EXPECT_THAT(encode(*bpe, "a?b"), ElementsAre(2));
  EXPECT_THAT(encode(*bpe, "??"), ElementsAre());
}

TEST(Bpe, UnknownAndFallbackTokensKeepNeighboursApart) {
  TokenizerSpec spec = letters("ab");
  spec.merges = {{0, 1}};
  id_of(spec, "ab");
  spec.unk = id_of(spec, "<unk>");
  spec.decode_only = {*spec.unk};
  Result<Bpe> bpe = Bpe::create(spec);
  ASSERT_TRUE(bpe);
  EXPECT_THAT(encode(*bpe, "a??b"), ElementsAre(0, 3, 3, 1));
  spec.fuse_unk = true;
  bpe = Bpe::create(spec);
  ASSERT_TRUE(bpe);
  EXPECT_THAT(encode(*bpe, "a??b?"), ElementsAre(0, 3, 1, 3));
  spec.vocab.push_back("?");
  spec.byte_fallback = {{'?', 4}};
  bpe = Bpe::create(spec);
  ASSERT_TRUE(bpe);
  EXPECT_THAT(encode(*bpe, "a?!!b"), ElementsAre(0, 4, 3, 1));
}

TEST(Bpe, NoTextGivesAControlToken) {
  TokenizerSpec spec = letters("<a>");
  spec.merges = {{0, 1}, {3, 2}};
  id_of(spec, "<a");
  spec.added.push_back({id_of(spec, "<a>"), "<a>", /*special=*/true});
  const Result<Bpe> bpe = Bpe::create(spec);
  ASSERT_TRUE(bpe);
  EXPECT_THAT(encode(*bpe, "<a>"), ElementsAre(3, 2));
}

TEST(Bpe, AVocabularyMadeToBeSlowStaysLinear) {
  // Every run of a up to 200, built one a at a time, and runs that end in b from the right: the
  // search must step back a lot.
  TokenizerSpec spec = letters("ab");
  std::string run = "a";
  for (int n = 2; n <= 200; ++n) {
    const TokenId left = id_of(spec, run);
    run += 'a';
    id_of(spec, run);
    spec.merges.emplace_back(left, 0);
  }
  for (const std::string& tail : {std::string("ab"), std::string("aab"), std::string("aaab")}) {
    const TokenId right = id_of(spec, tail.substr(1));
    id_of(spec, tail);
    spec.merges.emplace_back(0, right);
  }
  const Result<Bpe> bpe = Bpe::create(spec);
  ASSERT_TRUE(bpe);
  std::string text;
  for (int i = 0; i < 200; ++i) text += std::string(static_cast<size_t>(i), 'a') + "b";
  Ids merged;
  bpe->encode_by_merging(text, merged);
  EXPECT_EQ(encode(*bpe, text), merged);
  EXPECT_EQ(encode(*bpe, std::string(1'000'000, 'a')).size(),
            500'000u);  // a + a is the first merge
}

TEST(Bpe, AMergeWithoutItsResultIsAnError) {
  TokenizerSpec spec = letters("ab");
  spec.merges = {{0, 1}};
  const Result<Bpe> bpe = Bpe::create(spec);
  ASSERT_FALSE(bpe);
  EXPECT_EQ(bpe.error().code, ErrorCode::kInvalidFile);
  EXPECT_EQ(bpe.error().str(), "merge 0: its result \"ab\" is not in the vocabulary");
}

}  // namespace
}  // namespace deepmint
