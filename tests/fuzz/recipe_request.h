// One fuzz target a converter shares this: any bytes as a request of that protocol, in every
// compatibility mode and prompt format. No crash, no hang; what converts also renders, control
// tokens are exactly the ranges that the renderer reports, and a reply can be built on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "recipe/convert.h"
#include "recipe/prompt.h"
#include "recipe/reply_stream.h"

namespace deepmint::fuzz {

inline void check_prompt(const recipe::Prompt& prompt) {
  size_t done = 0;
  for (const auto& c : prompt.controls) {
    DEEPMINT_CHECK(c.begin >= done && c.end > c.begin && c.end <= prompt.text.size());
    done = c.end;
  }
  done = 0;
  for (const auto& o : prompt.origins) {
    DEEPMINT_CHECK(o.begin >= done && o.end > o.begin && o.end <= prompt.text.size());
    done = o.end;
  }
  std::string joined;
  for (const Segment& s : prompt.segments()) joined += s.text;
  DEEPMINT_CHECK(joined == prompt.text);
}

// The answer to any request is JSON, whatever names its tools have.
inline void check_reply(const recipe::ConversationRequest& request, recipe::Compat compat) {
  recipe::ReplyStream reply(request, {.id = "r", .model = request.model, .compat = compat});
  std::string output = "r</think>a\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"";
  output += request.conversation.tools.empty() ? "f" : request.conversation.tools[0].name;
  reply.push_text(output +
                  "\">\n<｜DSML｜ parameter name=\"input\" string=\"true\">x</｜DSML｜ parameter>\n"
                  "</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  reply.finish(recipe::BackendFinish::kStop);
  for (size_t i = 0; i < reply.events().size(); ++i)
    DEEPMINT_CHECK(json::parse(reply.events().data(i)).has_value());
  if (!request.reply.stream) DEEPMINT_CHECK(json::parse(reply.response()).has_value());
}

// data: a byte of choices, then the body.
inline int fuzz_request(recipe::Protocol protocol, const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t choice = data[0];
  const auto body = json::parse({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!body) return 0;
  recipe::MemoryTurnStore store;
  recipe::ConvertOptions options;
  options.compat = static_cast<recipe::Compat>(choice % 3);
  options.version = choice & 0x40 ? recipe::ModelVersion::kV4 : recipe::ModelVersion::kV41;
  options.default_thinking = (choice & 0x20) != 0;
  options.require_reasoning = (choice & 0x10) != 0;
  if ((choice & 0x80) != 0) options.turns = &store;
  const auto request = recipe::convert(protocol, *body, options);
  if (!request) {
    DEEPMINT_CHECK(!request.error().message.empty());
    return 0;
  }
  check_prompt(recipe::render_prompt(request->conversation,
                                     {.version = options.version, .compat = options.compat}));
  check_reply(*request, options.compat);
  return 0;
}

}  // namespace deepmint::fuzz
