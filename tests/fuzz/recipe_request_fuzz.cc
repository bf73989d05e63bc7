// Any bytes as a request of any protocol, in every compatibility mode: no crash, no hang; what
// converts also renders, and control tokens are exactly the ranges that the renderer reports.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "recipe/convert.h"
#include "recipe/prompt.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepmint;
  if (size == 0) return 0;
  const uint8_t choice = data[0];
  const auto body = json::parse({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!body) return 0;
  recipe::ConvertOptions options;
  options.compat = static_cast<recipe::Compat>(choice % 3);
  options.version = choice & 0x40 ? recipe::ModelVersion::kV4 : recipe::ModelVersion::kV41;
  const auto request =
      recipe::convert(static_cast<recipe::Protocol>(choice / 3 % 3), *body, options);
  if (!request) {
    DEEPMINT_CHECK(!request.error().message.empty());
    return 0;
  }
  const recipe::Prompt prompt = recipe::render_prompt(
      request->conversation, {.version = options.version, .compat = options.compat});
  size_t done = 0;
  for (const auto& c : prompt.controls) {
    DEEPMINT_CHECK(c.begin >= done && c.end > c.begin && c.end <= prompt.text.size());
    done = c.end;
  }
  std::string joined;
  for (const Segment& s : prompt.segments()) joined += s.text;
  DEEPMINT_CHECK(joined == prompt.text);
  return 0;
}
