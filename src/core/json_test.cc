#include "core/json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deepmint::json {
namespace {

TEST(Json, KeepsOrderDuplicatesAndSpelling) {
  const std::string text = R"({"b":1.50,"a":[true,false,null],"b":-0,"n":123456789012345678901234567890,"e":1e999,"s":"\u00e9\n"})";
  auto v = parse(text);
  ASSERT_TRUE(v) << v.error().str();
  EXPECT_EQ(dump(*v), "{\"b\":1.50,\"a\":[true,false,null],\"b\":-0,\"n\":123456789012345678901234567890,\"e\":1e999,\"s\":\"é\\n\"}");
  EXPECT_EQ(v->find("b")->number_text(), "-0");
  EXPECT_FALSE(v->find("e")->to_double());
  EXPECT_FALSE(v->find("n")->to_int64());
  EXPECT_EQ(v->find("zzz"), nullptr);
}

TEST(Json, Scalars) {
  EXPECT_EQ(dump(*parse(" 7 ")), "7");
  EXPECT_EQ(dump(*parse("\"x\"")), "\"x\"");
  EXPECT_EQ(dump(*parse("true")), "true");
  EXPECT_EQ(dump(*parse("null")), "null");
}

TEST(Json, Integers) {
  const auto i64 = [](const char* s) { return parse(s)->to_int64(); };
  EXPECT_EQ(i64("-9223372036854775808"), INT64_MIN);
  EXPECT_FALSE(i64("9223372036854775808"));
  EXPECT_EQ(i64("1.0"), 1);
  EXPECT_EQ(i64("12e1"), 120);
  EXPECT_EQ(i64("120e-1"), 12);
  EXPECT_FALSE(i64("1.5"));
  EXPECT_FALSE(i64("1e30"));
  EXPECT_EQ(i64("0e99999999999999999999"), 0);
  EXPECT_EQ(parse("18446744073709551615")->to_uint64(), UINT64_MAX);
  EXPECT_FALSE(parse("-1")->to_uint64());
}

TEST(Json, Doubles) {
  EXPECT_EQ(parse("1e-999")->to_double(), 0.0);
  EXPECT_TRUE(std::signbit(*parse("-0")->to_double()));
  EXPECT_FALSE(parse("-1e400")->to_double());
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* s : {"", "{", "[1,]", "{\"a\"}", "01", "1.", ".5", "+1", "1 2", "nul", "tru", "nulll", "[1 2]", "[1]]", "\"\\ud800\"", "\"\x80\"",
                        "\"a\nb\"", "{\"a\":1,}", "[-]", "NaN", "'a'", "{a:1}", "[1}", "\xEF\xBB\xBF{}"})
    EXPECT_FALSE(parse(s)) << s;
}

TEST(Json, DepthIsLimited) {
  const auto nested = [](int n) { return std::string(static_cast<size_t>(n), '[') + std::string(static_cast<size_t>(n), ']'); };
  EXPECT_TRUE(parse(nested(128)));
  ASSERT_FALSE(parse(nested(129)));
  EXPECT_EQ(parse(nested(129)).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(parse(nested(100000)).error().code, ErrorCode::kTooLarge);
}

TEST(Json, WriterPlacesCommas) {
  Writer w;
  w.begin_object().key("a").begin_array().value(1).value("x\"\x01").end_array().key("b").begin_object().end_object().key("c").value(0.1)
      .key("d").value(std::nan("")).key("f").value(0.1f).end_object();
  EXPECT_EQ(w.str(), R"({"a":[1,"x\"\u0001"],"b":{},"c":0.1,"d":null,"f":0.1})");
}

}  // namespace
}  // namespace deepmint::json
