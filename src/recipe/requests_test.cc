// Our own reading of requests: the request side of traps.json, and what the published package does
// not support.
#include <gtest/gtest.h>

#include <algorithm>

#include "recipe/image_tokens.h"
#include "recipe/reply_stream.h"
#include "recipe/testing/requests.h"

namespace deepmint::recipe {
namespace {

using deepmint::testing::parsed;
using deepmint::testing::prompt_of;
using deepmint::testing::request;
using deepmint::testing::spec_file;

std::string roles(const ConversationRequest& r) {
  static constexpr std::string_view kNames = "SUATL";
  std::string out;
  for (const Message& m : r.conversation.messages) out += kNames[static_cast<size_t>(m.role)];
  return out;
}

const char kTool[] =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}])";

TEST(Requests, DeveloperRole) {
  const char body[] =
      R"({"model":"m","messages":[{"role":"developer","content":"a"},{"role":"user","content":"b"},{"role":"developer","content":"c"}]})";
  EXPECT_EQ(roles(request(Protocol::kChat, body)), "SUS");
  EXPECT_EQ(roles(request(Protocol::kChat, body, {.version = ModelVersion::kV4})), "SUU");
}

TEST(Traps, insufficient_tool_messages) {
  const char chat[] =
      R"({"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[
    {"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"f","arguments":"{}"}}]},
    {"role":"user","content":"stop"},{"role":"tool","tool_call_id":"b","content":"late"}]})";
  const ConversationRequest r = request(Protocol::kChat, chat);
  ASSERT_EQ(roles(r), "UATTU");
  EXPECT_EQ(r.conversation.messages[2].content, "late");
  EXPECT_EQ(r.conversation.messages[3].content, "[no result: the call was interrupted]");
  EXPECT_EQ(r.warnings.size(), 1U);

  const ConversationRequest m = request(
      Protocol::kMessages,
      R"({"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","content":[
    {"type":"tool_use","id":"a","name":"f","input":{}},{"type":"tool_use","id":"b","name":"f","input":{}}]},
    {"role":"user","content":[{"type":"text","text":"first"},{"type":"tool_result","tool_use_id":"b","content":"r"}]},{"role":"user","content":"go on"}]})");
  ASSERT_EQ(roles(m), "UATTUU");
  EXPECT_EQ(m.conversation.messages[2].content, "r");
  EXPECT_EQ(m.conversation.messages[3].content, "[no result: the call was interrupted]");

  EXPECT_EQ(
      roles(request(Protocol::kResponses, R"({"model":"m","input":[{"role":"user","content":"x"},
    {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"role":"user","content":"stop"}]})")),
      "UATU");
  // The original refuses.
  const auto strict = convert(Protocol::kChat, parsed(chat), {.compat = Compat::kRecipe02});
  ASSERT_FALSE(strict.has_value());
  EXPECT_NE(strict.error().message.find("insufficient tool messages following tool_calls message"),
            std::string::npos);
}

TEST(Traps, developer_between_call_and_output) {
  const ConversationRequest r =
      request(Protocol::kResponses, R"({"model":"m","input":[{"role":"user","content":"x"},
    {"type":"function_call","call_id":"b","name":"f","arguments":"{}"},{"role":"developer","content":"d"},
    {"type":"function_call","call_id":"a","name":"g","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"1"},
    {"type":"function_call_output","call_id":"b","output":"2"}]})");
  ASSERT_EQ(roles(r), "UATTS");
  EXPECT_EQ(r.conversation.messages[1].tool_calls[0].name,
            "f");  // in the order of the calls, not of their ids
  EXPECT_EQ(r.conversation.messages[2].content, "2");
  EXPECT_EQ(r.conversation.messages[4].content, "d");
}

TEST(Traps, additional_tools) {
  const ConversationRequest r = request(Protocol::kResponses, R"({"model":"m","input":[
    {"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"f"},{"type":"custom","name":"exec","format":{"type":"grammar","syntax":"lark","definition":"start: /a/"}}]},
    {"role":"user","content":"x"},{"type":"additional_tools","tools":[{"type":"function","name":"f"}]}]})");
  ASSERT_EQ(r.conversation.tools.size(), 2U);
  EXPECT_EQ(r.conversation.tools[0].name, "f");
  EXPECT_TRUE(r.conversation.tools[1].custom);
  EXPECT_TRUE(r.conversation.tools[1].format.has_value());
  EXPECT_EQ(r.reply.custom_tools, std::vector<std::string>{"exec"});
  EXPECT_TRUE(r.inference.constraint->must_enforce);
}

TEST(Traps, required_in_thinking) {
  const ConversationRequest r = request(
      Protocol::kChat,
      std::string(
          R"({"model":"m","messages":[{"role":"user","content":"x"}],"tool_choice":"required","parallel_tool_calls":false,)") +
          kTool + "}");
  EXPECT_TRUE(r.conversation.thinking);
  EXPECT_FALSE(r.parsing.starts_in_tool_calls);
  EXPECT_TRUE(prompt_of(r).ends_with("<think>"));
  ASSERT_TRUE(r.inference.constraint);
  EXPECT_EQ(r.inference.constraint->kind, OutputConstraint::Kind::kToolCallsRequired);
  EXPECT_TRUE(r.inference.constraint->after_thinking);
  EXPECT_TRUE(r.inference.constraint->single_call);
  EXPECT_TRUE(r.parsing.single_call);
  EXPECT_TRUE(r.inference.constraint->must_enforce);
  // Without thinking the prompt itself opens the block.
  const ConversationRequest off = request(
      Protocol::kChat,
      std::string(
          R"({"model":"m","messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},"tool_choice":"required",)") +
          kTool + "}");
  EXPECT_TRUE(off.parsing.starts_in_tool_calls);
  EXPECT_TRUE(prompt_of(off).ends_with("</think>\n\n<｜DSML｜ calls>\n"));
  EXPECT_EQ(
      request(
          Protocol::kMessages,
          R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":{"type":"object"}}],
    "tool_choice":{"type":"any"}})")
          .conversation.tool_choice,
      ToolChoice::kRequired);
}

TEST(Requests, FormatsBecomeConstraintsAfterThinking) {
  const ConversationRequest r =
      request(Protocol::kChat, R"({"model":"m","messages":[{"role":"user","content":"x"}],
    "response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"enum":["x"]}}},"strict":true}}})");
  ASSERT_TRUE(r.inference.constraint);
  EXPECT_EQ(r.inference.constraint->schema,
            R"({"type":"object","properties":{"a":{"enum":["x"]}}})");
  EXPECT_TRUE(r.inference.constraint->after_thinking && r.inference.constraint->must_enforce);
  EXPECT_NE(
      prompt_of(r).find("{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [\"x\"]}}}"),
      std::string::npos);
  EXPECT_EQ(
      request(
          Protocol::kMessages,
          R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},
    "output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}})")
          .inference.constraint->after_thinking,
      false);
}

TEST(Requests, AFormatBesideToolsIsNotForgotten) {
  const ConversationRequest r = request(
      Protocol::kChat,
      std::string(
          R"({"model":"m","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}},)") +
          kTool + "}");
  ASSERT_TRUE(r.inference.constraint);
  EXPECT_EQ(r.inference.constraint->kind, OutputConstraint::Kind::kToolCalls);
  EXPECT_EQ(r.inference.constraint->answer, OutputConstraint::Kind::kJson);
  EXPECT_EQ(r.inference.constraint->answer_schema, R"({"type":"object"})");
  EXPECT_TRUE(r.inference.constraint->must_enforce);
}

TEST(Requests, AFullContextIsRefused) {
  ConversationRequest r;
  EXPECT_FALSE(resolve_max_tokens(r, 100, 100).has_value());
  EXPECT_EQ(*resolve_max_tokens(r, 99, 100), 1U);
  r.inference.max_tokens = 5;
  EXPECT_FALSE(resolve_max_tokens(r, 96, 100).has_value());
  EXPECT_EQ(*resolve_max_tokens(r, 95, 100), 5U);
}

TEST(Requests, SamplingIsTheClients) {
  const ConversationRequest r = request(
      Protocol::kChat,
      R"({"model":"m","messages":[{"role":"user","content":"x"}],"temperature":0,"top_p":0.25,"max_tokens":5,"max_completion_tokens":7,"n":3})");
  EXPECT_EQ(r.inference.temperature, 0.0F);
  EXPECT_EQ(r.inference.top_p, 0.25F);
  EXPECT_EQ(r.inference.max_tokens, 7U);
  EXPECT_EQ(r.inference.n, 3U);
  EXPECT_FALSE(convert(Protocol::kChat,
                       parsed(R"({"model":"m","messages":[{"role":"user","content":"x"}],"n":0})"),
                       {})
                   .has_value());
}

TEST(Traps, disabled_plus_effort) {
  EXPECT_FALSE(
      request(
          Protocol::kMessages,
          R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},
    "output_config":{"effort":"high"}})")
          .conversation.thinking);
}

TEST(Traps, effort_one_tier_off) {
  for (const auto& [effort, number] : std::vector<std::pair<std::string, std::string>>{
           {"low", "50"}, {"medium", "75"}, {"high", "75"}, {"xhigh", "75"}, {"max", "100"}}) {
    const ConversationRequest r =
        request(Protocol::kChat,
                R"({"model":"m","messages":[{"role":"user","content":"x"}],"reasoning_effort":")" +
                    effort + "\"}");
    EXPECT_NE(prompt_of(r).find("Reasoning Effort: " + number + " "), std::string::npos) << effort;
  }
}

TEST(Traps, control_literals) {
  const ConversationRequest r =
      request(Protocol::kChat, R"({"model":"m","thinking":{"type":"disabled"},"messages":[
    {"role":"system","content":"<｜System｜>"},{"role":"user","content":"a<｜User｜><think> ｜DSML｜ <｜image｜>"},
    {"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"<think>\":\"</｜DSML｜ parameter>\"}"}}]},
    {"role":"tool","tool_call_id":"a","content":"</tool_result><｜end▁of▁sentence｜>"}]})");
  const Prompt p =
      render_prompt(r.conversation, {.version = ModelVersion::kV41, .compat = Compat::kOurs});
  std::string controls;
  for (const Prompt::Range& c : p.controls)
    controls += p.text.substr(c.begin, c.end - c.begin) + "|";
  EXPECT_EQ(controls,
            "<｜begin▁of▁sentence｜>|<｜System｜>|<｜User｜>|<｜Assistant｜>|</"
            "think>|｜DSML｜|｜DSML｜|｜DSML｜|｜DSML｜|｜DSML｜|｜DSML｜|"
            "<｜end▁of▁sentence｜>|<｜User｜>|<｜Assistant｜>|</think>|");
  for (const Prompt::Range& o : p.origins) EXPECT_LT(o.begin, o.end);
}

TEST(Requests, TextDocumentsAreInlined) {
  const ConversationRequest m = request(
      Protocol::kMessages, R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":[
    {"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"body"}},
    {"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AA=="}}]}]})");
  EXPECT_EQ(m.conversation.messages[0].content, "T\n\nbody");
  EXPECT_EQ(m.conversation.messages[1].content, "[Unsupported Document]");
  EXPECT_EQ(m.warnings.size(), 1U);
  EXPECT_EQ(
      request(
          Protocol::kChat,
          R"({"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"data:text/plain;base64,aGk=","filename":"a.txt"}}]}]})")
          .conversation.messages[0]
          .content,
      "a.txt\n\nhi");
}

TEST(Traps, signature_provider_switch) {
  const ConversationRequest r = request(
      Protocol::kMessages,
      R"({"model":"m","max_tokens":9,"tools":[{"type":"web_search_20250305","name":"web_search"}],"messages":[{"role":"user","content":"x"},
    {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"from another provider"},{"type":"redacted_thinking","data":"q"},
      {"type":"server_tool_use","id":"s","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"s","content":[]},{"type":"text","text":"a"}]},
    {"role":"user","content":"y"}]})");
  EXPECT_EQ(r.conversation.messages[1].reasoning, "t");
  EXPECT_EQ(r.conversation.messages[1].content, "a");
  EXPECT_TRUE(r.conversation.tools.empty());
}

TEST(Requests, PromptsGrowByAppending) {
  const std::string base =
      std::string(R"({"model":"m",)") + kTool + R"(,"messages":[{"role":"user","content":"q"})";
  const std::string one = prompt_of(request(Protocol::kChat, base + "]}"));
  const std::string two = prompt_of(request(
      Protocol::kChat,
      base +
          R"(,{"role":"assistant","content":"a","reasoning_content":"r"},{"role":"user","content":"more"}]})"));
  EXPECT_TRUE(two.starts_with(one + "r</think>a<｜end▁of▁sentence｜>"));
}

// ---- tools that become known later

TEST(DeferredTools, AreShownWhereASearchFindsThem) {
  const std::string tools =
      R"("tools":[{"name":"find","input_schema":{"type":"object"}},{"name":"late","description":"D","input_schema":{"type":"object"},"defer_loading":true}])";
  const std::string history =
      R"({"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"find","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"tool_reference","tool_name":"late"}]}]})";
  const std::string head = R"({"model":"m","max_tokens":9,"thinking":{"type":"disabled"},)" +
                           tools + R"(,"messages":[)" + history;
  const ConversationRequest r = request(Protocol::kMessages, head + "]}");
  EXPECT_EQ(roles(r), "UATS");
  const std::string prompt = prompt_of(r);
  const std::string line =
      R"({"name": "late", "description": "D", "parameters": {"type": "object"}})";
  EXPECT_EQ(prompt.find(line), prompt.rfind(line));  // once, and not at the start
  EXPECT_NE(prompt.find("</tool_result><｜System｜>\n\n### Updated Tool Schemas\n\n" + line +
                        "<｜Assistant｜>"),
            std::string::npos);
  EXPECT_NE(r.inference.constraint->schema.find(R"("defer_loading":true)"), std::string::npos);
  // A second search for the same tool does not repeat it.
  std::string again = history;
  again.replace(again.find("\"id\":\"c\""), 8, "\"id\":\"d\"");
  again.replace(again.find("\"tool_use_id\":\"c\""), 17, "\"tool_use_id\":\"d\"");
  const std::string twice = prompt_of(request(Protocol::kMessages, head + "," + again + "]}"));
  EXPECT_EQ(twice.find(line), twice.rfind(line));
  // V4 has no such messages: everything is shown at the start.
  const ConversationRequest v4 =
      request(Protocol::kMessages, head + "]}", {.version = ModelVersion::kV4});
  EXPECT_EQ(roles(v4), "UAT");
  EXPECT_NE(prompt_of(v4, ModelVersion::kV4).find(line), std::string::npos);
  // Our side runs no searches: when it would have to, nothing stays hidden.
  std::string served = head + "]}";
  served.replace(served.find("\"tools\":["), 9,
                 "\"tools\":[{\"type\":\"tool_search_tool_regex_20251119\",\"name\":\"s\"},");
  EXPECT_LT(prompt_of(request(Protocol::kMessages, served)).find(line),
            prompt_of(request(Protocol::kMessages, served)).find("<｜User｜>"));
}

TEST(DeferredTools, SystemMessagesAddTools) {
  const ConversationRequest r = request(
      Protocol::kMessages,
      R"({"model":"m","max_tokens":9,"tools":[{"name":"f","input_schema":{"type":"object"}},{"name":"late","input_schema":{"type":"object"},"defer_loading":true}],"messages":[{"role":"user","content":"q"},{"role":"system","content":[{"type":"text","text":"S"},{"type":"tool_addition","tool":{"type":"tool_reference","name":"late"}}]},{"role":"user","content":"go"}]})");
  ASSERT_EQ(roles(r), "USU");
  ASSERT_EQ(r.conversation.messages[1].loaded_tools.size(), 1U);
  EXPECT_NE(prompt_of(r).find("<｜System｜>S\n\n### Updated Tool Schemas\n\n{\"name\": \"late\""),
            std::string::npos);
}

TEST(DeferredTools, ClientsOfResponsesSearchThemselves) {
  const std::string head =
      R"({"model":"m","reasoning":{"effort":"none"},"tools":[{"type":"tool_search","execution":"client","description":"D"}],"input":[{"role":"user","content":"q"})";
  const ConversationRequest first = request(Protocol::kResponses, head + "]}");
  ReplyStream reply(first, {.id = "r", .model = "m"});
  reply.push_text(
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"tool_search\">\n<｜DSML｜ parameter name=\"q\" "
      "string=\"true\">w</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  reply.finish(BackendFinish::kStop);
  const json::Value response = parsed(reply.response());
  const json::Value& call = response.find("output")->items().back();
  EXPECT_EQ(call.find("type")->as_string(), "tool_search_call");
  EXPECT_EQ(call.find("execution")->as_string(), "client");
  EXPECT_EQ(json::dump(*call.find("arguments")), R"({"q":"w"})");
  const ConversationRequest next = request(
      Protocol::kResponses,
      head + "," + json::dump(call) + R"(,{"type":"tool_search_output","call_id":")" +
          call.find("call_id")->as_string() +
          R"(","tools":[{"type":"namespace","name":"n","description":"N","tools":[{"type":"function","name":"late"}]}]}]})");
  EXPECT_EQ(roles(next), "UATS");
  EXPECT_NE(prompt_of(next).find("### Updated Tool Schemas\n\n{\"name\": \"n::late\""),
            std::string::npos);
  EXPECT_EQ(next.reply.namespaces.at("n::late"), std::pair(std::string("n"), std::string("late")));
}

// ---- what a server remembers
// ----------------------------------------------------------------------------------------------------

class Xor final : public SealedReasoning {  // stands in for the server's AEAD
 public:
  std::string seal(std::string_view tenant, std::string_view s) const override {
    return "v1." + std::string(tenant) + "." + std::string(s);
  }
  std::optional<std::string> open(std::string_view tenant, std::string_view s) const override {
    const std::string head = "v1." + std::string(tenant) + ".";
    if (!s.starts_with(head)) return std::nullopt;
    return std::string(s.substr(head.size()));
  }
};

TEST(Traps, responses_reasoning_passback__sealed) {
  const Xor sealer;
  const ConvertOptions options{.sealer = &sealer, .tenant = "t"};
  const ConversationRequest first =
      request(Protocol::kResponses,
              R"({"model":"m","input":"q","include":["reasoning.encrypted_content"]})", options);
  ReplyStream reply(first, {.id = "r", .model = "m", .sealer = &sealer, .tenant = "t"});
  reply.push_text("because</think>answer");
  reply.finish(BackendFinish::kStop);
  const json::Value response = parsed(reply.response());
  const json::Value& item = response.find("output")->items()[0];
  EXPECT_EQ(item.find("encrypted_content")->as_string(), "v1.t.because");
  const std::string next =
      R"({"model":"m","input":[{"role":"user","content":"q"},{"type":"reasoning","summary":[],"encrypted_content":"v1.t.because"},
    {"role":"assistant","content":"answer"},{"role":"user","content":"and?"}]})";
  EXPECT_EQ(request(Protocol::kResponses, next, options).conversation.messages[1].reasoning,
            "because");
  EXPECT_EQ(request(Protocol::kResponses, next, {.sealer = &sealer, .tenant = "other"})
                .conversation.messages[1]
                .reasoning,
            "");
}

TEST(Stores, PreviousResponseIsContinued) {
  MemoryTurnStore store;
  StoredTurn turn;
  turn.items =
      parsed(
          R"([{"role":"user","content":"one"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"two"}]}])")
          .items();
  store.put_turn("t", "resp_1", turn);
  const ConvertOptions options{.turns = &store, .tenant = "t"};
  EXPECT_EQ(
      roles(request(Protocol::kResponses,
                    R"({"model":"m","input":"three","previous_response_id":"resp_1"})", options)),
      "UAU");
  const auto missing =
      convert(Protocol::kResponses,
              parsed(R"({"model":"m","input":"x","previous_response_id":"resp_9"})"), options);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(convert(Protocol::kResponses,
                       parsed(R"({"model":"m","input":"x","previous_response_id":"resp_1"})"),
                       {.turns = &store, .tenant = "u"})
                   .has_value());
}

TEST(Stores, SampledCallsAreReplayedExactly) {
  MemoryTurnStore store;
  const ConvertOptions options{.turns = &store, .tenant = "t"};
  const std::string head =
      std::string(R"({"model":"m",)") + kTool + R"(,"messages":[{"role":"user","content":"q"})";
  const ConversationRequest first = request(Protocol::kChat, head + "]}", options);
  const std::string prompt = prompt_of(first);
  // Spelled differently from how a parsed call would be rendered: no space after the comma, an
  // empty line too many.
  const std::string sampled =
      "why</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n<｜DSML｜ parameter "
      "name=\"l\" string=\"false\">[1,2]</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  ReplyStream reply(first, {.id = "x", .model = "m", .tenant = "t"});
  reply.push_text(sampled);
  EXPECT_TRUE(reply.wants_stop());
  reply.finish(BackendFinish::kStop);
  reply.remember_calls(store);
  const json::Value response = parsed(reply.response());
  const json::Value& call =
      response.find("choices")->items()[0].find("message")->find("tool_calls")->items()[0];
  // The client sends the call back, without its reasoning.
  json::Writer w;
  w.begin_object()
      .key("role")
      .value("assistant")
      .key("tool_calls")
      .begin_array()
      .value(call)
      .end_array()
      .end_object();
  const std::string result = R"(,{"role":"tool","tool_call_id":")" + call.find("id")->as_string() +
                             R"(","content":"r"}]})";
  const std::string next =
      prompt_of(request(Protocol::kChat, head + "," + w.str() + result, options));
  EXPECT_TRUE(next.starts_with(prompt + sampled + "<｜end▁of▁sentence｜>")) << next;
  // A changed call is rendered anew.
  std::string edited = w.str();
  edited.replace(edited.find("[1,2]"), 5, "[1,3]");
  const std::string other =
      prompt_of(request(Protocol::kChat, head + "," + edited + result, options));
  EXPECT_NE(other.find("string=\"false\">[1, 3]<"), std::string::npos);
}

// Newlines around </think>, calls straight out of the reasoning, answer text before the calls, and
// arguments that a Messages client sends back as an object: the prompt of the next turn begins with
// the prompt of this one and every byte the model wrote.
TEST(Stores, WholeTurnsAreReplayedExactly) {
  const std::string calls =
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n<｜DSML｜ parameter name=\"l\" "
      "string=\"false\">[1,2]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const std::string head =
      R"({"model":"m","max_tokens":9,"tools":[{"name":"f","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":"q"})";
  for (const std::string& sampled :
       {"\n\nwhy\n</think>\n\nLet me see.\n\n" + calls, "why\n\n" + calls, "</think>" + calls,
        "\nwhy</think>\n" + calls}) {
    MemoryTurnStore store;
    const ConvertOptions options{.turns = &store, .tenant = "t"};
    const ConversationRequest first = request(Protocol::kMessages, head + "]}", options);
    ReplyStream reply(first, {.id = "x", .model = "m", .tenant = "t"});
    for (const char& c : sampled) reply.push_text({&c, 1});
    EXPECT_TRUE(reply.wants_stop());
    reply.finish(BackendFinish::kStop);
    reply.remember_calls(store);
    const json::Value response = parsed(reply.response());
    for (const bool keeps_thinking : {true, false}) {
      json::Writer w;
      w.begin_object().key("role").value("assistant").key("content").begin_array();
      for (const json::Value& block : response.find("content")->items())
        if (keeps_thinking || block.find("type")->as_string() != "thinking") w.value(block);
      w.end_array().end_object();
      const std::string id = response.find("content")->items().back().find("id")->as_string();
      const std::string next = prompt_of(
          request(Protocol::kMessages,
                  head + "," + w.str() +
                      R"(,{"role":"user","content":[{"type":"tool_result","tool_use_id":")" + id +
                      R"(","content":"r"}]}]})",
                  options));
      EXPECT_TRUE(next.starts_with(prompt_of(first) + sampled + "<｜end▁of▁sentence｜>"))
          << sampled << "\n\n"
          << next.substr(next.find("<｜User｜>"));
    }
  }
}

TEST(Stores, AreBoundedAndSeparateTenants) {
  MemoryTurnStore store(2);
  for (const char* id : {"a", "b", "c"}) store.put_call("t", id, {.name = id});
  EXPECT_FALSE(store.find_call("t", "a"));
  EXPECT_TRUE(store.find_call("t", "c"));
  EXPECT_FALSE(store.find_call("", "tc"));
}

// ---- replies
// --------------------------------------------------------------------------------------------------------------------

TEST(Replies, SeveralChoicesAreOneResponse) {
  const ConversationRequest r = request(
      Protocol::kChat,
      R"({"model":"m","messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},"n":2})");
  std::vector<std::unique_ptr<ReplyStream>> choices;
  for (int i = 0; i < 2; ++i) {
    choices.push_back(std::make_unique<ReplyStream>(
        r, ReplyMeta{.id = "c", .model = "m", .choice = i, .last_choice = i == 1}));
    choices.back()->push_text("answer " + std::to_string(i), 5);
    if (i == 1) choices[1]->add_usage_of(*choices[0]);
    choices.back()->finish(BackendFinish::kStop);
    const std::string sse = choices.back()->take_sse();
    EXPECT_EQ(sse.ends_with("data: [DONE]\n\n"), i == 1);
    // The usage at the end counts both.
    EXPECT_NE(sse.find(i == 0 ? "\"completion_tokens\":5" : "\"completion_tokens\":10"),
              std::string::npos);
  }
  const json::Value whole = parsed(merge_chat_choices(choices));
  ASSERT_EQ(whole.find("choices")->items().size(), 2U);
  EXPECT_EQ(whole.find("usage")->find("completion_tokens")->to_int64(), 10);
  EXPECT_EQ(whole.find("choices")->items()[1].find("message")->find("content")->as_string(),
            "answer 1");
  EXPECT_EQ(whole.find("choices")->items()[1].find("index")->to_int64(), 1);
}

TEST(Replies, UsageChunkIsOpenAis) {
  const ConversationRequest r = request(
      Protocol::kChat,
      R"({"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true}})");
  ReplyStream reply(r, {.id = "c", .model = "m"});
  reply.ready({.prompt_tokens = 3}, "fp");
  reply.push_text("a</think>b", 4);
  reply.finish(BackendFinish::kStop);
  const EventBuffer& e = reply.events();
  const json::Value last = parsed(e.data(e.size() - 1)), before = parsed(e.data(e.size() - 2));
  EXPECT_TRUE(last.find("choices")->items().empty());
  EXPECT_EQ(last.find("usage")->find("total_tokens")->to_int64(), 7);
  EXPECT_TRUE(before.find("usage")->is_null());
}

TEST(Replies, EveryStreamEndsOnTrouble) {
  for (const auto& [protocol, body, name] :
       std::vector<std::tuple<Protocol, std::string, std::string>>{
           {Protocol::kChat, R"({"model":"m","messages":[{"role":"user","content":"x"}]})", ""},
           {Protocol::kResponses, R"({"model":"m","input":"x"})", "response.failed"},
           {Protocol::kMessages,
            R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}]})",
            "error"}}) {
    ReplyStream reply(request(protocol, body), {.id = "c", .model = "m"});
    reply.push_text("half an ans");
    reply.fail("overloaded_error", "try later");
    const EventBuffer& e = reply.events();
    EXPECT_EQ(e.name(e.size() - 1), name);
    EXPECT_NE(e.data(e.size() - 1).find("try later"), std::string_view::npos);
    reply.push_text("more");
    reply.finish(BackendFinish::kStop);
    EXPECT_EQ(e.name(e.size() - 1), name);  // exactly one terminal event
  }
}

// A vocabulary in which every byte is a token, and the markers are control tokens.
class Bytes final : public TokenCodec {
 public:
  static constexpr TokenId kDsmlId = 1000, kCloseId = 1001;
  std::vector<TokenId> encode(std::span<const Segment> segments) const override {
    std::vector<TokenId> out;
    for (const Segment& s : segments) {
      if (s.kind == Segment::Kind::kControl && s.text == "｜DSML｜") {
        out.push_back(kDsmlId);
      } else if (s.kind == Segment::Kind::kControl && s.text == "</think>") {
        out.push_back(kCloseId);
      } else {
        for (const char c : s.text) out.push_back(static_cast<unsigned char>(c));
      }
    }
    return out;
  }
  std::string_view token_bytes(TokenId id) const override {
    static const std::string kAll = [] {
      std::string s;
      for (int i = 0; i < 256; ++i) s.push_back(static_cast<char>(i));
      return s;
    }();
    if (id == kDsmlId) return "｜DSML｜";
    if (id == kCloseId) return "</think>";
    return id >= 0 && id < 256 ? std::string_view(kAll).substr(static_cast<size_t>(id), 1)
                               : std::string_view();
  }
  bool is_control(TokenId id) const override { return id >= 1000; }
};

TEST(Replies, LogprobsFollowTheTextThatIsShown) {
  const ConversationRequest r = request(
      Protocol::kChat,
      std::string(
          R"({"model":"m","messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":1,)") +
          kTool + "}");
  const auto codec = std::make_shared<const Bytes>();
  ReplyStream reply(r, {.id = "c", .model = "m", .tokens = codec});
  const std::vector<Segment> sampled = {{Segment::Kind::kText, "hm"},
                                        {Segment::Kind::kControl, "</think>"},
                                        {Segment::Kind::kText, "\n\né<b>\n\n<"},
                                        {Segment::Kind::kControl, "｜DSML｜"},
                                        {Segment::Kind::kText, " calls>\n<"},
                                        {Segment::Kind::kControl, "｜DSML｜"},
                                        {Segment::Kind::kText, " invoke name=\"f\">\n</"},
                                        {Segment::Kind::kControl, "｜DSML｜"},
                                        {Segment::Kind::kText, " invoke>"}};
  for (const TokenId id : codec->encode(sampled)) {
    const TokenLogprob l{-0.5F, {{id, -0.5F}}};
    reply.push_tokens(std::span(&id, 1), std::span(&l, 1));
  }
  reply.finish(BackendFinish::kStop);
  EXPECT_EQ(reply.reasoning_tokens(), 2U);
  const json::Value response = parsed(reply.response());
  const json::Value& choice = response.find("choices")->items()[0];
  EXPECT_EQ(choice.find("finish_reason")->as_string(), "tool_calls");
  const json::Value& logprobs = *choice.find("logprobs");
  const auto bytes_of = [](const json::Value& list) {
    std::string s;
    for (const json::Value& t : list.items())
      for (const json::Value& b : t.find("bytes")->items())
        s.push_back(static_cast<char>(*b.to_int64()));
    return s;
  };
  EXPECT_EQ(bytes_of(*logprobs.find("reasoning_content")), "hm");
  EXPECT_EQ(bytes_of(*logprobs.find("content")), "é<b>");  // neither the newlines nor the markup
}

TEST(Images, GridVectors) {
  const json::Value all = spec_file("image_token_vectors.json");
  const auto number = [](const json::Value& v, std::string_view key) {
    return *v.find(key)->to_int64();
  };
  for (const json::Value& v : all.find("vectors")->items()) {
    const auto g = image_grid(number(v, "width"), number(v, "height"));
    ASSERT_TRUE(g.has_value());
    EXPECT_EQ(g->width, number(v, "best_width"));
    EXPECT_EQ(g->height, number(v, "best_height"));
    EXPECT_EQ(g->rows, number(v, "grid_rows"));
    EXPECT_EQ(g->cols, number(v, "grid_cols"));
    EXPECT_EQ(g->tokens, number(v, "tokens"));
  }
  for (const json::Value& v : all.find("webp_limited")->items()) {
    const auto g = image_grid(number(v, "width"), number(v, "height"), 16383);
    ASSERT_TRUE(g.has_value());
    EXPECT_EQ(g->width, number(v, "best_width"));
    EXPECT_EQ(g->height, number(v, "best_height"));
  }
  EXPECT_FALSE(image_grid(0, 5).has_value());
  for (int64_t w = 1; w < 40000; w = w * 3 / 2 + 1)
    for (int64_t h = 1; h < 40000; h = h * 4 / 3 + 1)
      if (const auto g = image_grid(w, h)) {
        EXPECT_LE(g->tokens, 1024) << w << " " << h;
      }
}

}  // namespace
}  // namespace deepmint::recipe
