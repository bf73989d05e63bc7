#include "recipe/text_stream.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "core/utf8.h"

namespace deepmint::recipe {
namespace {

// Every byte is a token, and a few longer ones besides, so that characters and stop strings are cut
// everywhere.
std::shared_ptr<const Tokenizer> byte_tokenizer() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte)
    spec.vocab.push_back(std::string(1, static_cast<char>(byte)));
  for (const char* text : {"<|end|>", "ab", "END", "\n\nE", "\xF0\x9F", "\x98\x80x"})
    spec.vocab.push_back(text);
  TokenizerSpec::Added end;
  end.id = 256;
  end.text = "<|end|>";
  end.special = true;
  spec.added.push_back(end);
  spec.pre = PreTokenizer::kGpt2;
  auto made = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(made) << made.error().str();
  return *made;
}

std::string cut_slowly(const std::string& text, const std::vector<std::string>& stops,
                       std::string& matched) {
  for (size_t end = 1; end <= text.size(); ++end) {
    matched.clear();
    for (const std::string& stop : stops)
      if (stop.size() > matched.size() && std::string_view(text).substr(0, end).ends_with(stop))
        matched = stop;
    if (!matched.empty()) return text.substr(0, end - matched.size());
  }
  return text;
}

TEST(TextStream, PiecesJoinedAreTheTextUpToTheStop) {
  const auto tokenizer = byte_tokenizer();
  const char* given = std::getenv("DEEPMINT_TEST_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device{}();
  SCOPED_TRACE("DEEPMINT_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<std::string> letters = {
      "a", "b", "E", "N", "D", "\n", "\xF0\x9F\x98\x80", "\xC3\xA9", "\xFF", "\xE2\x82"};
  const std::vector<std::string> stops = {"END",
                                          "ba",
                                          "\n\nE",
                                          "\xF0\x9F\x98\x80x",
                                          "\xC3\xA9",
                                          "\xEF\xBF\xBD"
                                          "b"};
  int stopped = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<TokenId> ids;
    for (unsigned n = random() % 16; n > 0; --n) {
      if (random() % 3 == 0) {
        ids.push_back(static_cast<TokenId>(256 + random() % 6));
      } else {
        for (const char c : letters[random() % letters.size()])
          ids.push_back(static_cast<unsigned char>(c));
      }
    }
    std::vector<std::string> chosen;
    for (const std::string& stop : stops)
      if (random() % 3 == 0) chosen.push_back(stop);
    std::string matched;
    const std::string expected =
        cut_slowly(utf8::sanitize(tokenizer->decode(ids, /*skip_special=*/true)), chosen, matched);

    TextStream stream(*tokenizer, chosen);
    std::string text;
    size_t fed = 0;
    for (const TokenId id : ids) {
      const TextStream::Piece piece = stream.push(id);
      ++fed;
      text += piece.text;
      ASSERT_TRUE(utf8::is_valid(piece.text));
      ASSERT_EQ(stream.emitted_bytes(), text.size());
      ASSERT_GE(stream.decoded_bytes(), text.size());
      if (piece.stopped) break;
    }
    const TextStream::Piece rest = stream.finish();
    text += rest.text;
    ASSERT_EQ(text, expected) << "round " << round;
    ASSERT_EQ(stream.matched_stop(), matched);
    ASSERT_EQ(rest.stopped, !matched.empty());
    ASSERT_EQ(stream.emitted_bytes(), text.size());
    if (!matched.empty()) ++stopped;
  }
  EXPECT_GT(stopped, 500);
}

TEST(TextStream, WithoutStopsEveryWholeCharacterComesAtOnce) {
  const auto tokenizer = byte_tokenizer();
  TextStream stream(*tokenizer, {""});
  EXPECT_EQ(stream.push('a').text, "a");
  EXPECT_EQ(stream.push(0xF0).text, "");
  EXPECT_EQ(stream.push(0x9F).text, "");
  EXPECT_EQ(stream.push(261).text, "\xF0\x9F\x98\x80x");
  EXPECT_EQ(stream.push(256).text, "");
  EXPECT_EQ(stream.push(0xC3).text, "");
  EXPECT_EQ(stream.finish().text, "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace deepmint::recipe
