#include "grammar/structural_tag.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

#include "grammar/matcher.h"
#include "grammar/regex_parser.h"

namespace deepmint::grammar {
namespace {

constexpr TokenId kStop = 256;

std::shared_ptr<const Vocabulary> vocabulary() {
  std::vector<std::string> ids;
  for (int b = 0; b < 256; ++b) ids.push_back(std::string(1, static_cast<char>(b)));
  ids.emplace_back();
  for (const char* more : {"ab", "a<", "<a", "<b", "b>", ">a", "<ab", "ab>b<a", "é<"})
    ids.emplace_back(more);
  return Vocabulary::make(std::move(ids), 272, {kStop}).value();
}

std::shared_ptr<const Compiled> compiled(const std::string& text) {
  auto out = compile({SpecKind::kStructuralTag, text}, vocabulary());
  EXPECT_TRUE(out) << out.error().str();
  return out ? *out : nullptr;
}
bool accepts(const std::shared_ptr<const Compiled>& c, std::string_view text) {
  return Matcher(c).accepts_bytes(text).complete;
}
std::string refusal(const std::string& text) {
  const auto grammar = compile_grammar({SpecKind::kStructuralTag, text});
  EXPECT_FALSE(grammar) << text;
  return grammar ? "" : grammar.error().str();
}

TEST(StructuralTag, TextThenATagThenTextAgain) {
  const auto c = compiled(R"({"type": "structural_tag", "triggers": ["<function="],
    "structures": [
      {"begin": "<function=add>", "end": "</function>",
       "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
                  "additionalProperties": false}},
      {"begin": "<function=say>", "regex": "[a-z]+", "end": "</function>"},
      {"begin": "<function=nest>", "grammar": "root ::= \"(\" root \")\" | \"\"", "end": "."}]})");
  for (const char* text :
       {"", "no call at all, é 日本", "<function=add>{\"n\": 1}</function>",
        "first <function=add>{\"n\": 1}</function> and <function=say>hm</function> done.",
        "<function=say>hm</function><function=nest>(())..", "a <functio", "1 < 2 <fun"})
    EXPECT_TRUE(accepts(c, text)) << text;
  for (const char* text :
       {"<function=", "<function=mul>1</function>", "<function=add>{\"n\": 1.5}</function>",
        "<function=add>{}</function>", "<function=say>Hm</function>", "<function=say>hm",
        "<function=say>hm</function> <function=nest>(()."})
    EXPECT_FALSE(accepts(c, text)) << text;
}

TEST(StructuralTag, AtLeastOneAndStopAfterFirst) {
  const auto spec = [](const char* more) {
    return compiled(
        std::string(R"({"triggers": ["<"], "structures": [{"begin": "<", "regex": "a",)") +
        R"( "end": ">"}])" + more + "}");
  };
  const auto some = spec(R"(, "at_least_one": true)"),
             first = spec(R"(, "stop_after_first": true)"),
             one = spec(R"(, "at_least_one": true, "stop_after_first": true)");
  const char* texts[] = {"", "x", "x<a>", "x<a>y", "x<a>y<a>"};
  const bool expected[][3] = {{false, true, false},
                              {false, true, false},
                              {true, true, true},
                              {true, false, false},
                              {true, false, false}};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(accepts(some, texts[i]), expected[i][0]) << texts[i];
    EXPECT_EQ(accepts(first, texts[i]), expected[i][1]) << texts[i];
    EXPECT_EQ(accepts(one, texts[i]), expected[i][2]) << texts[i];
  }
}

TEST(StructuralTag, WhatIsWrongIsNamedWithItsPlace) {
  EXPECT_EQ(refusal("[]"), "#: expected an object, found array");
  EXPECT_EQ(refusal("{}"), "#/triggers: expected 1 to 64 strings");
  EXPECT_EQ(refusal(R"({"triggers": [""]})"), "#/triggers/0: expected a string of 1 to 256 bytes");
  EXPECT_EQ(refusal(R"({"triggers": ["<"]})"), "#/structures: expected 1 to 1024 tags");
  EXPECT_EQ(refusal(R"({"triggers": ["<"], "tags": []})"),
            "#: expected triggers, structures, at_least_one or stop_after_first, found \"tags\"");
  const auto tag = [](const std::string& content) {
    return R"({"triggers": ["<"], "structures": [{"begin": "<a", "end": ">")" + content + "}]}";
  };
  EXPECT_EQ(refusal(tag("")),
            "#/structures/0: expected one of schema, regex and grammar, found none");
  EXPECT_EQ(refusal(tag(R"(, "regex": "a", "schema": {})")),
            "#/structures/0: expected one of schema, regex and grammar, found several");
  EXPECT_EQ(refusal(tag(R"(, "regex": 3)")),
            "#/structures/0/regex: expected a string, found number");
  EXPECT_EQ(refusal(tag(R"(, "schema": {"properties": {"a": {"format": "regex"}}})")).substr(0, 38),
            "#/structures/0: #/properties/a/format:");
  EXPECT_EQ(refusal(tag(R"(, "schema": false)")),
            "#/structures/0: expected a tag that some text satisfies");
  EXPECT_EQ(refusal(tag(R"(, "grammar": "root ::= root \"a\"")")),
            "#/structures/0: expected a tag that some text satisfies");
  EXPECT_EQ(
      refusal(R"({"triggers": ["<"], "structures": [{"begin": "a", "regex": "a", "end": ""}]})"),
      "#/structures/0/begin: expected a beginning that starts with a trigger");
  EXPECT_EQ(refusal(R"({"triggers": ["<", "x"],
                        "structures": [{"begin": "<", "regex": "a", "end": ""}]})"),
            "#/triggers/1: no tag begins with this trigger");
}

// The meaning, read off a text from the left.
struct Simple {
  struct Tag {
    std::string begin, content, end;
  };
  std::vector<std::string> triggers;
  std::vector<Tag> tags;
  bool at_least_one = false, stop_after_first = false;

  mutable std::map<std::pair<std::string, std::string>, bool> known = {};  // content, text

  bool content_matches(const std::string& regex, std::string_view text) const {
    const auto [it, is_new] = known.try_emplace({regex, std::string(text)}, false);
    if (is_new) {
      RegexSet set;
      it->second = set.matches(*parse_regex(set, regex, {}), text);
    }
    return it->second;
  }
  bool whole(std::string_view text) const { return from(text, 0, false); }
  bool from(std::string_view text, size_t at, bool tagged) const {
    if (tagged && stop_after_first) return at == text.size();
    for (size_t end = at; end <= text.size(); ++end) {
      const std::string_view free = text.substr(at, end - at);
      bool complete = false;
      for (const std::string& t : triggers) complete |= free.ends_with(t);
      if (!complete) continue;
      for (const Tag& tag : tags)
        for (const std::string& t : triggers) {
          if (!free.ends_with(t) || !tag.begin.starts_with(t)) continue;
          if (!text.substr(end - t.size()).starts_with(tag.begin)) continue;
          const size_t inside = end - t.size() + tag.begin.size();
          for (size_t k = inside; k <= text.size(); ++k)
            if (text.substr(k).starts_with(tag.end) &&
                content_matches(tag.content, text.substr(inside, k - inside)) &&
                from(text, k + tag.end.size(), true))
              return true;
        }
      return false;  // a trigger that no tag carries on
    }
    return tagged || !at_least_one;
  }
};

TEST(StructuralTag, RandomTagsSayWhatTheirMeaningSays) {
  std::mt19937_64 rng;
  const auto pick = [&](size_t n) { return rng() % n; };
  const auto word = [&](size_t most) {
    std::string out;
    for (size_t n = 1 + pick(most); n > 0; --n) out += "ab<"[pick(3)];
    return out;
  };
  const char* contents[] = {"a*", "b?", "(ab|<)*", "[ab]", "a<?"};
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    rng.seed(seed);
    Simple simple;
    std::string json = R"({"triggers": [)";
    const size_t n_triggers = 1 + pick(2), n_tags = 1 + pick(3);
    for (size_t t = 0; t < n_triggers; ++t) {
      simple.triggers.push_back(word(2));
      json += (t > 0 ? ",\"" : "\"") + simple.triggers[t] + "\"";
    }
    json += R"(], "structures": [)";
    for (size_t i = 0; i < std::max(n_tags, n_triggers); ++i) {
      Simple::Tag tag{simple.triggers[i % n_triggers] + (pick(2) ? word(1) : ""),
                      contents[pick(std::size(contents))], pick(4) ? word(1) : ""};
      json += std::string(i > 0 ? "," : "") + R"({"begin": ")" + tag.begin + R"(", "regex": ")" +
              tag.content + R"(", "end": ")" + tag.end + "\"}";
      simple.tags.push_back(tag);
    }
    simple.at_least_one = pick(3) == 0;
    simple.stop_after_first = pick(3) == 0;
    json += std::string(R"(], "at_least_one": )") + (simple.at_least_one ? "true" : "false") +
            R"(, "stop_after_first": )" + (simple.stop_after_first ? "true" : "false") + "}";
    const auto out = compile({SpecKind::kStructuralTag, json}, vocabulary());
    // A trigger inside which another one is complete first never begins a tag.
    if (!out) {
      EXPECT_NE(out.error().message.find("some text satisfies"), std::string::npos)
          << out.error().str() << "\n"
          << json << " seed " << seed;
      continue;
    }
    std::vector<std::string> texts{""};
    for (size_t i = 0; i < texts.size(); ++i)
      if (texts[i].size() < 6)
        for (const char c : std::string_view("ab<")) texts.push_back(texts[i] + c);
    for (const std::string& text : texts) {
      const bool expected = simple.whole(text);
      ASSERT_EQ(accepts(*out, text), expected) << text << " of " << json << " seed " << seed;
    }
    // Masks: a token is allowed exactly when its bytes can follow.
    for (int walk = 0; walk < 4; ++walk) {
      Matcher m(*out);
      for (int step = 0; step < 12 && m.status() && !m.stopped(); ++step) {
        std::vector<uint32_t> bits((*out)->vocabulary().mask_words());
        m.mask(bits);
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < 272; ++id) {
          const bool set = (bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1;
          const std::string_view bytes = (*out)->vocabulary().bytes(id);
          const bool expected =
              id == kStop ? m.may_stop()
                          : !bytes.empty() && m.accepts_bytes(bytes).bytes == bytes.size();
          ASSERT_EQ(set, expected) << "token " << id << " of " << json << " seed " << seed;
          if (set && (id != kStop || pick(4) == 0)) allowed.push_back(id);
        }
        if (allowed.empty()) break;
        ASSERT_TRUE(m.accept(allowed[pick(allowed.size())]));
      }
    }
  }
}

}  // namespace
}  // namespace deepmint::grammar
