#include "core/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/utf8.h"
#include "support/public_suite.h"
#include "support/random.h"

namespace deepmint::json {
namespace {

using testing::Random;
using testing::seed_note;
using testing::test_seed;

TEST(Json, KeepsOrderDuplicatesAndSpelling) {
  const std::string text =
      R"({"b":1.50,"a":[true,false,null],"b":-0,"n":123456789012345678901234567890,"e":1e999,"s":"\u00e9\n"})";
  auto v = parse(text);
  ASSERT_TRUE(v) << v.error().str();
  EXPECT_EQ(dump(*v),
            "{\"b\":1.50,\"a\":[true,false,null],\"b\":-0,\"n\":123456789012345678901234567890,"
            "\"e\":1e999,\"s\":\"é\\n\"}");
  EXPECT_EQ(v->find("b")->number_text(), "-0");
  EXPECT_FALSE(v->find("e")->to_double());
  EXPECT_FALSE(v->find("n")->to_int64());
  EXPECT_EQ(v->find("zzz"), nullptr);
}

TEST(Json, Scalars) {
  EXPECT_EQ(dump(*parse(" 7 ")), "7");
  EXPECT_EQ(dump(*parse("\"x\"")), "\"x\"");
  EXPECT_EQ(dump(*parse("true")), "true");
  EXPECT_EQ(dump(*parse("\t\r\nnull\n")), "null");
}

TEST(Json, StringsAreUnescaped) {
  EXPECT_EQ(parse(R"("\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00\u0000")")->as_string(),
            std::string("\"\\/\b\f\n\r\tAé€😀\0", 19));
  EXPECT_EQ(parse("{\"a\\u0062\":1}")->members()[0].key, "ab");
}

TEST(Json, Integers) {
  const auto i64 = [](const std::string& s) { return parse(s)->to_int64(); };
  EXPECT_EQ(i64("-9223372036854775808"), INT64_MIN);
  EXPECT_FALSE(i64("-9223372036854775809"));
  EXPECT_EQ(i64("9223372036854775807"), INT64_MAX);
  EXPECT_FALSE(i64("9223372036854775808"));
  EXPECT_EQ(i64("1.0"), 1);
  EXPECT_EQ(i64("12e1"), 120);
  EXPECT_EQ(i64("1.25E+2"), 125);
  EXPECT_EQ(i64("120e-1"), 12);
  EXPECT_EQ(i64("0.00120e5"), 120);
  EXPECT_FALSE(i64("1.5"));
  EXPECT_FALSE(i64("1e30"));
  EXPECT_FALSE(i64("1e-1"));
  EXPECT_EQ(i64("-0"), 0);
  EXPECT_EQ(i64("0e99999999999999999999"), 0);
  EXPECT_EQ(i64("1" + std::string(100'000, '0') + "e-100000"), 1);
  EXPECT_EQ(i64("0." + std::string(100'000, '0') + "1e100001"), 1);
  // The exponent's own range ends where 64-bit arithmetic on it would overflow.
  for (const char* s :
       {"1.5e-9223372036854775808", "1.5e9223372036854775807", "1e-99999999999999999999"})
    EXPECT_FALSE(i64(s)) << s;
  EXPECT_EQ(parse("18446744073709551615")->to_uint64(), UINT64_MAX);
  EXPECT_FALSE(parse("18446744073709551616")->to_uint64());
  EXPECT_FALSE(parse("99999999999999999999")->to_uint64());
  EXPECT_FALSE(parse("-1")->to_uint64());
  EXPECT_EQ(parse("-0.0")->to_uint64(), 0u);
  EXPECT_FALSE(parse("\"1\"")->to_int64());
}

TEST(Json, Doubles) {
  EXPECT_EQ(parse("1e-999")->to_double(), 0.0);
  EXPECT_EQ(parse("5e-324")->to_double(), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(parse("1.7976931348623157e308")->to_double(), std::numeric_limits<double>::max());
  EXPECT_TRUE(std::signbit(*parse("-0")->to_double()));
  EXPECT_TRUE(std::signbit(*parse("-1e-999")->to_double()));
  EXPECT_FALSE(parse("-1e400")->to_double());
  EXPECT_FALSE(parse("1e99999999999999999999")->to_double());
  EXPECT_EQ(parse("1e-99999999999999999999")->to_double(), 0.0);
  EXPECT_EQ(parse("0." + std::string(400, '0') + "1")->to_double(), 0.0);
  EXPECT_EQ(parse("0." + std::string(400, '0') + "1e5")->to_double(), 0.0);
  EXPECT_EQ(parse("1" + std::string(400, '0') + "e-400")->to_double(), 1.0);
  EXPECT_FALSE(parse("1" + std::string(400, '0'))->to_double());
  EXPECT_FALSE(parse("[]")->to_double());
}

TEST(Json, RefusesWhatIsNotJsonAndSaysWhere) {
  const std::string nul("\0", 1);
  const std::pair<std::string, const char*> cases[] = {
      {"", "byte 0"},
      {" \n ", "byte 0"},
      {"{", "byte 1"},
      {"[[[", "byte 3"},
      {"[1,]", "byte 3"},
      {"[1,2", "byte 4"},
      {"{\"a\"", "byte 4"},
      {"{\"a\":", "byte 5"},
      {"{\"a\":1", "byte 6"},
      {"{\"a\"}", "byte 4"},
      {"{\"a\" 1}", "byte 5"},
      {"{\"a\":1,}", "byte 7"},
      {"{\"a\":1 \"b\":2}", "byte 7"},
      {"{a:1}", "byte 1"},
      {"{1:1}", "byte 1"},
      {"{,}", "byte 1"},
      {"[,1]", "byte 1"},
      {"[1,,2]", "byte 3"},
      {"[1 2]", "byte 3"},
      {"[1}", "byte 2"},
      {"[1true]", "byte 1"},
      {"[true1]", "byte 1"},
      {"[\"a\"x]", "byte 4"},
      {"[\"a\"\"b\"]", "byte 4"},
      // A scalar document is held to the same rules, and its offsets count from its own first byte.
      {"01", "byte 0"},
      {"  01", "byte 2"},
      {"1.", "byte 0"},
      {".5", "byte 0"},
      {"+1", "byte 0"},
      {"-", "byte 0"},
      {"1e", "byte 0"},
      {"1e+", "byte 0"},
      {"0x1", "byte 0"},
      {"1 2", "byte 2"},
      {"1,2", "byte 1"},
      {"1,", "byte 1"},
      {"1]", "byte 1"},
      {"] , [", "byte 0"},
      {"1],[2", "byte 1"},
      {"1] , [2", "byte 1"},
      {"[1]]", "byte 3"},
      {"{} {}", "byte 3"},
      {"{}]", "byte 2"},
      {"nul", "byte 0"},
      {"tru", "byte 0"},
      {"nulll", "byte 0"},
      {"False", "byte 0"},
      {"NaN", "byte 0"},
      {"-Infinity", "byte 0"},
      {"'a'", "byte 0"},
      {"/* */ 1", "byte 0"},
      {"1 // x", "byte 2"},
      {"true" + nul, "byte 0"},
      {"[null" + nul + "]", "byte 1"},
      {"1" + nul, "byte 0"},
      {nul, "byte 0"},
      {"{}" + nul, "byte 2"},
      {"\"abc", "byte 0"},
      {"[\"abc\\\"]", "byte 1"},
      {"\"a\nb\"", "byte 2"},
      {"[\"\t\"]", "byte 2"},
      {"\"" + nul + "\"", "byte 1"},
      {"\"\\x\"", "byte 0"},
      {"\"\\u12g4\"", "byte 0"},
      {"\"\\ud800\"", "byte 0"},
      {"[\"\\udc00\"]", "byte 1"},
      {"\"\\ud800\\u0041\"", "byte 0"},
      {"{\"\\ud800\":1}", "byte 1"},
      {"\"\x80\"", "byte 1"},
      {"\"\xC0\xAF\"", "byte 1"},
      {"\"\xED\xA0\x80\"", "byte 1"},
      {"\"\xF4\x90\x80\x80\"", "byte 1"},
      {"\xEF\xBB\xBF{}", "byte 0"},
  };
  for (const auto& [text, where] : cases) {
    const auto v = parse(text);
    ASSERT_FALSE(v) << text;
    EXPECT_EQ(v.error().where, where) << text << " -> " << v.error().str();
    EXPECT_EQ(v.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(v.error().message.find('\n'), std::string::npos);
  }
}

TEST(Json, EveryPrefixOfADocumentIsRefused) {
  const std::string text = R"({"a":[1,-2.5e+3,"x\u00e9\\",{"b":null,"c":[true,false]}],"€":""})";
  ASSERT_TRUE(parse(text));
  for (size_t n = 0; n < text.size(); ++n)
    EXPECT_FALSE(parse(text.substr(0, n))) << text.substr(0, n);
}

TEST(Json, DepthIsLimited) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_TRUE(parse(nested(128)));
  ASSERT_FALSE(parse(nested(129)));
  EXPECT_EQ(parse(nested(129)).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(parse(nested(100'000)).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(parse(std::string(1'000'000, '[')).error().code, ErrorCode::kTooLarge);
  std::string objects;
  for (int i = 0; i < 129; ++i) objects += "{\"a\":";
  EXPECT_EQ(parse(objects).error().code, ErrorCode::kTooLarge);
  EXPECT_TRUE(parse("[[1]]", {.max_depth = 2}));
  EXPECT_EQ(parse("[[[1]]]", {.max_depth = 2}).error().str(),
            "JSON: nested more than 2 levels deep");
  EXPECT_TRUE(parse("1", {.max_depth = 0}));
}

TEST(Json, SizeIsLimited) {
  EXPECT_TRUE(parse("[1,2]", {.max_bytes = 5}));
  EXPECT_EQ(parse("[1,2]", {.max_bytes = 4}).error().code, ErrorCode::kTooLarge);
  EXPECT_TRUE(parse("[1,2]", {.max_values = 3}));
  EXPECT_EQ(parse("[1,2]", {.max_values = 2}).error().code, ErrorCode::kTooLarge);
  EXPECT_TRUE(parse("7", {.max_bytes = 1, .max_values = 1}));
}

TEST(Json, LongStringIsWhole) {
  const std::string body(3'000'000, 'x');
  EXPECT_EQ(parse("\"" + body + "\"")->as_string(), body);
}

// JSONTestSuite (test_parsing). Where the standard leaves the choice, ours is: numbers of any size
// are kept as spelled; text that is not UTF-8, lone surrogates, a byte-order mark and nesting
// beyond 128 are refused.
TEST(Json, PublicSuite) {
  const auto lines = testing::public_suite("json-test-suite.jsonl.zst");
  if (!lines) GTEST_SKIP() << "json-test-suite.jsonl.zst is not in tests/data or ../shared/data";
  EXPECT_GE(lines->size(), 300u);
  for (const std::string& line : *lines) {
    const auto test = parse(line);
    ASSERT_TRUE(test) << test.error().str();
    const std::string& name = test->find("name")->as_string();
    const std::string& expect = test->find("expect")->as_string();
    const auto v = parse(testing::from_base64(test->find("base64")->as_string()));
    const bool accept = expect == "accept" || (expect == "either" && name.starts_with("i_number_"));
    EXPECT_EQ(v.has_value(), accept) << name << (v ? "" : ": " + v.error().str());
  }
}

// The other parser refuses a number beyond the range of double, which is well-formed and which ours
// keeps as spelled. Exponents of three digits and more become zeros: the same grammar, in range.
std::string with_small_exponents(std::string text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != 'e' && text[at] != 'E') continue;
    size_t begin = at + 1;
    if (begin < text.size() && (text[begin] == '+' || text[begin] == '-')) ++begin;
    size_t end = begin;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end - begin >= 3) std::fill(text.data() + begin, text.data() + end, '0');
  }
  return text;
}

// Random damage to good documents: our verdict is that of an independent parser, and what we accept
// survives dump and parse.
TEST(Json, AgreesWithAnotherParserOnDamagedDocuments) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed_note(seed));
  Random random(seed);
  const std::string seeds[] = {
      R"({"a":[1,-2.5e+3,"x\u00e9\\",{"b":null,"c":[true,false]}],"€":""})",
      "[[],{},\"\\ud83d\\ude00\"]",
      "-1.25E-7",
      "\"é\\n\"",
      " [ 1 , 2 ] ",
      R"({"k":{"k":{"k":0}}})"};
  const std::string pieces[] = {"\"",
                                "\\",
                                "{",
                                "}",
                                "[",
                                "]",
                                ",",
                                ":",
                                "0",
                                "1",
                                "-",
                                ".",
                                "e",
                                "E+",
                                " ",
                                "\n",
                                "true",
                                "null",
                                "\\u00e9",
                                "\\ud83d",
                                "é",
                                "\x80",
                                "\xED\xA0\x80",
                                "\x01",
                                "a"};
  int accepted = 0;
  for (int round = 0; round < 30'000; ++round) {
    std::string text = seeds[random.below(std::size(seeds))];
    for (uint64_t edits = 1 + random.below(3); edits > 0; --edits) {
      const size_t at = random.below(text.size() + 1);
      switch (random.below(3)) {
        case 0:
          text.insert(at, pieces[random.below(std::size(pieces))]);
          break;
        case 1:
          text.erase(at, 1 + random.below(3));
          break;
        default:
          text.replace(at, std::min<size_t>(1, text.size() - at),
                       pieces[random.below(std::size(pieces))]);
      }
    }
    const auto ours = parse(text);
    ASSERT_EQ(ours.has_value(), nlohmann::json::accept(with_small_exponents(text)))
        << text << (ours ? "" : ": " + ours.error().str());
    if (!ours) continue;
    ++accepted;
    const auto again = parse(dump(*ours));
    ASSERT_TRUE(again) << dump(*ours);
    ASSERT_EQ(*again, *ours) << text;
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Json, WriterPlacesCommas) {
  Writer w;
  w.begin_object()
      .key("a")
      .begin_array()
      .value(1)
      .value("x\"\x01")
      .end_array()
      .key("b")
      .begin_object()
      .end_object();
  w.key("c")
      .value(0.1)
      .key("d")
      .value(std::nan(""))
      .key("f")
      .value(0.1f)
      .key("u")
      .value(7u)
      .end_object();
  EXPECT_EQ(w.str(), R"({"a":[1,"x\"\u0001"],"b":{},"c":0.1,"d":null,"f":0.1,"u":7})");
}

TEST(Json, WriterReusesItsBuffer) {
  Writer w(std::string(100, 'x'));
  EXPECT_EQ(w.begin_array().end_array().take(), "[]");
  EXPECT_EQ(w.value(1).str(), "1");
  w.clear();
  EXPECT_EQ(w.value(2).str(), "2");
}

TEST(Json, WriterIntegers) {
  Writer w;
  w.begin_array()
      .value(INT64_MIN)
      .value(INT64_MAX)
      .value(UINT64_MAX)
      .value(-1)
      .value(true)
      .end_array();
  EXPECT_EQ(w.str(), "[-9223372036854775808,9223372036854775807,18446744073709551615,-1,true]");
}

TEST(Json, WriterEscapes) {
  Writer w;
  std::string all;
  for (char c = 1; c < 0x7f; ++c) all.push_back(c);
  all += std::string("\0é€😀\x7f", 11);
  w.value(all);
  const auto back = parse(w.str());
  ASSERT_TRUE(back) << back.error().str();
  EXPECT_EQ(back->as_string(), all);
  EXPECT_EQ(nlohmann::json::parse(w.str()).get<std::string>(), all);
}

// Floats and doubles read back to the same bits, in the shortest spelling, which is always JSON.
TEST(Json, WriterFloatsRoundTrip) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed_note(seed));
  Random random(seed);
  const auto check_float = [](float f) {
    Writer w;
    w.value(f);
    if (!std::isfinite(f)) {
      ASSERT_EQ(w.str(), "null");
      return;
    }
    ASSERT_TRUE(parse(w.str())) << w.str();
    ASSERT_EQ(std::bit_cast<uint32_t>(std::strtof(w.str().c_str(), nullptr)),
              std::bit_cast<uint32_t>(f))
        << w.str();
    ASSERT_LE(w.str().size(), 16u) << w.str();
  };
  const auto check_double = [](double d) {
    Writer w;
    w.value(d);
    if (!std::isfinite(d)) {
      ASSERT_EQ(w.str(), "null");
      return;
    }
    const auto back = parse(w.str());
    ASSERT_TRUE(back) << w.str();
    ASSERT_EQ(std::bit_cast<uint64_t>(*back->to_double()), std::bit_cast<uint64_t>(d)) << w.str();
  };
  for (const float f :
       {0.0f, -0.0f, 1.0f, 0.1f, 16777216.0f, 1e38f, std::numeric_limits<float>::max(),
        std::numeric_limits<float>::min(), std::numeric_limits<float>::denorm_min(),
        std::numeric_limits<float>::infinity(), std::nanf("")}) {
    check_float(f);
    check_double(static_cast<double>(f));
  }
  for (int round = 0; round < 50'000; ++round) {
    check_float(std::bit_cast<float>(static_cast<uint32_t>(random.next())));
    check_double(std::bit_cast<double>(random.next()));
  }
  Writer w;
  w.begin_array()
      .value(1.0f)
      .value(-0.0)
      .value(1e-5f)
      .value(3.0e10)
      .value(0.30000000000000004)
      .end_array();
  EXPECT_EQ(w.str(), "[1,-0,1e-05,3e+10,0.30000000000000004]");
}

}  // namespace
}  // namespace deepmint::json
