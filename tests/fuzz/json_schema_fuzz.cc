// Any text as a JSON Schema: no crash, no hang, bounded memory, errors of one line with a reason.
// Where it compiles, texts drawn from the grammar never lead into a dead end and are JSON.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "grammar/compiled.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "promises.h"

namespace {

using namespace deepmint;
using namespace deepmint::grammar;

std::shared_ptr<const Vocabulary> bytes() {
  static const auto* const all = [] {
    std::vector<std::string> ids;
    for (int b = 0; b < 256; ++b) ids.emplace_back(1, static_cast<char>(b));
    ids.emplace_back();
    return new Result<std::shared_ptr<const Vocabulary>>(
        Vocabulary::make(std::move(ids), 257, {256}));
  }();
  return **all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto schema = json::parse(text, {.max_bytes = kMaxSpecBytes});
  if (!schema) return 0;
  auto grammar = compile_json_schema(*schema);
  if (!grammar) {
    fuzz::require(!grammar.error().message.empty());
    fuzz::require(grammar.error().message.find('\n') == std::string::npos);
    fuzz::require(grammar.error().code != ErrorCode::kInternal);
    return 0;
  }
  const auto compiled = Compiled::make(std::move(*grammar), bytes());
  fuzz::require(compiled.has_value());
  uint64_t state = 0x9e3779b97f4a7c15u ^ size;
  for (int draw = 0; draw < 2; ++draw) {
    Matcher matcher(*compiled);
    std::string out;
    bool whole = false;
    while (out.size() < 300) {
      if (!matcher.status()) return 0;
      if (matcher.may_stop()) {
        whole = true;
        break;
      }
      const ByteSet next = matcher.next_bytes();
      if (!matcher.status()) return 0;
      fuzz::require(!next.empty());  // a text that may not stop can go on
      // Ends of values first, so that texts stay short.
      int byte = -1;
      for (const char c : std::string_view("\"}]")) {
        if (next.has(static_cast<uint8_t>(c)) && (state >> 60) != 0) byte = static_cast<uint8_t>(c);
      }
      state = state * 6364136223846793005u + 1442695040888963407u;
      for (unsigned skip = (state >> 33) % 256, b = 0; byte < 0; b = (b + 1) % 256) {
        if (!next.has(b)) continue;
        if (skip-- == 0) byte = static_cast<int>(b);
      }
      fuzz::require(matcher.accept(byte));
      out.push_back(static_cast<char>(byte));
    }
    if (whole) fuzz::require(json::parse(out, {.max_depth = 1000}).has_value());
  }
  return 0;
}
