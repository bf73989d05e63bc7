// The fixed vectors of tests/spec/recipe (deepseek-recipe 0.1): prompts, conversions, error texts,
// parses at every cut, event streams of the three protocols, number spelling.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "recipe/codec_cli.h"
#include "recipe/spelling.h"
#include "recipe/testing/requests.h"

namespace deepmint::recipe {
namespace {

using json::Value;

using deepmint::testing::spec_file;

// Equality in which the order of object members does not matter.
bool same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is_array()) {
    return a.items().size() == b.items().size() &&
           std::equal(a.items().begin(), a.items().end(), b.items().begin(), same);
  }
  if (a.is_object()) {
    if (a.members().size() != b.members().size()) return false;
    return std::all_of(a.members().begin(), a.members().end(), [&](const json::Member& m) {
      const Value* other = b.find(m.key);
      return other != nullptr && same(m.value, *other);
    });
  }
  if (a.is_number()) return a.to_double() == b.to_double();
  return a == b;
}

std::string text(const Value& v, std::string_view key) { return v.find(key)->as_string(); }

Value run(json::Writer& w) {
  auto out = json::parse(run_codec_case(w.str(), {}));
  EXPECT_TRUE(out.has_value());
  return out ? *out : Value();
}

json::Writer begin(std::string_view op) {
  json::Writer w;
  w.begin_object().key("op").value(op).key("compat").value("0.1");
  return w;
}

// What becomes of a vector's request.
Value encoded(const Value& v) {
  json::Writer w = begin("encode");
  w.key("protocol")
      .value(*v.find("protocol"))
      .key("request")
      .value(*v.find("request"))
      .end_object();
  return run(w);
}

TEST(Vectors, Prompts) {
  int n = 0;
  const Value all = spec_file("prompt_vectors.json");
  for (const Value& v : all.find("vectors")->items()) {
    for (const std::string_view version : {"v4", "v4.1"}) {
      json::Writer w = begin("render");
      w.key("version")
          .value(version)
          .key("conversation")
          .value(*v.find("conversation"))
          .end_object();
      const Value got = run(w);
      EXPECT_EQ(text(got, "prompt"), text(*v.find("expect")->find(version), "prompt"))
          << text(v, "name") << " " << version;
      ++n;
    }
  }
  EXPECT_EQ(n, 82);
}

TEST(Vectors, Conversions) {
  int n = 0;
  const Value all = spec_file("convert_vectors.json");
  for (const Value& v : all.find("ok")->items()) {
    const Value got = encoded(v);
    ASSERT_EQ(got.find("error"), nullptr) << text(v, "name") << json::dump(got);
    for (const json::Member& want : v.find("expect")->members()) {
      const Value* found = want.key == "stream" || want.key == "parsing" || want.key == "inference"
                               ? got.find(want.key == "inference" ? "options" : want.key)
                               : got.find("conversation")->find(want.key);
      ASSERT_NE(found, nullptr) << text(v, "name") << " " << want.key;
      if (want.key == "parsing" || want.key == "inference") {
        for (const json::Member& m : want.value.members())
          EXPECT_TRUE(same(*found->find(m.key), m.value))
              << text(v, "name") << " " << m.key << json::dump(*found);
      } else {
        EXPECT_TRUE(same(*found, want.value)) << text(v, "name") << "\n"
                                              << json::dump(*found) << "\n"
                                              << json::dump(want.value);
      }
    }
    ++n;
  }
  EXPECT_EQ(n, 58);
}

TEST(Vectors, ErrorTexts) {
  int n = 0;
  const Value all = spec_file("convert_vectors.json");
  for (const Value& v : all.find("errors")->items()) {
    const Value got = encoded(v);
    ASSERT_NE(got.find("error"), nullptr) << text(v, "name");
    const std::string message = text(*got.find("error"), "message");
    if (v.find("match") != nullptr) {
      EXPECT_NE(message.find(text(v, "message")), std::string::npos)
          << text(v, "name") << ": " << message;
    } else {
      EXPECT_EQ(message, text(v, "message")) << text(v, "name");
    }
    ++n;
  }
  EXPECT_EQ(n, 60);
}

// Pieces of `s` cut at character boundaries, `step` characters each; 0: whole.
std::vector<std::string> cut(const std::string& s, size_t step) {
  if (step == 0) return {s};
  std::vector<std::string> out;
  size_t n = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(s[i]) & 0xC0) != 0x80;
    if (starts && n++ % step == 0) out.emplace_back();
    out.back().push_back(s[i]);
  }
  return out;
}

TEST(Vectors, Parses) {
  int n = 0;
  const Value all = spec_file("parse_vectors.json");
  for (const Value& v : all.find("recipe")->items()) {
    const bool invariant = v.find("chunk_invariant")->as_bool();
    for (size_t step = 0; step < (invariant ? 12U : 1U); ++step) {
      json::Writer w = begin("parse");
      w.key("options")
          .value(*v.find("options"))
          .key("finish")
          .value(*v.find("backend_finish"))
          .key("chunks")
          .begin_array();
      for (const std::string& piece : cut(text(v, "text"), step)) w.value(piece);
      w.end_array().end_object();
      const Value got = run(w);
      for (const std::string_view key :
           {"segments", "finish_reason", "stop_sequence", "discarded"}) {
        if (key == "discarded" && step > 0)
          continue;  // what lies behind a stop in later chunks is not read at all
        EXPECT_TRUE(same(*got.find(key), *v.find(key)))
            << text(v, "name") << " step " << step << " " << key << "\n"
            << json::dump(*got.find(key)) << "\n"
            << json::dump(*v.find(key));
      }
    }
    ++n;
  }
  EXPECT_EQ(n, 68);
}

// ---- streams
// ------------------------------------------------------------------------------------------------------------------

Value* member(Value& v, std::string_view key) { return const_cast<Value*>(v.find(key)); }

bool join_text(Value& a, const Value& b, std::string_view key) {
  Value* x = member(a, key);
  const Value* y = b.find(key);
  if (x == nullptr || y == nullptr || !x->is_string() || !y->is_string()) return false;
  *x = Value(x->as_string() + y->as_string());
  return true;
}

bool join(const std::string& protocol, Value& a, const Value& b) {
  if (protocol == "chat") {
    Value &ca = member(a, "choices")->items()[0],
          cb = const_cast<Value&>(b.find("choices")->items()[0]);
    if (!cb.find("finish_reason")->is_null()) return false;
    Value &da = *member(ca, "delta"), &db = *member(cb, "delta");
    if (da.find("role") != nullptr || db.find("role") != nullptr) return false;
    Value *ta = member(da, "tool_calls"), *tb = member(db, "tool_calls");
    if ((ta == nullptr) != (tb == nullptr)) return false;
    if (ta != nullptr) {
      Value &fa = ta->items()[0], &fb = tb->items()[0];
      if (fa.find("id") != nullptr || fb.find("id") != nullptr ||
          *fa.find("index") != *fb.find("index"))
        return false;
      return join_text(*member(fa, "function"), *fb.find("function"), "arguments");
    }
    return join_text(da, db, "content") || join_text(da, db, "reasoning_content");
  }
  if (*a.find("type") != *b.find("type")) return false;
  const std::string type = text(a, "type");
  if (protocol == "messages") {
    if (type != "content_block_delta" ||
        text(*a.find("delta"), "type") != text(*b.find("delta"), "type"))
      return false;
    for (const std::string_view key : {"text", "thinking", "partial_json", "signature"})
      if (join_text(*member(a, "delta"), *b.find("delta"), key)) return true;
    return false;
  }
  return type.ends_with(".delta") && *a.find("output_index") == *b.find("output_index") &&
         join_text(a, b, "delta");
}

std::vector<Value> joined(const std::string& protocol, const json::Array& events) {
  std::vector<Value> out;
  for (const Value& e : events)
    if (out.empty() || !join(protocol, out.back(), e)) out.push_back(e);
  if (protocol == "responses") {
    for (size_t i = 0; i < out.size(); ++i)
      *member(out[i], "sequence_number") = Value::number(static_cast<int64_t>(i));
  }
  return out;
}

TEST(Vectors, Streams) {
  int n = 0;
  const Value all = spec_file("stream_vectors.json");
  for (const Value& v : all.find("vectors")->items()) {
    for (const std::string protocol : {"chat", "messages", "responses"}) {
      const Value& want = *v.find(protocol);
      const Value& usage = *v.find("prompt_usage");
      json::Writer w = begin("decode");
      w.key("protocol")
          .value(protocol)
          .key("options")
          .value(*v.find("options"))
          .key("thinking_mode")
          .value(*v.find("thinking_mode"));
      w.key("id").value("r1").key("model").value("deepseek-flash").key("created").value(1700000000);
      w.key("custom_tools").begin_array().value("apply_patch").end_array();
      w.key("include_usage")
          .value(want.find("include_usage") != nullptr && want.find("include_usage")->as_bool());
      w.key("chunks").begin_array().begin_object().key("ready").begin_object();
      w.key("prompt_tokens")
          .value(*usage.find("prompt_tokens"))
          .key("cached_tokens")
          .value(*usage.find("prompt_cache_hit_tokens"));
      w.end_object().key("fingerprint").value("fp-1").end_object();
      bool first = true;
      for (const Value& chunk : v.find("chunks")->items()) {
        w.begin_object()
            .key("text")
            .value(chunk)
            .key("tokens")
            .value(first ? *v.find("completion_tokens") : Value::number(0))
            .end_object();
        first = false;
      }
      if (!v.find("backend_finish")->is_null())
        w.begin_object().key("finish").value(*v.find("backend_finish")).end_object();
      w.end_array().end_object();
      const Value got = run(w);
      ASSERT_EQ(got.find("error"), nullptr) << json::dump(got);
      json::Array events;
      for (const Value& e : got.find("events")->items()) events.push_back(*e.find("data"));
      const auto a = joined(protocol, events), b = joined(protocol, want.find("events")->items());
      EXPECT_EQ(a.size(), b.size()) << text(v, "name") << " " << protocol;
      for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        EXPECT_TRUE(same(a[i], b[i])) << text(v, "name") << " " << protocol << "\n"
                                      << json::dump(a[i]) << "\n"
                                      << json::dump(b[i]);
      // Every event says its own name.
      for (const Value& e : got.find("events")->items()) {
        if (protocol != "chat") {
          EXPECT_EQ(text(e, "event"), text(*e.find("data"), "type"));
        }
      }
      EXPECT_TRUE(same(*got.find("response"), *want.find("response")))
          << text(v, "name") << " " << protocol << "\n"
          << json::dump(*got.find("response")) << "\n"
          << json::dump(*want.find("response"));
      ++n;
    }
  }
  EXPECT_EQ(n, 48);
}

TEST(Vectors, NumberSpelling) {
  const Value all = spec_file("number_format_vectors.json");
  for (const Value& v : all.find("numbers")->items()) {
    std::string python, compact;
    append_number(python, text(v, "input"), NumberStyle::kPython);
    append_number(compact, text(v, "input"), NumberStyle::kCompact);
    EXPECT_EQ(python, text(v, "python"));
    EXPECT_EQ(compact, text(v, "compact"));
  }
  for (const Value& v : all.find("stringify")->items())
    EXPECT_EQ(to_json(*v.find("value"), {}), text(v, "python"));
}

TEST(Spelling, OfDuplicateKeysTheLastValueStandsAtTheFirstPlace) {
  EXPECT_EQ(to_json(*json::parse(R"({"a":1,"b":2,"a":3})"), {}), R"({"a": 3, "b": 2})");
  std::string many = "{";
  for (int i = 0; i < 20; ++i)
    many += "\"k" + std::to_string(i % 10) + "\":" + std::to_string(i) + (i < 19 ? "," : "}");
  EXPECT_EQ(to_json(*json::parse(many), {}).substr(0, 20), R"({"k0": 10, "k1": 11,)");
}

}  // namespace
}  // namespace deepmint::recipe
