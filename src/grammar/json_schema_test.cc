#include "grammar/json_schema.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "core/json.h"
#include "grammar/compiled.h"
#include "grammar/matcher.h"

namespace deepmint::grammar {
namespace {

std::shared_ptr<const Vocabulary> bytes() {
  static const auto kBytes = [] {
    std::vector<std::string> ids;
    for (int b = 0; b < 256; ++b) ids.emplace_back(1, static_cast<char>(b));
    ids.emplace_back();
    return *Vocabulary::make(std::move(ids), 257, {256});
  }();
  return kBytes;
}

struct Case {
  const char* what;
  std::string schema;
  std::vector<std::string> accepted, rejected;
};

Result<std::shared_ptr<const Compiled>> compiled(const std::string& schema,
                                                 const JsonSchemaOptions& options = {}) {
  DEEPMINT_TRY(value, json::parse(schema));
  DEEPMINT_TRY(grammar, compile_json_schema(value, options));
  return Compiled::make(std::move(grammar), bytes());
}

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const auto grammar = compiled(c.schema);
    ASSERT_TRUE(grammar) << c.what << ": " << grammar.error().str();
    for (const std::string& text : c.accepted) {
      const auto seen = Matcher(*grammar).accepts_bytes(text);
      EXPECT_TRUE(seen.complete) << c.what << ": " << text << " stops at byte " << seen.bytes;
    }
    for (const std::string& text : c.rejected)
      EXPECT_FALSE(Matcher(*grammar).accepts_bytes(text).complete) << c.what << ": " << text;
  }
}

TEST(JsonSchema, Types) {
  check({
      {"anything",
       "{}",
       {"1", "null", "[]", R"({"a":[{}]})", R"("x")", "true"},
       {"", "1 2", " true", "true "}},
      {"true", "true", {"1"}, {"x"}},
      {"one type", R"({"type":"string"})", {R"("")", R"("aé\n\u00e9")"}, {"1", "\"\n\"", "\"a"}},
      {"two types", R"({"type":["null","integer"]})", {"null", "-7", "3.0"}, {"3.5", "true"}},
      {"boolean", R"({"type":"boolean"})", {"true", "false"}, {"0", "null", "True"}},
  });
}

TEST(JsonSchema, Strings) {
  check({
      {"lengths are code points",
       R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("😀😀😀")", R"("\ud83d\ude00x")"},
       {R"("a")", R"("abcd")", R"("😀")"}},
      {"pattern searches",
       R"({"type":"string","pattern":"b+"})",
       {R"("abc")", R"("b")"},
       {R"("ac")"}},
      {"anchors", R"({"type":"string","pattern":"^a|z$"})", {R"("ab")", R"("bz")"}, {R"("ba")"}},
      {"pattern and length",
       R"({"type":"string","pattern":"^[0-9]+$","minLength":3,"maxLength":4})",
       {R"("123")", R"("1234")"},
       {R"("12")", R"("12345")", R"("12a")"}},
      {"enum in any spelling",
       R"({"enum":["a/b","é",null,1.0]})",
       {R"("a\/b")", R"("\u00e9")", "null", "1", "1.00"},
       {R"("a")", "1.5", R"("null")"}},
      {"const object",
       R"({"const":{"a":[1,{"b":false}],"c":"x"}})",
       {R"({"a":[1.0,{"b":false}],"c":"x"})", R"({ "a" : [ 1, {"b" : false} ], "c" : "x" })"},
       {R"({"a":[1,{"b":true}],"c":"x"})", R"({"a":[1,{"b":false}]})"}},
  });
}

TEST(JsonSchema, Formats) {
  const auto format = [](const char* name) {
    return std::string(R"({"type":"string","format":")") + name + "\"}";
  };
  check({
      {"date",
       format("date"),
       {R"("2024-02-29")", R"("2000-02-29")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2024-13-01")", R"("2024-04-31")"}},
      {"date-time",
       format("date-time"),
       {R"("1985-04-12T23:20:50.52Z")", R"("1990-12-31T15:59:60-08:00")",
        R"("1990-12-31T23:59:60Z")"},
       {R"("1985-04-12 23:20:50Z")", R"("1990-12-31T15:59:61-08:00")",
        R"("1985-04-12T24:00:00Z")"}},
      {"uuid",
       format("uuid"),
       {R"("2eb8aa08-aa98-11ea-b4aa-73b441d16380")"},
       {R"("2eb8aa08aa98")"}},
      {"ipv4",
       format("ipv4"),
       {R"("192.168.0.1")"},
       {R"("256.1.1.1")", R"("1.1.1")", R"("01.1.1.1")"}},
      {"ipv6",
       format("ipv6"),
       {R"("::1")", R"("1:2:3:4:5:6:7:8")", R"("::ffff:1.2.3.4")", R"("1::")"},
       {R"("1:2:3:4:5:6:7")", R"("1::2::3")", R"("12345::")", R"(":1")"}},
      {"email",
       format("email"),
       {R"("a.b@example.com")", R"("\"a b\"@x.org")", R"("a@[127.0.0.1]")"},
       {R"("a..b@x.org")", R"("a@")", R"("a b@x.org")"}},
      {"hostname",
       format("hostname"),
       {R"("a-b.example")"},
       {R"("-a")", R"("a-")", R"("a..b")", R"("a_b")"}},
      {"uri",
       format("uri"),
       {R"("http://a.b/c?d=e#f")", R"("urn:x:y")"},
       {R"("//a.b")", R"("a b")", R"("http:// x")"}},
      {"duration",
       format("duration"),
       {R"("P1DT12H")", R"("P4W")", R"("PT36H")"},
       {R"("P")", R"("PT")", R"("P1Y2W")"}},
      {"an unknown format says nothing", format("color"), {R"("x")"}, {}},
  });
  EXPECT_EQ(compiled(format("idn-hostname")).error().where, "#/format");
  EXPECT_TRUE(Matcher(*compiled(format("date"), {.assert_formats = false}))
                  .accepts_bytes(R"("x")")
                  .complete);
}

TEST(JsonSchema, Objects) {
  check({
      {"order, required, free keys last",
       R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["b"]})",
       {R"({"b":""})", R"({"a":1,"b":"x"})", R"({"b":"x","z":[1],"y":2})", R"({ "b" : "" })"},
       {R"({})", R"({"a":1})", R"({"b":"","a":1})", R"({"a":1.5,"b":""})", R"({"b":"",})",
        R"({"b":"","b":1})", R"({"b":"","\u0061":true})", R"({"b":"" "z":1})"}},
      {"closed",
       R"({"type":"object","properties":{"a":{}},"additionalProperties":false})",
       {"{}", R"({"a":null})", R"({"\u0061":1})"},
       {R"({"b":1})", R"({"a":1,"a":2})"}},
      {"free values",
       R"({"type":"object","additionalProperties":{"type":"integer"}})",
       {"{}", R"({"x":1,"y":2})"},
       {R"({"x":"1"})"}},
      {"patterns overlap",
       R"({"type":"object","patternProperties":{"^a":{"type":"integer"},"b$":{"minimum":5}},"additionalProperties":false})",
       {R"({"a":1})", R"({"xb":7})", R"({"ab":5})", R"({"xb":"no number"})"},
       {R"({"ab":4})", R"({"ab":"x"})", R"({"c":1})"}},
      {"names",
       R"({"type":"object","propertyNames":{"maxLength":2}})",
       {R"({"ab":1})"},
       {R"({"abc":1})"}},
      {"counts",
       R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"minProperties":2,"maxProperties":2})",
       {R"({"a":1,"b":1})", R"({"b":1,"c":1})"},
       {R"({"a":1})", R"({"a":1,"b":1,"c":1})", "{}"}},
      {"one free member at least",
       R"({"type":"object","minProperties":1})",
       {R"({"x":1})"},
       {"{}"}},
      {"a repeated key does not count twice",
       R"({"type":"object","properties":{"a":{}},"minProperties":2,"required":["a"]})",
       {R"({"a":1,"x":1})"},
       {R"({"a":1})", R"({"a":1,"a":2})"}},
      {"dependentRequired",
       R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}})",
       {"{}", R"({"b":1})", R"({"a":1,"b":1})"},
       {R"({"a":1})"}},
      {"required without properties",
       R"({"type":"object","required":["k"]})",
       {R"({"k":1,"j":2})"},
       {R"({"j":2})"}},
      {"a member that must be absent",
       R"({"type":"object","properties":{"a":false}})",
       {"{}", R"({"b":1})"},
       {R"({"a":1})"}},
  });
}

TEST(JsonSchema, Arrays) {
  check({
      {"items and counts",
       R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
       {"[1]", "[1, 2,3]", "[ 1 ]"},
       {"[]", "[1,2,3,4]", "[\"a\"]", "[1,]", "[,1]"}},
      {"prefix",
       R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
       {"[]", "[1]", R"([1,"a"])"},
       {R"(["a"])", R"([1,"a",2])"}},
      {"tuple of draft 7",
       R"({"$schema":"http://json-schema.org/draft-07/schema#","type":"array","items":[{"type":"integer"}],"additionalItems":{"type":"null"}})",
       {"[]", "[1,null,null]"},
       {"[1,2]", "[null]"}},
      {"contains",
       R"({"type":"array","contains":{"const":1},"minContains":2,"maxContains":3,"maxItems":4})",
       {"[1,1]", "[1,0,1]", "[1,1,1,2]"},
       {"[]", "[1]", "[1,1,1,1]", "[0,1,0,0]"}},
      {"unique values",
       R"({"type":"array","items":{"enum":["a","b",1]},"uniqueItems":true,"minItems":2})",
       {R"(["a",1])", R"(["b","a",1])"},
       {R"(["a","a"])", R"([1,1.0])", R"(["a"])"}},
      {"large counts stay small",
       R"({"type":"array","items":{"type":"null"},"minItems":100000})",
       {},
       {"[null]"}},
  });
}

TEST(JsonSchema, Combinations) {
  check({
      {"allOf",
       R"({"allOf":[{"type":"object","properties":{"a":{"minimum":1}},"required":["a"]},{"properties":{"a":{"type":"integer","maximum":3},"b":{}}}]})",
       {R"({"a":2})", R"({"a":3,"b":0})"},
       {R"({"a":0})", R"({"a":2.5})", R"({"b":0})", "1"}},
      {"oneOf apart",
       R"({"oneOf":[{"type":"integer"},{"type":"string"}]})",
       {"1", R"("a")"},
       {"null"}},
      {"oneOf that overlaps",
       R"({"oneOf":[{"type":"integer","minimum":3},{"type":"integer","maximum":5}]})",
       {"6", "2"},
       {"4", "3", "5"}},
      {"oneOf of objects",
       R"({"oneOf":[{"type":"object","required":["a"]},{"type":"object","required":["b"]}]})",
       {R"({"a":1})", R"({"b":1})"},
       {R"({"a":1,"b":1})", "{}"}},
      {"not",
       R"({"type":"object","properties":{"a":{"not":{"type":"string"}},"b":{"not":{"enum":[1,2]}}},"not":{"required":["a","b"]}})",
       {R"({"a":1})", R"({"b":3})"},
       {R"({"a":"x"})", R"({"b":1})", R"({"a":1,"b":3})"}},
      {"if then else",
       R"({"type":"object","properties":{"k":{"enum":["x","y"]},"v":{}},"required":["k","v"],"if":{"properties":{"k":{"const":"x"}}},"then":{"properties":{"v":{"type":"integer"}}},"else":{"properties":{"v":{"type":"string"}}}})",
       {R"({"k":"x","v":1})", R"({"k":"y","v":"s"})"},
       {R"({"k":"x","v":"s"})", R"({"k":"y","v":1})"}},
      {"unevaluatedProperties",
       R"({"type":"object","allOf":[{"properties":{"a":{}}}],"anyOf":[{"properties":{"b":{}},"required":["b"]},{"properties":{"c":{}},"required":["c"]}],"unevaluatedProperties":false})",
       {R"({"a":1,"b":1})", R"({"b":1,"c":1})"},
       {R"({"a":1})", R"({"b":1,"d":1})"}},
  });
}

TEST(JsonSchema, References) {
  check({
      {"recursion",
       R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["next"],"additionalProperties":false}}})",
       {R"({"next":null})", R"({"next":{"next":{"next":null}}})"},
       {"{}", R"({"next":{}})"}},
      {"anchors and identifiers",
       R"({"$id":"http://x.test/r","$ref":"other#here","$defs":{"o":{"$id":"other","$defs":{"h":{"$anchor":"here","type":"integer"}}}}})",
       {"1"},
       {R"("a")"}},
      {"beside a reference",
       R"({"$ref":"#/$defs/i","minimum":5,"$defs":{"i":{"type":"integer"}}})",
       {"5"},
       {"4", "5.5"}},
      {"beside a reference in draft 7 nothing counts",
       R"({"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"$ref":"#/definitions/i","minimum":5}},"type":"object","definitions":{"i":{"type":"integer"}}})",
       {R"({"a":4})"},
       {R"({"a":1.5})"}},
      {"escapes of pointers",
       R"({"$ref":"#/$defs/a~1b%25","$defs":{"a/b%":{"type":"null"}}})",
       {"null"},
       {"1"}},
      {"an integer of draft 4 has no fraction",
       R"({"$schema":"http://json-schema.org/draft-04/schema#","type":"integer"})",
       {"1", "-20"},
       {"1.0", "1e2"}},
      {"the limit of draft 4",
       R"({"$schema":"http://json-schema.org/draft-04/schema#","type":"number","minimum":1,"exclusiveMinimum":true})",
       {"1.1"},
       {"1"}},
  });
}

TEST(JsonSchema, WhiteSpaceIsBounded) {
  const auto grammar = compiled(R"({"type":"array","items":{"type":"integer"}})");
  ASSERT_TRUE(grammar);
  const auto ok = [&](const std::string& text) {
    return Matcher(*grammar).accepts_bytes(text).complete;
  };
  EXPECT_TRUE(ok("[" + std::string(8, ' ') + "1" + std::string(8, '\n') + "," + "2 ]"));
  EXPECT_FALSE(ok("[" + std::string(9, ' ') + "1]"));
  EXPECT_FALSE(ok("[1" + std::string(9, ' ') + "]"));
  EXPECT_TRUE(ok("[1]"));
  EXPECT_FALSE(ok(" [1]"));  // the text is the value alone
  EXPECT_FALSE(ok("[1] "));
  EXPECT_FALSE(ok("[1]\n"));
  const auto tight = compiled("{}", {.max_whitespace = 0});
  ASSERT_TRUE(tight);
  EXPECT_TRUE(Matcher(*tight).accepts_bytes("[1,{}]").complete);
  EXPECT_FALSE(Matcher(*tight).accepts_bytes("[1, {}]").complete);
}

TEST(JsonSchema, RefusalsNameThePlaceAndTheReason) {
  struct Refusal {
    const char *schema, *where, *says;
    ErrorCode code;
  };
  for (const Refusal& r : std::vector<Refusal>{
           {"false", "#", "some value satisfies", ErrorCode::kInvalidArgument},
           {R"({"type":"object","properties":{"a":false},"required":["a"]})", "#", "some value",
            ErrorCode::kInvalidArgument},
           {R"({"type":"string","minLength":3,"maxLength":2})", "#", "some value",
            ErrorCode::kInvalidArgument},
           {R"({"type":"string","pattern":"^a$","minLength":2})", "#", "some value",
            ErrorCode::kInvalidArgument},
           {R"({"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"]})", "#",
            "some value", ErrorCode::kInvalidArgument},
           {R"({"$ref":"http://x.test/s"})", "#/$ref", "inside this document",
            ErrorCode::kUnsupported},
           {R"({"$ref":"#/$defs/none"})", "#/$ref", "a place in this document",
            ErrorCode::kNotFound},
           {R"({"$ref":"a","$defs":{"x":{"$id":"a","type":"null"},"y":{"$id":"a"}}})", "#/$ref",
            "identifiers that differ", ErrorCode::kInvalidArgument},
           {R"({"$ref":"#a","$defs":{"x":{"$anchor":"a","type":"null"},"y":{"$anchor":"a"}}})",
            "#/$ref", "identifiers that differ", ErrorCode::kInvalidArgument},
           {R"({"$ref":"#"})", "#", "leads back to itself", ErrorCode::kUnsupported},
           {R"({"properties":{"p":{"type":"string","pattern":"(a)\\1"}}})",
            "#/properties/p/pattern", "", ErrorCode::kUnsupported},
           {R"({"type":"array","items":{"type":"string"},"uniqueItems":true})", "#", "uniqueItems",
            ErrorCode::kUnsupported},
           {R"({"type":"object","minProperties":3})", "#", "minProperties 3",
            ErrorCode::kUnsupported},
           {R"({"type":"strin"})", "#/type", "expected null, boolean", ErrorCode::kInvalidArgument},
           {R"({"type":"string","minLength":"3"})", "#/minLength", "whole number",
            ErrorCode::kInvalidArgument},
           {R"({"$schema":"http://x.test/my"})", "#/$schema", "2020-12", ErrorCode::kUnsupported},
           {R"({"allOf":{}})", "#/allOf", "a list of schemas", ErrorCode::kInvalidArgument},
           {"3", "#", "expected a schema", ErrorCode::kInvalidArgument},
       }) {
    const auto got = compiled(r.schema);
    ASSERT_FALSE(got) << r.schema;
    EXPECT_EQ(got.error().where, r.where) << r.schema << ": " << got.error().message;
    EXPECT_NE(got.error().message.find(r.says), std::string::npos)
        << r.schema << ": " << got.error().message;
    EXPECT_EQ(got.error().code, r.code) << r.schema;
  }
}

// What could take forever ends soon, with a grammar or with a name.
TEST(JsonSchema, BombsEndSoon) {
  std::vector<std::string> bombs;
  std::string defs = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 2000; ++i)
    defs += "\"d" + std::to_string(i) + "\":{\"$ref\":\"#/$defs/d" + std::to_string(i + 1) + "\"},";
  bombs.push_back(defs + R"("d2000":{"type":"null"}}})");
  std::string doubling = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 40; ++i) {
    const std::string next = "{\"$ref\":\"#/$defs/d" + std::to_string(i + 1) + "\"}";
    doubling += "\"d" + std::to_string(i) + "\":{\"allOf\":[" + next + "," + next + "]},";
  }
  bombs.push_back(doubling + R"("d40":{"type":"null"}}})");
  std::string choices = R"({"allOf":[)";
  for (int i = 0; i < 40; ++i) {
    const std::string key = "k" + std::to_string(i);
    choices += std::string(i ? "," : "") + R"({"anyOf":[{"required":[")" + key +
               R"(a"]},{"required":[")" + key + R"(b"]}]})";
  }
  bombs.push_back(choices + "]}");
  std::string wide = R"({"enum":[)";
  for (int i = 0; i < 10000; ++i)
    wide += std::string(i ? "," : "") + "\"value-" + std::to_string(i * 7919) + "\"";
  bombs.push_back(wide + "]}");
  std::string objects = R"({"oneOf":[)";
  for (int i = 0; i < 300; ++i)
    objects += std::string(i ? "," : "") + R"({"type":"object","properties":{"a)" +
               std::to_string(i) + R"(":{"type":"integer"}}})";
  bombs.push_back(objects + "]}");
  bombs.push_back(
      R"({"type":"array","items":{"type":"array","items":{"type":"string","maxLength":1000000000},"maxItems":1000000000},"minItems":1000000})");
  bombs.push_back(R"({"type":"string","pattern":"^((a{0,100}){0,100}){0,100}$","minLength":5000})");
  bombs.push_back(R"({"type":"number","multipleOf":0.00000000000000001,"minimum":-1e308})");
  bombs.push_back(R"({"type":"array","contains":{"const":1},"minContains":100000})");
  bombs.push_back(
      R"({"not":{"not":{"not":{"not":{"properties":{"a":{"$ref":"#"}},"required":["a"]}}}}})");
  for (const std::string& bomb : bombs) {
    const std::clock_t start = std::clock();  // of the processor: a busy machine is no bomb
    const auto got = compiled(bomb);
    const double s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_LT(s, 10) << bomb.substr(
        0, 100);  // seconds even under sanitizers; milliseconds in a release
    if (!got) {
      EXPECT_FALSE(got.error().message.empty());
    }
    std::printf("%6.1f ms  %s  %s\n", s * 1000, bomb.substr(0, 40).c_str(),
                got ? "compiles" : got.error().str().c_str());
  }
}

}  // namespace
}  // namespace deepmint::grammar
