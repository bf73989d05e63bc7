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
      const json& delta = c["delta"];
      const auto text = [&](const char* key) {
        return delta.contains(key) && delta[key].is_string() ? delta[key].get<std::string>() : "";
      };
      out.content += text("content");
      out.reasoning += text("reasoning_content");
      if (c.contains("logprobs") && !c["logprobs"].is_null())
        for (const json& entry : c["logprobs"]["content"]) out.logprobs.push_back(entry);
      if (!c["finish_reason"].is_null()) out.finish_reason = c["finish_reason"];
      for (const json& piece : delta.value("tool_calls", json::array())) {
        if (piece.contains("id")) {
          EXPECT_EQ(piece["index"], out.calls.size());
          out.calls.push_back(piece);
          out.calls.back().erase("index");
          continue;
        }
        json& call = out.calls.at(piece["index"].get<size_t>());
        for (const char* kind : {"function", "custom"})
          if (piece.contains(kind))
            for (const auto& [key, value] : piece[kind].items())
              call[kind][key] = call[kind][key].get<std::string>() + value.get<std::string>();
      }
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
