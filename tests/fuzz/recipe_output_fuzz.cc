// Any text as model output, cut anywhere: no crash, no hang, and the same segments as the whole
// text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/utf8.h"
#include "joined_segments.h"
#include "recipe/output_parser.h"
#include "text_cuts.h"

namespace {

using namespace deepmint;

std::string parse(std::string_view text, const recipe::ParsingOptions& options,
                  recipe::Compat compat, size_t step) {
  fuzz::JoinedSegments join;
  const auto parser = recipe::OutputParser::create(options, {}, compat, join);
  fuzz::push_in_pieces(text, step, [&](std::string_view piece) { parser->push(piece); });
  parser->finish();
  join.put('\6', recipe::to_string(parser->finish_reason(recipe::BackendFinish::kStop)));
  return join.out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint8_t flags = data[0];
  const std::string text = utf8::sanitize({reinterpret_cast<const char*>(data) + 2, size - 2});
  recipe::ParsingOptions options;
  options.parse_tool_calls = flags & 1;
  options.stage = static_cast<recipe::ThinkingStage>(flags >> 1 & 3);
  options.starts_in_tool_calls = flags & 8;
  const auto compat = static_cast<recipe::Compat>((flags >> 5) % 3);
  // The original's JSON mode writes spaces per chunk, so only ours is the same at every cut.
  options.parse_json_output = (flags & 16) != 0 && compat == recipe::Compat::kOurs;
  if (data[1] & 1) options.stop_sequences = {"END", "\n\n", "a<", "aab"};
  const std::string whole = parse(text, options, compat, text.size() + 1);
  DEEPMINT_CHECK(whole == parse(text, options, compat, 1));
  DEEPMINT_CHECK(whole == parse(text, options, compat, 1 + data[1] % 7));
  return 0;
}
