// Custom tools of Chat Completions and Responses: any name, free text or a grammar, in requests,
// in the history, in streams and in whole answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "recipe/convert.h"
#include "recipe/prompt.h"
#include "recipe/reply_stream.h"

namespace deepmint::recipe {
namespace {

using nlohmann::json;

Result<ConversationRequest> converted(Protocol protocol, const json& body,
                                      const ConvertOptions& options = {}) {
  auto value = deepmint::json::parse(body.dump());
  EXPECT_TRUE(value.has_value());
  return convert(protocol, *value, options);
}

ConversationRequest request(Protocol protocol, const json& body) {
  auto r = converted(protocol, body);
  EXPECT_TRUE(r.has_value()) << body << "\n" << (r ? "" : r.error().str());
  return r ? *r : ConversationRequest();
}

std::string refusal(const json& body, Compat compat = Compat::kOurs) {
  const auto r = converted(Protocol::kChat, body, {.compat = compat});
  return r ? "" : r.error().message;
}

json chat(const json& custom, json more = json::object()) {
  json body = {{"model", "m"},
               {"thinking", {{"type", "disabled"}}},
               {"messages", {{{"role", "user"}, {"content", "x"}}}},
               {"tools", {{{"type", "custom"}, {"custom", custom}}}}};
  body.update(more);
  return body;
}

const json kLark = {{"syntax", "lark"}, {"definition", "start: /[a-z]+/"}};
const json kExec = {{"name", "exec"}, {"description", "Runs code."}};

// What the model writes to call `exec` with this text.
std::string call(std::string_view input) {
  return "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"exec\">\n<｜DSML｜ parameter "
         "name=\"input\" "
         "string=\"true\">" +
         std::string(input) + "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
}

const std::string kInput = "print(\"a\\n\")\n\té 😀 </x>";

TEST(CustomTools, TheModelSeesAFunctionWithOneString) {
  const ConversationRequest r = request(Protocol::kChat, chat(kExec));
  ASSERT_EQ(r.conversation.tools.size(), 1U);
  EXPECT_TRUE(r.conversation.tools[0].custom);
  EXPECT_FALSE(r.conversation.tools[0].format.has_value());
  EXPECT_EQ(r.reply.custom_tools, std::vector<std::string>{"exec"});
  // The prompt is that of the same tool over Responses.
  const ConversationRequest responses =
      request(Protocol::kResponses,
              {{"model", "m"},
               {"reasoning", {{"effort", "none"}}},
               {"input", "x"},
               {"tools", {{{"type", "custom"}, {"name", "exec"}, {"description", "Runs code."}}}}});
  const std::string prompt = render_prompt(r.conversation, {}).text;
  EXPECT_EQ(prompt, render_prompt(responses.conversation, {}).text);
  EXPECT_NE(prompt.find(R"({"name": "exec", "description": "Runs code.", "parameters": {"type": )"),
            std::string::npos);
  // Free text asks for no guarantee; a patch tool keeps the description that models know.
  EXPECT_FALSE(r.inference.constraint->must_enforce);
  const ConversationRequest patch = request(Protocol::kChat, chat({{"name", "apply_patch"}}));
  EXPECT_NE(patch.conversation.tools[0].description->find("*** Begin Patch"), std::string::npos);
}

TEST(CustomTools, AGrammarIsAConstraint) {
  const json grammar = {{"type", "grammar"}, {"grammar", kLark}};
  json exec = kExec;
  exec["format"] = grammar;
  const ConversationRequest r = request(Protocol::kChat, chat(exec));
  ASSERT_TRUE(r.inference.constraint);
  EXPECT_TRUE(r.inference.constraint->must_enforce);
  const json tools = json::parse(r.inference.constraint->schema);
  json flat = kLark;
  flat["type"] = "grammar";
  EXPECT_EQ(tools[0]["format"], flat);
  EXPECT_EQ(tools[0]["function"]["parameters"]["required"], json::array({"input"}));
  // Responses says the same without the wrapper.
  const ConversationRequest responses =
      request(Protocol::kResponses, {{"model", "m"},
                                     {"input", "x"},
                                     {"tools",
                                      {{{"type", "custom"},
                                        {"name", "exec"},
                                        {"description", "Runs code."},
                                        {"format", flat}}}}});
  EXPECT_EQ(responses.inference.constraint->schema, r.inference.constraint->schema);
  // Free text said aloud is free text.
  exec["format"] = {{"type", "text"}};
  EXPECT_FALSE(request(Protocol::kChat, chat(exec)).conversation.tools[0].format.has_value());
}

TEST(CustomTools, HistoryKeepsTheText) {
  json body = chat(kExec);
  body["messages"] = {
      {{"role", "user"}, {"content", "x"}},
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls",
        {{{"id", "c1"}, {"type", "custom"}, {"custom", {{"name", "exec"}, {"input", kInput}}}}}}},
      {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "done"}}};
  const ConversationRequest r = request(Protocol::kChat, body);
  EXPECT_EQ(json::parse(r.conversation.messages[1].tool_calls[0].arguments),
            (json{{"input", kInput}}));
  EXPECT_NE(render_prompt(r.conversation, {}).text.find(call(kInput)), std::string::npos);
}

TEST(CustomTools, WholeAndStreamedAtEveryCut) {
  const ConversationRequest r = request(Protocol::kChat, chat(kExec, {{"stream", true}}));
  json whole_body = chat(kExec);
  const ConversationRequest unstreamed = request(Protocol::kChat, whole_body);
  const std::string output = "Now." + call(kInput);
  for (size_t cut = 0; cut <= output.size(); ++cut) {
    ReplyStream reply(r, {.id = "c", .model = "m"});
    reply.push_text(std::string_view(output).substr(0, cut));
    reply.push_text(std::string_view(output).substr(cut));
    reply.finish(BackendFinish::kStop);
    std::string content, input, finish;
    json begin;
    for (size_t i = 0; i < reply.events().size(); ++i) {
      const json event = json::parse(reply.events().data(i));
      if (event["choices"].empty()) continue;
      const json& choice = event["choices"][0];
      if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
      const json& delta = choice["delta"];
      if (delta.contains("content")) content += delta["content"].get<std::string>();
      if (!delta.contains("tool_calls")) continue;
      const json& entry = delta["tool_calls"][0];
      EXPECT_EQ(entry["index"], 0);
      EXPECT_FALSE(entry.contains("function"));
      if (entry.contains("id")) {
        EXPECT_TRUE(begin.is_null());
        begin = entry;
      }
      input += entry["custom"]["input"].get<std::string>();
    }
    ASSERT_EQ(input, kInput) << cut;
    EXPECT_EQ(content, "Now.") << cut;
    EXPECT_EQ(finish, "tool_calls");
    EXPECT_EQ(begin, (json{{"index", 0},
                           {"id", "call_c_0"},
                           {"type", "custom"},
                           {"custom", {{"name", "exec"}, {"input", ""}}}}));
  }
  ReplyStream reply(unstreamed, {.id = "c", .model = "m"});
  reply.push_text(output);
  reply.finish(BackendFinish::kStop);
  const json answer = json::parse(reply.response());
  EXPECT_EQ(answer["choices"][0]["message"]["tool_calls"],
            json::array({{{"id", "call_c_0"},
                          {"type", "custom"},
                          {"custom", {{"name", "exec"}, {"input", kInput}}}}}));
}

TEST(CustomTools, FunctionsAndCustomToolsInOneAnswer) {
  json body = chat(kExec);
  body["tools"].push_back({{"type", "function"}, {"function", {{"name", "f"}}}});
  const ConversationRequest r = request(Protocol::kChat, body);
  std::string output = call("a");
  output.insert(output.rfind("\n</｜DSML｜ calls>"),
                "\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>");
  ReplyStream reply(r, {.id = "c", .model = "m"});
  reply.push_text(output);
  reply.finish(BackendFinish::kStop);
  const json calls = json::parse(reply.response())["choices"][0]["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0]["custom"], (json{{"name", "exec"}, {"input", "a"}}));
  EXPECT_EQ(calls[1]["function"], (json{{"name", "f"}, {"arguments", "{}"}}));
}

TEST(CustomTools, AChoiceCanNameOne) {
  json body = chat(kExec, {{"tool_choice", {{"type", "custom"}, {"custom", {{"name", "exec"}}}}}});
  body["tools"].push_back({{"type", "function"}, {"function", {{"name", "f"}}}});
  const ConversationRequest named = request(Protocol::kChat, body);
  ASSERT_EQ(named.conversation.tools.size(), 1U);
  EXPECT_EQ(named.conversation.tools[0].name, "exec");
  EXPECT_EQ(named.conversation.tool_choice, ToolChoice::kRequired);
  body["tool_choice"] = {
      {"type", "allowed_tools"},
      {"allowed_tools",
       {{"mode", "auto"}, {"tools", {{{"type", "custom"}, {"custom", {{"name", "exec"}}}}}}}}};
  EXPECT_EQ(request(Protocol::kChat, body).conversation.tools.size(), 1U);
}

TEST(CustomTools, WhatIsWrongIsNamed) {
  EXPECT_EQ(refusal(chat({{"description", "no name"}})), "missing field `name`");
  EXPECT_NE(refusal(chat({{"name", "a b"}})).find("tools[0].custom.name"), std::string::npos);
  const auto with_format = [](const json& format) {
    json exec = kExec;
    exec["format"] = format;
    return chat(exec);
  };
  EXPECT_NE(refusal(with_format({{"type", "yaml"}})).find("unknown variant `yaml`"),
            std::string::npos);
  EXPECT_EQ(refusal(with_format({{"type", "grammar"}})), "missing field `syntax`");
  EXPECT_NE(refusal(with_format({{"type", "grammar"},
                                 {"grammar", {{"syntax", "peg"}, {"definition", "x"}}}}))
                .find("unknown variant `peg`"),
            std::string::npos);
  EXPECT_EQ(refusal(with_format({{"type", "grammar"}, {"grammar", {{"syntax", "lark"}}}})),
            "missing field `definition`");
  json twice = chat(kExec);
  twice["tools"].push_back({{"type", "function"}, {"function", {{"name", "exec"}}}});
  EXPECT_EQ(refusal(twice), "Tool names must be unique.");
  // The published package knows functions only.
  EXPECT_NE(refusal(chat(kExec), Compat::kRecipe02).find("unknown variant `custom`"),
            std::string::npos);
}

TEST(ReplySeed, IsToldAtBothEndsAndInTheWhole) {
  json body = {{"model", "m"},
               {"messages", {{{"role", "user"}, {"content", "x"}}}},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  const ConversationRequest r = request(Protocol::kChat, body);
  ReplyStream reply(r, {.id = "c", .model = "m", .last_choice = false, .seed = 7});
  reply.push_text("a</think>b");
  reply.make_last_choice();
  reply.set_prompt_usage({.prompt_tokens = 9, .cached_tokens = 4});
  reply.finish(BackendFinish::kStop);
  std::vector<json> events;
  for (size_t i = 0; i < reply.events().size(); ++i)
    events.push_back(json::parse(reply.events().data(i)));
  EXPECT_EQ(events.front()["seed"], 7);
  EXPECT_FALSE(events[1].contains("seed"));
  EXPECT_EQ(events[events.size() - 2]["seed"], 7);
  EXPECT_EQ(events.back()["seed"], 7);
  EXPECT_EQ(events.back()["choices"], json::array());
  EXPECT_EQ(events.back()["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(json::parse(reply.response())["seed"], 7);
}

}  // namespace
}  // namespace deepmint::recipe
