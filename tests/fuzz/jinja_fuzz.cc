// Any text as a chat template over a fixed conversation: no crash, no hang, bounded memory, errors
// of one line, and no byte of a caller in a control segment.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/json.h"
#include "promises.h"
#include "recipe/jinja/jinja.h"

namespace {

using namespace deepmint;

// Every caller string is written in capitals of another script, so that it can be told apart.
constexpr std::string_view kVariables = R"({
  "messages": [{"role": "ф", "content": "ф ф\nф"}, {"role": "фф", "content": null,
    "tool_calls": [{"id": "ф", "function": {"name": "ф", "arguments": {"ф": [1, 2.5, "ф"]}}}]}],
  "tools": [{"function": {"name": "ф", "parameters": {"ф": {"ф": "ф"}}}}],
  "n": 3, "l": [3, 1, 2], "s": "фы", "big": 123456789012345678901234567890})";

const recipe::jinja::Variables& variables() {
  static const auto* const all = [] {
    auto* v = new recipe::jinja::Variables;
    const auto parsed = json::parse(kVariables);
    fuzz::require(parsed.has_value());
    for (const json::Member& m : parsed->members()) v->caller.emplace_back(m.key, m.value);
    v->trusted.emplace_back("bos_token", json::Value(std::string("<s>")));
    return v;
  }();
  return *all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = recipe::jinja::Template::parse(source);
  if (!parsed) {
    fuzz::check_error(parsed.error());
    return 0;
  }
  const auto rendered = parsed->render(
      variables(),
      {.max_steps = 100'000, .max_output_bytes = 1 << 20, .max_total_bytes = 16 << 20});
  if (!rendered) {
    fuzz::check_error(rendered.error());
    return 0;
  }
  const bool template_has_it = source.find("\xd1") != std::string_view::npos ||
                               source.find("\xd0") != std::string_view::npos ||
                               source.find('\\') != std::string_view::npos;
  for (const Segment& s : *rendered) {
    fuzz::require(!s.text.empty() && utf8::is_valid(s.text));
    if (s.kind == Segment::Kind::kControl && !template_has_it)
      fuzz::require(s.text.find("\xd1\x84") == std::string::npos);
  }
  return 0;
}
