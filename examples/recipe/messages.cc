// Messages: a tool call, then the whole response object.
#include <iostream>

#include "recipe/convert.h"
#include "recipe/prompt.h"
#include "recipe/reply_stream.h"

int main() {
  using namespace deepmint;
  const auto body = json::parse(
      R"({"model":"deepseek-flash","max_tokens":1000,"messages":[{"role":"user","content":"Weather in Paris?"}],
    "tools":[{"name":"get_weather","input_schema":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}]})");
  const auto request = recipe::convert(recipe::Protocol::kMessages, *body, {});
  if (!request) {
    std::cerr << request.error().str() << '\n';
    return 1;
  }
  recipe::ReplyStream reply(*request, {.id = "msg_1", .model = request->model});
  reply.ready({.prompt_tokens = 400, .cached_tokens = 384}, "fp-1");
  reply.push_text(
      "I need the tool.</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n"
      "<｜DSML｜ parameter name=\"city\" string=\"true\">Paris</｜DSML｜ parameter>\n</｜DSML｜ "
      "invoke>\n</｜DSML｜ calls>",
      40);
  reply.finish(recipe::BackendFinish::kStop);
  std::cout << reply.response() << '\n';
  return 0;
}
