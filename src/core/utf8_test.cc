#include "core/utf8.h"

#include <gtest/gtest.h>

namespace deepmint::utf8 {
namespace {

TEST(Utf8, Validity) {
  for (const char* s :
       {"", "a", "é", "中文", "😀", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF", "12345678é"})
    EXPECT_TRUE(is_valid(s)) << s;
  EXPECT_EQ(find_invalid("abcdefgh\xFFz"), 8u);
  for (const char* s :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3", "\xE4\xB8"})
    EXPECT_FALSE(is_valid(s)) << s;
}

TEST(Utf8, IncompleteTail) {
  EXPECT_EQ(incomplete_tail("a\xC3"), 1u);
  EXPECT_EQ(incomplete_tail("\xE4\xB8"), 2u);
  EXPECT_EQ(incomplete_tail("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_tail("é"), 0u);
  EXPECT_EQ(incomplete_tail("\x80\x80"), 0u);
  EXPECT_EQ(incomplete_tail("\xE0\x80"), 0u);  // already wrong, not merely cut
  EXPECT_EQ(incomplete_tail(""), 0u);
}

TEST(Utf8, SanitizeReplacesMaximalSubparts) {
  EXPECT_EQ(sanitize("a\xF0\x9F\x98z"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(sanitize("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(sanitize("ok"), "ok");
}

TEST(Utf8, AppendMatchesValidity) {
  for (uint32_t c = 0; c < 0x110000; c += 257) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string s;
    append(s, c);
    ASSERT_TRUE(is_valid(s)) << c;
  }
}

TEST(Utf8, NextReadsWhatAppendWrote) {
  std::string s;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    append(s, c);
  }
  size_t at = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    ASSERT_EQ(next(s, at), c);
  }
  EXPECT_EQ(at, s.size());
}

}  // namespace
}  // namespace deepmint::utf8
