// Responses: a turn that is stored, and the next one that continues it.
#include <iostream>

#include "recipe/convert.h"
#include "recipe/prompt.h"
#include "recipe/reply_stream.h"

int main() {
  using namespace deepmint;
  recipe::MemoryTurnStore turns;
  const recipe::ConvertOptions options{.turns = &turns};
  const auto first = recipe::convert(
      recipe::Protocol::kResponses,
      *json::parse(R"({"model":"deepseek-flash","input":"Name a colour."})"), options);
  if (!first) return 1;
  recipe::ReplyStream reply(*first, {.id = "resp_1", .model = first->model});
  reply.push_text("Any will do.</think>Blue.");
  reply.finish(recipe::BackendFinish::kStop);
  const auto response = json::parse(reply.response());

  recipe::StoredTurn turn;
  turn.items.push_back(*json::parse(R"({"role":"user","content":"Name a colour."})"));
  for (const json::Value& item : response->find("output")->items()) turn.items.push_back(item);
  turns.put_turn("", "resp_1", turn);

  const auto next = recipe::convert(
      recipe::Protocol::kResponses,
      *json::parse(
          R"({"model":"deepseek-flash","input":"And another?","previous_response_id":"resp_1"})"),
      options);
  if (!next) return 1;
  std::cout << recipe::render_prompt(next->conversation, {}).text << '\n';
  return 0;
}
