// Any text as the reply of a dense model, in every family's format, cut anywhere: no crash, no
// hang, the same segments as the whole text, calls whose arguments are JSON, and not a byte
// invented.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/json.h"
#include "core/utf8.h"
#include "joined_segments.h"
#include "recipe/family_parser.h"
#include "text_cuts.h"

namespace {

using namespace deepmint;

// Checks the order of a reply's segments beside joining them.
struct Checked final : fuzz::JoinedSegments {
  void reasoning(std::string_view s) override {
    DEEPMINT_CHECK(!in_call);
    JoinedSegments::reasoning(s);
    bytes += s.size();
  }
  void text(std::string_view s) override {
    DEEPMINT_CHECK(!in_call);
    JoinedSegments::text(s);
    bytes += s.size();
  }
  void tool_begin(std::string_view s) override {
    DEEPMINT_CHECK(!in_call && !s.empty());
    JoinedSegments::tool_begin(s);
    in_call = true;
    ++calls;
    arguments.clear();
  }
  void tool_arguments(std::string_view s) override {
    DEEPMINT_CHECK(in_call);
    JoinedSegments::tool_arguments(s);
    arguments.append(s);
  }
  void tool_end(bool complete) override {
    DEEPMINT_CHECK(in_call && complete);
    JoinedSegments::tool_end(complete);
    in_call = false;
    // Usually an object; a model that writes something else gets what it wrote.
    DEEPMINT_CHECK(json::parse(arguments).has_value());
  }
  bool in_call = false;
  int calls = 0;
  size_t bytes = 0;  // of reasoning and text
  std::string arguments;
};

std::string parse(std::string_view text, const recipe::ReplyFormat& format,
                  const recipe::FamilyParser::Options& options, size_t step) {
  Checked join;
  recipe::FamilyParser parser(format, options, join);
  fuzz::push_in_pieces(text, step, [&](std::string_view piece) { parser.push(piece); });
  parser.finish();
  DEEPMINT_CHECK(!join.in_call);
  DEEPMINT_CHECK(parser.called() == (join.calls > 0));
  DEEPMINT_CHECK(options.tools || join.calls == 0);
  DEEPMINT_CHECK(join.calls > 0 || join.bytes <= text.size());
  return join.out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint8_t flags = data[0];
  const std::string text = utf8::sanitize({reinterpret_cast<const char*>(data) + 2, size - 2});
  recipe::ReplyFormat format;
  format.calls = static_cast<recipe::ReplyFormat::Calls>((flags & 7) % 5);
  format.thinks = (flags & 8) != 0;
  const recipe::FamilyParser::Options options{
      .tools = (flags & 16) != 0, .starts_in_thinking = format.thinks && (flags & 32) != 0};
  const std::string whole = parse(text, format, options, text.size() + 1);
  DEEPMINT_CHECK(whole == parse(text, format, options, 1));
  DEEPMINT_CHECK(whole == parse(text, format, options, 1 + data[1] % 7));
  return 0;
}
