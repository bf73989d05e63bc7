// Chat Completions: one request to a prompt, and one reply to server-sent events.
#include <iostream>

#include "recipe/convert.h"
#include "recipe/prompt.h"
#include "recipe/reply_stream.h"

int main() {
  using namespace deepmint;
  const auto body = json::parse(
      R"({"model":"deepseek-flash","stream":true,"messages":[{"role":"user","content":"Hello"}]})");
  const auto request = recipe::convert(recipe::Protocol::kChat, *body, {});
  if (!request) {
    std::cerr << request.error().str() << '\n';
    return 1;
  }
  std::cout << recipe::render_prompt(request->conversation, {}).text << "\n\n";

  recipe::ReplyStream reply(*request,
                            {.id = "chatcmpl-1", .model = request->model, .created = 1700000000});
  reply.ready({.prompt_tokens = 40}, "fp-1");
  for (const char* piece : {"They greet", " me.</th", "ink>\n\nHello", "!"}) {
    reply.push_text(piece);
    std::cout << reply.take_sse();
  }
  reply.finish(recipe::BackendFinish::kStop);
  std::cout << reply.take_sse();
  return 0;
}
