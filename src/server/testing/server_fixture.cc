#include "server/testing/server_fixture.h"

namespace deepmint::testing {

using nlohmann::json;

Stream parse_stream(const std::string& body) {
  Stream out;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "event without an end: " << body.substr(at);
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    EXPECT_FALSE(out.done) << "text after [DONE]";
    if (event.starts_with(":"))
      ++out.comments;
    else if (event == "data: [DONE]")
      out.done = true;
    else if (event.starts_with("data: "))
      out.events.push_back(json::parse(event.substr(6)));
    else
      ADD_FAILURE() << "not an event: " << event;
  }
  return out;
}

Assembled assemble(const Stream& stream, int choice) {
  Assembled out;
  for (const json& event : stream.events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    for (const json& c : event["choices"]) {
      if (c["index"] != choice) continue;
      if (c["delta"].contains("content")) out.content += c["delta"]["content"].get<std::string>();
      if (!c["logprobs"].is_null())
        for (const json& entry : c["logprobs"]["content"]) out.logprobs.push_back(entry);
      if (!c["finish_reason"].is_null()) out.finish_reason = c["finish_reason"];
    }
  }
  return out;
}

json chat_body(const json& fields) {
  json body = {{"model", "test-model"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(fields);
  return body;
}

}  // namespace deepmint::testing
