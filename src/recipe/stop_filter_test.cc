#include "recipe/stop_filter.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace deepmint::recipe {
namespace {

struct Cut {
  std::string text, matched;
  friend bool operator==(const Cut&, const Cut&) = default;
};

// The definition, read off directly: the first end position where some stop string is a suffix; the
// longest of them.
Cut cut_slowly(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops)
      if (stop.size() > best.size() && std::string_view(text).substr(0, end).ends_with(stop))
        best = stop;
    if (!best.empty()) return {text.substr(0, end - best.size()), best};
  }
  return {text, ""};
}

Cut cut_in_pieces(const std::string& text, const std::vector<std::string>& stops,
                  const std::vector<size_t>& cuts) {
  StopFilter filter(stops);
  Cut out;
  size_t at = 0;
  for (const size_t cut : cuts) {
    out.text += filter.push(std::string_view(text).substr(at, cut - at));
    EXPECT_EQ(out.text.size(), filter.passed_bytes());
    at = cut;
  }
  out.text += filter.push(std::string_view(text).substr(at));
  out.text += filter.finish();
  EXPECT_EQ(out.text.size(), filter.passed_bytes());
  EXPECT_EQ(filter.stopped(), !filter.matched().empty());
  out.matched = filter.matched();
  return out;
}

unsigned test_seed() {
  const char* given = std::getenv("DEEPMINT_TEST_SEED");
  return given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device{}();
}

TEST(StopFilter, AnyCutGivesTheDefinition) {
  const unsigned seed = test_seed();
  SCOPED_TRACE("DEEPMINT_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto word = [&](size_t max) {  // two letters, so that borders and overlaps are common
    std::string w(random() % (max + 1), 'a');
    for (char& c : w) c = "ab"[random() % 2];
    return w;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(random() % 5);
    for (std::string& stop : stops) stop = word(6);
    const std::string text = word(24);
    std::vector<size_t> cuts;
    for (size_t at = 0; at <= text.size(); ++at)
      for (unsigned n = random() % 4; n > 2; --n) cuts.push_back(at);
    ASSERT_EQ(cut_in_pieces(text, stops, cuts), cut_slowly(text, stops))
        << text << " round " << round;
  }
}

TEST(StopFilter, PassesWhatIsDecidedAtOnce) {
  StopFilter filter({"</end>", "\n\n"});
  EXPECT_EQ(filter.push("a<b"), "a<b");
  EXPECT_EQ(filter.push("c</e"), "c");
  EXPECT_EQ(filter.push("x\n"), "</ex");
  EXPECT_FALSE(filter.stopped());
  EXPECT_EQ(filter.push("\nrest"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.matched(), "\n\n");
  EXPECT_EQ(filter.push("more"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopFilter, TheMatchThatEndsFirstWins) {
  EXPECT_EQ(cut_in_pieces("xabcd", {"abcd", "bc"}, {}), (Cut{"xa", "bc"}));
  EXPECT_EQ(cut_in_pieces("xabc", {"bc", "abc"}, {}), (Cut{"x", "abc"}));
  EXPECT_EQ(cut_in_pieces("\xF0\x9F\x98\x80!", {"\xF0\x9F\x98\x80"}, {1, 2, 3}),
            (Cut{"", "\xF0\x9F\x98\x80"}));
}

TEST(StopFilter, EmptyStringsNeverMatch) {
  EXPECT_EQ(cut_in_pieces("text", {"", ""}, {2}), (Cut{"text", ""}));
}

TEST(StopFilter, LongRunsStayLinear) {
  const std::string stop(4096, 'a');
  StopFilter filter({stop + "b"});
  std::string out;
  for (int i = 0; i < 1000; ++i) out += filter.push(std::string(1000, 'a'));
  EXPECT_EQ(out.size(), 1'000'000u - 4096u);
  out += filter.push("b");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(out.size(), 1'000'000u - 4096u);
}

}  // namespace
}  // namespace deepmint::recipe
