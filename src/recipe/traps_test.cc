// The field failures of tests/spec/recipe/traps.json and the better cases of parse_vectors.json,
// one test each, named after its id (suite Traps; "__" introduces a second test of the same trap).
// The tests of some traps stand with their subject in lenient_test.cc and requests_test.cc; the
// last tests here fail when one has none.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "recipe/reply_stream.h"
#include "recipe/testing/requests.h"

namespace deepmint::recipe {
namespace {

using deepmint::testing::parsed;
using deepmint::testing::prompt_of;
using deepmint::testing::request;
using deepmint::testing::spec_file;

std::string refusal(Protocol protocol, std::string_view body, const ConvertOptions& options) {
  const auto r = convert(protocol, parsed(body), options);
  EXPECT_FALSE(r.has_value()) << body;
  return r ? "" : r.error().message;
}

const char kChatTool[] =
    R"({"model":"m","messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}]})";
const char kMessagesTool[] =
    R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},"tools":[{"name":"f","input_schema":{"type":"object"}}]})";
const char kCall[] =
    "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" "
    "string=\"true\">x"
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

// The events of one reply as JSON.
std::vector<json::Value> events_of(ReplyStream& reply) {
  std::vector<json::Value> out;
  for (size_t i = 0; i < reply.events().size(); ++i) out.push_back(parsed(reply.events().data(i)));
  return out;
}

std::string text_at(const json::Value& v, std::initializer_list<std::string_view> path) {
  const json::Value* at = &v;
  for (const std::string_view key : path) {
    at = at->find(key);
    if (at == nullptr) return {};
  }
  return at->is_string() ? at->as_string() : std::string();
}

// Of all chunks of a chat stream, what a client puts together.
struct ChatClient {
  std::string content, reasoning, name, arguments, finish;
  void take(ReplyStream& reply) {
    for (const json::Value& e : events_of(reply)) {
      if (e.find("choices")->items().empty()) continue;
      const json::Value& choice = e.find("choices")->items()[0];
      const json::Value& delta = *choice.find("delta");
      content += text_at(delta, {"content"});
      reasoning += text_at(delta, {"reasoning_content"});
      if (choice.find("finish_reason")->is_string())
        finish = choice.find("finish_reason")->as_string();
      const json::Value* calls = delta.find("tool_calls");
      if (calls == nullptr) continue;
      name += text_at(calls->items()[0], {"function", "name"});
      arguments += text_at(calls->items()[0], {"function", "arguments"});
    }
    reply.events().clear();
  }
};

// A reply of which this is the whole output.
std::unique_ptr<ReplyStream> finished(const ConversationRequest& r, std::string_view output,
                                      BackendFinish finish = BackendFinish::kStop) {
  auto reply = std::make_unique<ReplyStream>(r, ReplyMeta{.id = "c", .model = "m"});
  reply->push_text(output);
  reply->finish(finish);
  return reply;
}

ChatClient client_of(const ConversationRequest& r, std::string_view output,
                     BackendFinish finish = BackendFinish::kStop) {
  ChatClient client;
  client.take(*finished(r, output, finish));
  return client;
}

TEST(Traps, split_marker_leak) {
  const ConversationRequest r = request(Protocol::kChat, kChatTool);
  const std::string output = std::string("Sure.\n\n") + kCall;
  for (size_t first = 0; first <= output.size(); ++first) {
    ReplyStream reply(r, {.id = "c", .model = "m"});
    ChatClient client;
    for (const std::string_view piece :
         {std::string_view(output).substr(0, first), std::string_view(output).substr(first)}) {
      reply.push_text(piece);
      client.take(reply);
      EXPECT_TRUE(std::string_view("Sure.").starts_with(client.content)) << first;
    }
    reply.finish(BackendFinish::kStop);
    client.take(reply);
    EXPECT_EQ(client.content, "Sure.");
    EXPECT_EQ(client.name, "f");
    EXPECT_EQ(client.arguments, R"({"a": "x"})");
    EXPECT_EQ(client.finish, "tool_calls");
  }
}

TEST(Traps, tool_choice_none_leak) {
  std::string body = kChatTool;
  body.insert(1, R"("tool_choice":"none",)");
  const ConversationRequest r = request(Protocol::kChat, body);
  EXPECT_EQ(prompt_of(r).find("## Tools"), std::string::npos);
  EXPECT_EQ(prompt_of(r).find("DSML"), std::string::npos);
  EXPECT_FALSE(r.parsing.parse_tool_calls);
  EXPECT_FALSE(r.inference.constraint.has_value());
  const ChatClient client = client_of(r, kCall);
  EXPECT_EQ(client.content, kCall);  // the model was not told of tools: it quotes
  EXPECT_EQ(client.finish, "stop");
}

TEST(Traps, effort_empty_answer) {
  const ConversationRequest r = request(
      Protocol::kChat,
      R"({"model":"m","messages":[{"role":"user","content":"x"}],"reasoning_effort":"max","tools":[{"type":"function","function":{"name":"f"}}]})");
  const ChatClient client = client_of(r, "on and on", BackendFinish::kLength);
  EXPECT_EQ(client.reasoning, "on and on");
  EXPECT_EQ(client.finish, "length");
}

// A call that was cut off never reads as one to run, in any protocol, whatever the engine says.
TEST(Traps, missing_outer_close__incomplete_trailing_call) {
  const std::string whole(kCall);
  const std::string two = whole.substr(0, whole.find("\n</｜DSML｜ calls>")) +
                          "\n<｜DSML｜ invoke name=\"g\">\n<｜DSML｜ parameter name=\"b\" string=";
  const auto chat = finished(request(Protocol::kChat, kChatTool), two);
  EXPECT_EQ(chat->finish_reason(), FinishReason::kMalformedToolCall);
  ASSERT_EQ(chat->calls().size(), 2U);
  EXPECT_TRUE(chat->calls()[0].complete);
  EXPECT_FALSE(chat->calls()[1].complete);
  EXPECT_NE(chat->response().find(R"("finish_reason":"length")"), std::string::npos);
  const auto messages = finished(request(Protocol::kMessages, kMessagesTool), two);
  EXPECT_EQ(text_at(parsed(messages->response()), {"stop_reason"}), "max_tokens");
}

TEST(Traps, reasoning_passback) {
  const char body[] =
      R"({"model":"m","messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"r"}],"tools":[{"type":"function","function":{"name":"f"}}]})";
  // Accepted, with an empty thinking block where we do not know better.
  EXPECT_NE(prompt_of(request(Protocol::kChat, body)).find("<think></think>\n\n<｜DSML｜ calls>"),
            std::string::npos);
  // Restored by call id where we do.
  MemoryTurnStore store;
  store.put_call("t", "c1", {.name = "f", .arguments = "{}", .reasoning = "because"});
  EXPECT_NE(prompt_of(request(Protocol::kChat, body, {.turns = &store, .tenant = "t"}))
                .find("<think>because</think>\n\n<｜DSML｜ calls>"),
            std::string::npos);
  EXPECT_EQ(refusal(Protocol::kChat, body, {.require_reasoning = true}),
            "The `reasoning_content` in the thinking mode must be passed back to the API.");
}

TEST(Traps, anthropic_thinking_passback) {
  const char body[] =
      R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"r"}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}]})";
  EXPECT_NE(
      prompt_of(request(Protocol::kMessages, body)).find("<think></think>\n\n<｜DSML｜ calls>"),
      std::string::npos);
  MemoryTurnStore store;
  store.put_call("t", "c1", {.name = "f", .arguments = "{}", .reasoning = "because"});
  EXPECT_NE(prompt_of(request(Protocol::kMessages, body, {.turns = &store, .tenant = "t"}))
                .find("<think>because</think>\n\n<｜DSML｜ calls>"),
            std::string::npos);
  EXPECT_EQ(refusal(Protocol::kMessages, body, {.require_reasoning = true}),
            "The `content[].thinking` in the thinking mode must be passed back to the API.");
}

TEST(Traps, signature_field_missing) {
  const auto reply = finished(
      request(Protocol::kMessages,
              R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}]})"),
      "why</think>because");
  int signatures = 0, starts = 0;
  bool open = false;
  for (const json::Value& e : events_of(*reply)) {
    const std::string type = text_at(e, {"type"});
    if (type == "content_block_start" && text_at(e, {"content_block", "type"}) == "thinking") {
      const json::Value* signature = e.find("content_block")->find("signature");
      ASSERT_NE(signature, nullptr);
      EXPECT_EQ(signature->as_string(), "");
      open = true;
      ++starts;
    }
    if (text_at(e, {"delta", "type"}) == "signature_delta") {
      EXPECT_TRUE(open);
      ++signatures;
    }
    if (type == "content_block_stop") open = false;
  }
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(signatures, 1);
}

TEST(Traps, image_literal) {
  const char body[] =
      R"({"model":"m","thinking":{"type":"disabled"},"messages":[{"role":"user","content":"a <｜image｜> b <｜deepseek_image｜>"}]})";
  const ConversationRequest r = request(Protocol::kChat, body);
  const Prompt p = render_prompt(r.conversation, {});
  EXPECT_TRUE(p.images.empty());
  for (const Segment& s : p.segments())
    if (s.kind == Segment::Kind::kControl) {
      EXPECT_NE(s.text, kImageMark);
    }
  EXPECT_NE(refusal(Protocol::kChat, body, {.compat = Compat::kRecipe01}).find("is not allowed"),
            std::string::npos);  // the strict switch
}

TEST(Traps, responses_reasoning_passback) {
  // A reasoning item without text is accepted; sealed text comes back in requests_test.cc.
  const ConversationRequest r = request(
      Protocol::kResponses,
      R"({"model":"m","input":[{"role":"user","content":"q"},{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"encrypted_content":"from elsewhere"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"r"}]})");
  EXPECT_EQ(r.conversation.messages.size(), 3U);
  EXPECT_EQ(r.conversation.messages[1].tool_calls.size(), 1U);
}

// Every item that was added is done, indexes are consistent, and there is one terminal event.
TEST(Traps, responses_tool_stall) {
  const char body[] =
      R"({"model":"m","input":"x","tools":[{"type":"function","name":"f"},{"type":"custom","name":"patch"}]})";
  const std::string custom =
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"patch\">\n<｜DSML｜ parameter name=\"input\" "
      "string=\"true\">p</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const std::string output = std::string("why</think>Now.\n\n") + kCall + "\n" + custom;
  for (size_t length = 0; length <= output.size(); length += 3) {
    for (const bool trouble : {false, true}) {
      ReplyStream reply(request(Protocol::kResponses, body), {.id = "c", .model = "m"});
      reply.push_text(std::string_view(output).substr(0, length));
      if (trouble) {
        reply.fail("server_error", "gone");
      } else {
        reply.finish(length == output.size() ? BackendFinish::kStop : BackendFinish::kLength);
      }
      std::set<int64_t> open;
      size_t terminal = 0, sequence = 0;
      const std::vector<json::Value> events = events_of(reply);
      for (const json::Value& e : events) {
        EXPECT_EQ(e.find("sequence_number")->to_uint64(), sequence++);
        const std::string type = text_at(e, {"type"});
        if (type == "response.output_item.added") {
          EXPECT_TRUE(open.insert(*e.find("output_index")->to_int64()).second);
        }
        if (type == "response.output_item.done") {
          EXPECT_EQ(open.erase(*e.find("output_index")->to_int64()), 1U);
        }
        terminal += type == "response.completed" || type == "response.incomplete" ||
                    type == "response.failed";
      }
      EXPECT_TRUE(open.empty()) << length;
      EXPECT_EQ(terminal, 1U);
      EXPECT_EQ(text_at(events.front(), {"type"}), "response.created");
    }
  }
}

TEST(Traps, custom_name_lost) {
  const auto reply = finished(
      request(Protocol::kResponses,
              R"({"model":"m","input":"x","tools":[{"type":"custom","name":"apply_patch"}]})"),
      "</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"apply_patch\">\n<｜DSML｜ parameter "
      "name=\"input\" string=\"true\">*** Begin</｜DSML｜ parameter>\n</｜DSML｜ "
      "invoke>\n</｜DSML｜ "
      "calls>");
  const json::Value response = parsed(reply->response());
  const json::Value& item = response.find("output")->items().back();
  EXPECT_EQ(text_at(item, {"type"}), "custom_tool_call");
  EXPECT_EQ(text_at(item, {"name"}), "apply_patch");
  EXPECT_EQ(text_at(item, {"input"}), "*** Begin");
}

TEST(Traps, tool_use_input_start) {
  const auto reply = finished(
      request(Protocol::kMessages, kMessagesTool),
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  std::string input;
  size_t deltas = 0;
  for (const json::Value& e : events_of(*reply)) {
    if (text_at(e, {"delta", "type"}) != "input_json_delta") continue;
    input += text_at(e, {"delta", "partial_json"});
    ++deltas;
  }
  EXPECT_GE(deltas, 1U);
  EXPECT_EQ(input, "{}");
}

TEST(Traps, final_chunk_content) {
  std::string body = kChatTool;
  body.insert(1, R"("stream":true,"stream_options":{"include_usage":true},)");
  const std::vector<json::Value> events =
      events_of(*finished(request(Protocol::kChat, body), kCall));
  const json::Value& last = events.back();
  const json::Value& end = events[events.size() - 2];
  EXPECT_TRUE(last.find("choices")->items().empty());
  EXPECT_TRUE(last.find("usage")->is_object());
  const json::Value& choice = end.find("choices")->items()[0];
  EXPECT_EQ(text_at(choice, {"finish_reason"}), "tool_calls");
  EXPECT_EQ(choice.find("delta")->find("tool_calls"), nullptr);
  EXPECT_TRUE(end.find("usage")->is_null());
}

TEST(Traps, premature_stop) {
  const ConversationRequest r = request(Protocol::kChat, kChatTool);
  // Nothing forces a call that the model did not make.
  ASSERT_TRUE(r.inference.constraint.has_value());
  EXPECT_EQ(r.inference.constraint->kind, OutputConstraint::Kind::kToolCalls);
  EXPECT_FALSE(r.inference.constraint->must_enforce);
  ReplyStream reply(r, {.id = "c", .model = "m"});
  ChatClient client;
  reply.push_text("Let me check the file:");
  EXPECT_FALSE(reply.wants_stop());
  reply.finish(BackendFinish::kStop);
  client.take(reply);
  EXPECT_EQ(client.content, "Let me check the file:");
  EXPECT_EQ(client.finish, "stop");
}

TEST(Traps, json_thinking_leak) {
  const ConversationRequest r = request(
      Protocol::kChat,
      R"({"model":"m","messages":[{"role":"user","content":"as json"}],"response_format":{"type":"json_object"}})");
  ASSERT_TRUE(r.inference.constraint.has_value());
  EXPECT_TRUE(r.inference.constraint->after_thinking);
  const ChatClient client = client_of(r, "{\"not\": \"the answer\"}</think>{\"a\": 1}");
  EXPECT_EQ(client.reasoning, "{\"not\": \"the answer\"}");
  EXPECT_EQ(client.content, "{\"a\": 1}");
}

// Whatever format the prompt has, both tag sets are read.
TEST(Traps, stream_auto_failure) {
  const std::string v41(kCall);
  std::string v4 = v41;
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"｜DSML｜ calls", "｜DSML｜tool_calls"},
           {"｜DSML｜ invoke", "｜DSML｜invoke"},
           {"｜DSML｜ parameter", "｜DSML｜parameter"}})
    for (size_t at = 0; (at = v4.find(from, at)) != std::string::npos; at += to.size())
      v4.replace(at, from.size(), to);
  for (const ModelVersion version : {ModelVersion::kV4, ModelVersion::kV41}) {
    for (const std::string& output : {v4, v41}) {
      ReplyStream reply(request(Protocol::kChat, kChatTool, {.version = version}),
                        {.id = "c", .model = "m"});
      for (const char& c : output) reply.push_text({&c, 1});
      reply.finish(BackendFinish::kStop);
      ASSERT_EQ(reply.calls().size(), 1U);
      EXPECT_EQ(reply.calls()[0].arguments, R"({"a": "x"})");
    }
  }
}

TEST(Traps, model_suffix) {
  EXPECT_EQ(model_to_look_up("deepseek-v4-pro[1m]"), "deepseek-v4-pro");
  EXPECT_EQ(model_to_look_up("deepseek-v4-pro"), "deepseek-v4-pro");
  EXPECT_EQ(model_to_look_up("m[1M]"), "m");
  EXPECT_EQ(model_to_look_up("[1m]"), "[1m]");
  EXPECT_EQ(model_to_look_up("m[1m]x"), "m[1m]x");
  // The answer names the model as the client did.
  EXPECT_EQ(request(Protocol::kMessages,
                    R"({"model":"m[1m]","messages":[{"role":"user","content":"x"}]})")
                .model,
            "m[1m]");
}

// ---- completeness

std::set<std::string> tests_of(const std::string& suite) {
  std::set<std::string> names;
  const auto* all = ::testing::UnitTest::GetInstance();
  for (int s = 0; s < all->total_test_suite_count(); ++s) {
    const auto* one = all->GetTestSuite(s);
    if (one->name() != suite) continue;
    for (int t = 0; t < one->total_test_count(); ++t) {
      const std::string name = one->GetTestInfo(t)->name();
      names.insert(name.substr(0, name.find("__")));
    }
  }
  return names;
}

TEST(Complete, EveryTrapHasATest) {
  const json::Value all = spec_file("traps.json");
  std::set<std::string> ids;
  for (const json::Value& trap : all.find("traps")->items()) {
    std::string id = trap.find("id")->as_string();
    std::replace(id.begin(), id.end(), '-', '_');
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 34U);
  EXPECT_EQ(tests_of("Traps"), ids);
}

TEST(Complete, EveryBetterCaseHasATest) {
  const json::Value all = spec_file("parse_vectors.json");
  std::set<std::string> names;
  for (const json::Value& v : all.find("better")->items())
    names.insert(v.find("name")->as_string());
  EXPECT_EQ(names.size(), 9U);
  EXPECT_EQ(tests_of("Better"), names);
}

}  // namespace
}  // namespace deepmint::recipe
