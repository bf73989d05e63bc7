// Our own reading of model output: the better cases of parse_vectors.json, the parser's share of
// traps.json, and the property that every way to cut the output gives the same segments.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "recipe/output_parser.h"
#include "recipe/tag_lexer.h"
#include "recipe/testing/requests.h"

namespace deepmint::recipe {
namespace {

struct Segment {
  std::string type, text, name;
  bool complete = true;
  bool operator==(const Segment&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Segment& s) {
  return out << s.type << "[" << s.name << "](" << s.text << ")"
             << (s.complete ? "" : " incomplete");
}

struct Collect final : OutputSink {
  void reasoning(std::string_view s) override { piece("reasoning", s); }
  void text(std::string_view s) override { piece("text", s); }
  void tool_begin(std::string_view name) override {
    out.push_back({"tool_call", "", std::string(name), true});
  }
  void tool_arguments(std::string_view s) override { out.back().text += s; }
  void tool_end(bool complete) override { out.back().complete = complete; }
  void piece(std::string_view type, std::string_view s) {
    if (out.empty() || out.back().type != type) out.push_back({std::string(type), "", "", true});
    out.back().text += s;
  }
  std::vector<Segment> out;
};

struct Parsed {
  std::vector<Segment> segments;
  FinishReason reason;
  bool operator==(const Parsed&) const = default;
};

struct Options {
  ParsingOptions parsing;
  std::vector<Tool> tools;
  std::optional<BackendFinish> finish = BackendFinish::kStop;
};

Parsed parse(const std::vector<std::string>& chunks, const Options& o) {
  Collect sink;
  const auto parser = OutputParser::create(o.parsing, o.tools, Compat::kOurs, sink);
  for (const std::string& c : chunks) parser->push(c);
  parser->finish();
  return {sink.out, parser->finish_reason(o.finish)};
}

// Pieces of whole characters, `size()` of them each.
template <class Size>
std::vector<std::string> cut(const std::string& s, Size size) {
  std::vector<std::string> out;
  size_t left = 0;
  for (const char c : s) {
    const bool starts = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (starts && left-- == 0) {
      out.emplace_back();
      left = size() - 1;
    }
    out.back().push_back(c);
  }
  return out;
}

// Parses whole and at many cuts; all must agree.
Parsed parse_all(const std::string& s, const Options& o = {}) {
  const Parsed whole = parse({s}, o);
  for (size_t n = 1; n < 9; ++n) {
    const auto chunks = cut(s, [n] { return n; });
    EXPECT_EQ(parse(chunks, o).segments, whole.segments) << "pieces of " << n << ": " << s;
  }
  return whole;
}

std::string call(const std::string& body) {
  return "<｜DSML｜ calls>\n" + body + "\n</｜DSML｜ calls>";
}
std::string invoke(const std::string& name, const std::string& body) {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + body + "\n</｜DSML｜ invoke>";
}
std::string parameter(const std::string& name, const std::string& value,
                      const std::string& attribute = " string=\"true\"") {
  return "<｜DSML｜ parameter name=\"" + name + "\"" + attribute + ">" + value +
         "</｜DSML｜ parameter>";
}
Segment tool(const std::string& name, const std::string& arguments, bool complete = true) {
  return {"tool_call", arguments, name, complete};
}
Segment text(const std::string& s) { return {"text", s, "", true}; }
Segment reasoning(const std::string& s) { return {"reasoning", s, "", true}; }
using Segments = std::vector<Segment>;

Options thinking() {
  Options o;
  o.parsing.stage = ThinkingStage::kStart;
  return o;
}
Options plain() {
  Options o;
  o.parsing.parse_tool_calls = false;
  return o;
}

// ---- the better cases of the vectors, each by its name

const json::Value& entry(const json::Value& list, const std::string& name) {
  const auto it = std::find_if(list.items().begin(), list.items().end(), [&](const json::Value& v) {
    return v.find("name")->as_string() == name;
  });
  EXPECT_NE(it, list.items().end()) << name;
  return *it;
}

// Parses the text of a better case (its own, or that of the vector it is like) with that vector's
// options at every cut, and compares with what it wants.
void check_better(const std::string& name) {
  static const json::Value kAll = deepmint::testing::spec_file("parse_vectors.json");
  const json::Value& want = entry(*kAll.find("better"), name);
  const json::Value& source = want.find("like") == nullptr
                                  ? want
                                  : entry(*kAll.find("recipe"), want.find("like")->as_string());
  Options o;
  if (const json::Value* options = source.find("options")) {
    const json::Value* calls = options->find("parse_tool_calls");
    const json::Value* json_output = options->find("parse_json_output");
    o.parsing.parse_tool_calls = calls == nullptr || calls->as_bool();
    o.parsing.parse_json_output = json_output != nullptr && json_output->as_bool();
  }
  if (const json::Value* finish = source.find("backend_finish"); finish != nullptr)
    o.finish = !finish->is_string()              ? std::nullopt
               : finish->as_string() == "length" ? std::optional(BackendFinish::kLength)
                                                 : std::optional(BackendFinish::kStop);
  const Parsed p = parse_all(source.find("text")->as_string(), o);
  if (const json::Value* reason = want.find("want_finish")) {
    EXPECT_EQ(to_string(p.reason), reason->as_string());
  }
  const json::Value* segments = want.find("want");
  if (segments == nullptr) return;
  Segments expected;
  for (const json::Value& s : segments->items()) {
    const bool is_call = s.find("type")->as_string() == "tool_call";
    expected.push_back({s.find("type")->as_string(),
                        s.find(is_call ? "arguments" : "text")->as_string(),
                        is_call ? s.find("name")->as_string() : "", true});
  }
  Segments found = p.segments;
  for (Segment& s : found) s.complete = true;  // the vectors do not say; the finish reason does
  EXPECT_EQ(found, expected);
}

TEST(Better, better_missing_string_attribute) { check_better("better_missing_string_attribute"); }
TEST(Better, better_truncated_value_length) { check_better("better_truncated_value_length"); }
TEST(Better, better_truncated_value_stop) { check_better("better_truncated_value_stop"); }
TEST(Better, better_name_with_quote) { check_better("better_name_with_quote"); }
TEST(Better, better_nonstring_invalid_json) { check_better("better_nonstring_invalid_json"); }
TEST(Better, better_lone_dsml) { check_better("better_lone_dsml"); }
TEST(Better, better_literal_close_in_value) { check_better("better_literal_close_in_value"); }
TEST(Better, better_json_trailing) { check_better("better_json_trailing"); }
TEST(Better, better_doubled_bar_marker) { check_better("better_doubled_bar_marker"); }

TEST(Lenient, MissingStringAttributeIsAString) {
  const Parsed p = parse_all(call(invoke("f", parameter("a", "x", ""))));
  EXPECT_EQ(p.segments, Segments{tool("f", R"({"a": "x"})")});
  EXPECT_EQ(p.reason, FinishReason::kToolCalls);
}

TEST(Lenient, TruncatedCallIsNeverReportedAsToolCalls) {
  const std::string cut_off =
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter "
      "name=\"location\" string=\"true\">Par";
  Options o;
  o.finish = BackendFinish::kLength;
  Parsed p = parse_all(cut_off, o);
  EXPECT_EQ(p.segments, Segments{tool("get_weather", R"({"location": "Par)", false)});
  EXPECT_EQ(p.reason, FinishReason::kLength);
  p = parse_all(cut_off);
  EXPECT_EQ(p.reason, FinishReason::kMalformedToolCall);
}

TEST(Lenient, NamesAreEscaped) {
  EXPECT_EQ(parse_all(call(invoke("f", parameter("a\\b", "x")))).segments,
            Segments{tool("f", R"({"a\\b": "x"})")});
  EXPECT_EQ(parse_all(call(invoke("f", parameter("a\"b", "x")))).segments,
            Segments{tool("f", R"({"a\"b": "x"})")});
  EXPECT_EQ(parse_all(call(invoke("f", parameter("shipping address", "x")))).segments,
            Segments{tool("f", R"({"shipping address": "x"})")});
}

TEST(Lenient, ValuesThatAreNotJsonBecomeStrings) {
  const std::string json = " string=\"false\"";
  const std::string body = parameter("o", "{\"k\": [1, null, true]}", json) + "\n" +
                           parameter("n", " 3 ", json) + "\n" + parameter("bad", "{oops", json) +
                           "\n" + parameter("huge", "1e999", json) + "\n" +
                           parameter("none", "", json);
  EXPECT_EQ(
      parse_all(call(invoke("f", body))).segments,
      Segments{tool(
          "f",
          R"({"o": {"k": [1, null, true]}, "n": 3, "bad": "{oops", "huge": "1e999", "none": ""})")});
}

TEST(Lenient, LoneMarkerIsText) {
  EXPECT_EQ(parse_all("See <｜DSML｜ in text").segments, Segments{text("See <｜DSML｜ in text")});
  EXPECT_EQ(parse_all("See <｜DSML｜").segments, Segments{text("See <｜DSML｜")});
  EXPECT_EQ(parse_all("a\n\n<｜DSM b").segments, Segments{text("a\n\n<｜DSM b")});
}

TEST(Traps, close_literal_in_value) {
  EXPECT_EQ(parse_all(call(invoke("w", parameter("t", "say </｜DSML｜ parameter> now")))).segments,
            Segments{tool("w", R"({"t": "say </｜DSML｜ parameter> now"})")});
  EXPECT_EQ(
      parse_all(call(invoke(
                    "w", parameter("t", "</｜DSML｜ invoke> </｜DSML｜ calls> <｜DSML｜ calls>"))))
          .segments,
      Segments{tool("w", R"({"t": "</｜DSML｜ invoke> </｜DSML｜ calls> <｜DSML｜ calls>"})")});
}

TEST(Lenient, JsonEndsWhereItsNestingEnds) {
  Options o = plain();
  o.parsing.parse_json_output = true;
  EXPECT_EQ(parse_all("{\"a\": 1} trailing", o).segments, Segments{text("{\"a\": 1}")});
  EXPECT_EQ(parse_all("Here: {\"a\": \"}{\\\"\"}\n```\nbye", o).segments,
            Segments{text("{\"a\": \"}{\\\"\"}")});
  EXPECT_EQ(parse_all("```json\n[[1], {}]\n```", o).segments, Segments{text("[[1], {}]")});
  EXPECT_EQ(parse_all("no json at all", o).segments,
            Segments{text("no json at all")});  // never an empty answer
}

TEST(Traps, marker_variants) {
  for (const std::string bars : {"｜｜", "||", "‖", "|"}) {
    const std::string d = bars + "DSML" + bars;
    const std::string s = "<" + d + "tool_calls>\n<" + d + "invoke name=\"f\">\n<" + d +
                          "parameter name=\"a\" string=\"true\">x</" + d + "parameter>\n</" + d +
                          "invoke>\n</" + d + "tool_calls>";
    EXPECT_EQ(parse_all(s).segments, Segments{tool("f", R"({"a": "x"})")}) << bars;
    EXPECT_EQ(parse_all("Text\n" + s).segments,
              (Segments{text("Text"), tool("f", R"({"a": "x"})")}))
        << bars;
    const std::string opener = s.substr(0, s.find('\n'));
    EXPECT_EQ(parse_all("In a line " + opener).segments, Segments{text("In a line " + opener)})
        << bars;  // a quotation
    EXPECT_EQ(parse_all(s, plain()).segments, Segments{text(s)}) << "no tools declared";
  }
  EXPECT_EQ(parse_all("< | DSML | tool_use>\n< | DSML | invoke name=\"f\">\n</ | DSML | invoke>")
                .segments,
            Segments{tool("f", "{}")});
}

// ---- traps (traps_test.cc has the others and the check that none is missing)

TEST(Traps, partial_close_in_value) {
  EXPECT_EQ(parse_all(call(invoke("sh", parameter("c", "ls 2>&1 </dev/null | grep \"<x>\" </"))))
                .segments,
            Segments{tool("sh", R"({"c": "ls 2>&1 </dev/null | grep \"<x>\" </"})")});
}

TEST(Traps, long_arg_buffering) {
  Collect sink;
  const auto parser = OutputParser::create({}, {}, Compat::kOurs, sink);
  parser->push(
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"write_file\">\n<｜DSML｜ parameter name=\"text\" "
      "string=\"true\">");
  size_t seen = sink.out.back().text.size();
  for (int i = 0; i < 100; ++i) {
    parser->push("fifty characters of a file that is written, by piece");
    EXPECT_GT(sink.out.back().text.size(), seen + 40);  // every piece comes through at once
    seen = sink.out.back().text.size();
  }
}

TEST(Traps, missing_think_close) {
  const std::string block = call(invoke("f", parameter("a", "x")));
  EXPECT_EQ(parse_all("I need data.\n\n" + block, thinking()).segments,
            (Segments{reasoning("I need data."), tool("f", R"({"a": "x"})")}));
  EXPECT_EQ(parse_all("r</think>\n\n" + block + "</think>", thinking()).segments,
            (Segments{reasoning("r"), tool("f", R"({"a": "x"})")}));
}

TEST(Traps, malformed_wrappers) {
  const std::string body =
      "<｜DSML｜tool_calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
      "string=\"true\">x</｜DSML｜ parameter>\n"
      "</｜DSML｜invoke>\n</｜DSML｜ calls>";
  EXPECT_EQ(parse_all(body).segments, Segments{tool("f", R"({"a": "x"})")});
  std::string looping = body;
  for (int i = 0; i < 50; ++i) looping += "</invoke></｜DSML｜tool_calls>";
  EXPECT_EQ(parse_all(looping).segments, Segments{tool("f", R"({"a": "x"})")});
  Collect sink;
  const auto parser = OutputParser::create({}, {}, Compat::kOurs, sink);
  parser->push(body);
  EXPECT_TRUE(parser->wants_stop());  // the block close ends generation
}

TEST(Traps, missing_outer_close) {
  const std::string open = "<｜DSML｜ calls>\n";
  EXPECT_EQ(parse_all(open + invoke("f", parameter("a", "x"))).segments,
            Segments{tool("f", R"({"a": "x"})")});
  EXPECT_EQ(parse_all(open + invoke("f", parameter("a", "x"))).reason, FinishReason::kToolCalls);
  EXPECT_EQ(parse_all(call("<｜DSML｜ invoke name=\"f\">\n" + parameter("a", "x"))).segments,
            Segments{tool("f", R"({"a": "x"})")});
  EXPECT_EQ(parse_all(call("<｜DSML｜ invoke name=\"f\">\n" + parameter("a", "x") + "\n" +
                           invoke("g", "")))
                .segments,
            (Segments{tool("f", R"({"a": "x"})"), tool("g", "{}")}));
  EXPECT_EQ(parse_all(call("<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" "
                           "string=\"true\">x</｜DSML｜ invoke>"))
                .segments,
            Segments{tool("f", R"({"a": "x"})")});
}

TEST(Traps, malformed_nested) {
  const std::string nested = "<｜DSML｜ parameter name=\"edit\">\n" + parameter("from", "a") +
                             "\n" + parameter("n", "2", " string=\"false\"") +
                             "\n</｜DSML｜ parameter>";
  EXPECT_EQ(parse_all(call(invoke("f", nested + "\n" + parameter("z", "y")))).segments,
            Segments{tool("f", R"({"edit": {"from": "a", "n": 2}, "z": "y"})")});
}

TEST(Traps, malformed_nested__sole_arguments_object) {
  Options o;
  Tool t;
  t.name = "f";
  t.parameters = *json::parse(R"({"type":"object","properties":{"a":{"type":"string"}}})");
  o.tools.push_back(t);
  EXPECT_EQ(
      parse_all(call(invoke("f", parameter("arguments", "{\"a\": \"x\"}", " string=\"false\""))), o)
          .segments,
      Segments{tool("f", R"({"a": "x"})")});
  EXPECT_EQ(parse_all(call(invoke("f", parameter("arguments", "not an object"))), o).segments,
            Segments{tool("f", R"({"arguments": "not an object"})")});
  EXPECT_EQ(
      parse_all(call(invoke("f", parameter("arguments", "{}") + "\n" + parameter("b", "y"))), o)
          .segments,
      Segments{tool("f", R"({"arguments": "{}", "b": "y"})")});
  o.tools[0].parameters =
      *json::parse(R"({"type":"object","properties":{"arguments":{"type":"object"}}})");
  EXPECT_EQ(
      parse_all(call(invoke("f", parameter("arguments", "{\"a\": 1}", " string=\"false\""))), o)
          .segments,
      Segments{tool("f", R"({"arguments": {"a": 1}})")});
}

TEST(Traps, custom_exec__namespace_prefix) {
  Options o;
  for (const std::string name : {"exec", "weather::now"}) {
    Tool t;
    t.name = name;
    o.tools.push_back(t);
  }
  EXPECT_EQ(parse_all(call(invoke("functions__exec", "")), o).segments,
            Segments{tool("exec", "{}")});
  EXPECT_EQ(parse_all(call(invoke("now", "")), o).segments, Segments{tool("weather::now", "{}")});
  EXPECT_EQ(parse_all(call(invoke("unknown", "")), o).segments, Segments{tool("unknown", "{}")});
}

TEST(Lenient, TwoBlocksInOneAnswer) {
  EXPECT_EQ(parse_all(call(invoke("f", "")) + "\n" + call(invoke("g", ""))).segments,
            (Segments{tool("f", "{}"), tool("g", "{}")}));
  EXPECT_EQ(parse_all(call(invoke("f", "")) + "\n\nDone, thanks.").segments,
            Segments{tool("f", "{}")});
}

TEST(Traps, stop_newline) {
  Options o = plain();
  o.parsing.stage = ThinkingStage::kStart;
  o.parsing.stop_sequences = {"\n"};
  const Parsed p = parse_all("r</think>\n\nAnswer\nmore", o);
  EXPECT_EQ(p.segments, (Segments{reasoning("r"), text("Answer")}));
  EXPECT_EQ(p.reason, FinishReason::kStopSequence);
}

TEST(Lenient, StopStringsOnlyInTheAnswer) {
  Options o = thinking();
  o.parsing.stop_sequences = {"END", "Paris"};
  EXPECT_EQ(parse_all("think END more</think>answer END tail", o).segments,
            (Segments{reasoning("think END more"), text("answer ")}));
  EXPECT_EQ(parse_all("</think>" + call(invoke("f", parameter("a", "Paris"))), o).segments,
            Segments{tool("f", R"({"a": "Paris"})")});
  EXPECT_EQ(parse_all("</think>xEN", o).segments, Segments{text("xEN")});
}

TEST(Traps, effort_empty_answer__parser) {
  Options o = thinking();
  o.finish = BackendFinish::kLength;
  const Parsed p = parse_all("on and on", o);
  EXPECT_EQ(p.segments, Segments{reasoning("on and on")});
  EXPECT_EQ(p.reason, FinishReason::kLength);
}

TEST(Lenient, TextIsPassedOnAtOnce) {
  Collect sink;
  const auto parser = OutputParser::create({}, {}, Compat::kOurs, sink);
  parser->push("Hello <");
  EXPECT_EQ(sink.out, Segments{text("Hello ")});
  parser->push("b>");
  EXPECT_EQ(sink.out, Segments{text("Hello <b>")});
}

// ---- token ids
// ----------------------------------------------------------------------------------------------------------------

Segments parse_ids(const std::vector<std::pair<bool, std::string>>& pieces, const Options& o) {
  Collect sink;
  const auto parser = OutputParser::create(o.parsing, o.tools, Compat::kOurs, sink);
  parser->expect_control_tokens();
  for (const auto& [control, s] : pieces) {
    if (!control) {
      parser->push(s);
    } else {
      parser->push_control(s == "｜DSML｜"   ? ControlToken::kDsml
                           : s == "</think>" ? ControlToken::kThinkClose
                                             : ControlToken::kOther,
                           s);
    }
  }
  parser->finish();
  return sink.out;
}

TEST(Traps, close_literal_in_value__token_ids) {
  const std::string d = "｜DSML｜";
  const auto tags = [&](const std::string& value) {
    return std::vector<std::pair<bool, std::string>>{
        {false, "see </think> and\n\n<"},
        {true, d},
        {false, " calls>\n<"},
        {true, d},
        {false, " invoke name=\"w\">\n<"},
        {true, d},
        {false, " parameter name=\"t\" string=\"true\">" + value + "</"},
        {true, d},
        {false, " parameter>\n</"},
        {true, d},
        {false, " invoke>\n</"},
        {true, d},
        {false, " calls>"}};
  };
  // The value holds a whole text that looks like the end of the call.
  const std::string bait = "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  std::string escaped = bait;
  for (size_t i = 0; (i = escaped.find('\n', i)) != std::string::npos; i += 2)
    escaped.replace(i, 1, "\\n");
  EXPECT_EQ(parse_ids(tags(bait), {}),
            (Segments{text("see </think> and"), tool("w", "{\"t\": \"" + escaped + "\"}")}));
  const Options o = thinking();
  EXPECT_EQ(parse_ids({{false, "a </think> b\n"}, {true, "</think>"}, {false, "\n\nc"}}, o),
            (Segments{reasoning("a </think> b"), text("c")}));
  EXPECT_EQ(parse_ids({{false, "x "}, {true, d}, {false, " y"}, {true, "<｜User｜>"}}, {}),
            Segments{text("x ｜DSML｜ y<｜User｜>")});
}

TEST(Lenient, WithoutParallelCallsTheFirstOneEndsTheOutput) {
  Options o;
  o.parsing.single_call = true;
  const std::string two = call(invoke("f", parameter("a", "x")) + "\n" + invoke("g", "")) + "\n" +
                          call(invoke("h", ""));
  const Parsed p = parse_all("Hm.\n\n" + two, o);
  EXPECT_EQ(p.segments, (Segments{text("Hm."), tool("f", R"({"a": "x"})")}));
  EXPECT_EQ(p.reason, FinishReason::kToolCalls);
  Collect sink;
  const auto parser = OutputParser::create(o.parsing, {}, Compat::kOurs, sink);
  parser->push(two.substr(0, two.find("</｜DSML｜ invoke>")));
  EXPECT_FALSE(parser->wants_stop());
  parser->push("</｜DSML｜ invoke>");
  EXPECT_TRUE(parser->wants_stop());
  // The close of the first call was forgotten.
  EXPECT_EQ(
      parse_all(
          call("<｜DSML｜ invoke name=\"f\">\n" + parameter("a", "x") + "\n" + invoke("g", "")), o)
          .segments,
      Segments{tool("f", R"({"a": "x"})")});
}

// A marker token inside a name is no part of a name: its byte in the parser's buffer must not reach
// the client. (Found by recipe_reply_fuzz.)
TEST(Lenient, MarkerTokensInsideNames) {
  const std::string d = "｜DSML｜";
  const Segments out = parse_ids({{false, "a\n<"},
                                  {true, d},
                                  {false, " calls>\n<"},
                                  {true, d},
                                  {false, " invoke name=\"f"},
                                  {true, d},
                                  {false, "g\">\n<"},
                                  {true, d},
                                  {false, " invoke name=\"h\">\n<"},
                                  {true, d},
                                  {false, " parameter name=\"x"},
                                  {true, "</think>"},
                                  {false, "\" string=\"true\">v"}},
                                 {});
  for (const Segment& s : out)
    for (const std::string& part : {s.name, s.text})
      EXPECT_EQ(part.find_first_of("\xF8\xF9"), std::string::npos) << s;
}

// ---- properties
// ---------------------------------------------------------------------------------------------------------------

std::string random_output(std::mt19937& r) {
  static const std::vector<std::string> kPieces = {
      "a",
      " ",
      "\n",
      "\n\n",
      "日",
      "<",
      "</",
      "</think>",
      "<｜DSML｜",
      "<｜DSML｜ calls>",
      "</｜DSML｜ calls>\n",
      "<｜DSML｜ invoke name=\"f\">\n",
      "</｜DSML｜ invoke>",
      "<｜DSML｜ parameter name=\"a\" string=\"true\">",
      "<｜DSML｜ parameter name=\"b\" string=\"false\">",
      "<｜DSML｜ parameter name=\"c\">",
      "</｜DSML｜ parameter>",
      "1",
      "{\"x\": 1}",
      "\"",
      "\\",
      "END",
      "<|DSML|invoke name=\"g\">",
      "name=\"",
      ">",
      "｜"};
  std::string s;
  for (int n = static_cast<int>(r() % 30); n > 0; --n) s += kPieces[r() % kPieces.size()];
  return s;
}

TEST(Property, EveryCutGivesTheSameSegmentsAndArgumentsParse) {
  const auto* env = std::getenv("DEEPMINT_SEED");
  const uint32_t seed =
      env != nullptr ? static_cast<uint32_t>(std::atoi(env)) : std::random_device{}();
  std::mt19937 r(seed);
  for (int i = 0; i < 20000; ++i) {
    const std::string s = random_output(r);
    Options o;
    o.parsing.stage = r() % 2 == 0 ? ThinkingStage::kStart : ThinkingStage::kOff;
    o.parsing.parse_json_output = r() % 8 == 0;
    o.parsing.parse_tool_calls = r() % 4 != 0;
    if (r() % 4 == 0) o.parsing.stop_sequences = {"END", "\n\n", "a<"};
    const Parsed whole = parse({s}, o);
    const Parsed pieces = parse(cut(s, [&] { return 1 + r() % 4; }), o);
    ASSERT_EQ(whole, pieces) << "DEEPMINT_SEED=" << seed << " case " << i << "\n" << s;
    for (const Segment& g : whole.segments) {
      if (g.type == "tool_call" && g.complete) {
        ASSERT_TRUE(json::parse(g.text).has_value()) << "DEEPMINT_SEED=" << seed << "\n"
                                                     << s << "\n"
                                                     << g.text;
      }
      ASSERT_EQ(g.text.find('\xF8'), std::string::npos);
    }
    if (!whole.segments.empty() && !whole.segments.back().complete) {
      ASSERT_NE(whole.reason, FinishReason::kToolCalls);
    }
  }
}

TEST(TagLexer, EveryPrefixOfATagAsksForMore) {
  for (const std::string tag :
       {"<｜DSML｜ calls>", "</｜DSML｜tool_calls>", "<｜DSML｜ invoke name=\"f\">",
        "<｜DSML｜ parameter name=\"a b\" string=\"true\">", "< | DSML | tool_use>",
        "<‖DSML‖invoke name=\"x\">"}) {
    const Tag whole = lex_tag(tag, false, false);
    EXPECT_EQ(whole.status, Tag::Status::kYes) << tag;
    EXPECT_EQ(whole.length, tag.size());
    for (size_t n = 1; n < tag.size(); ++n)
      EXPECT_EQ(lex_tag(tag.substr(0, n), false, false).status, Tag::Status::kMore)
          << tag.substr(0, n);
  }
  for (const std::string no : {"<b>", "</div>", "<｜User｜>", "<｜DSML｜ in text", "<|im_start|>",
                               "<DSML>", "<｜DSML｜ invoke>", "<｜DSML｜ calls x>"})
    EXPECT_EQ(lex_tag(no, false, false).status, Tag::Status::kNo) << no;
  EXPECT_EQ(lex_tag("<｜DSML｜ invoke name=\"" + std::string(5000, 'x'), false, false).status,
            Tag::Status::kNo);
}

}  // namespace
}  // namespace deepmint::recipe
