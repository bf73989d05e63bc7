// Any text as a grammar in GBNF: no crash, no hang, errors of one line that say line and column.
// Where it compiles, bytes taken from what may come next are taken, and nothing leads into a dead
// end.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/compiled.h"
#include "grammar/ebnf.h"
#include "grammar/matcher.h"
#include "promises.h"

namespace {

using namespace deepmint;
using namespace deepmint::grammar;

// Every byte, a stop id and a few control tokens.
constexpr TokenId kStop = 256;
std::shared_ptr<const Vocabulary> bytes() {
  static const auto* const all = [] {
    std::vector<std::string> ids;
    for (int b = 0; b < 256; ++b) ids.emplace_back(1, static_cast<char>(b));
    return new Result<std::shared_ptr<const Vocabulary>>(
        Vocabulary::make(std::move(ids), 260, {kStop}));
  }();
  return **all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto grammar = compile_ebnf(text);
  if (!grammar) {
    fuzz::check_error(grammar.error());
    fuzz::require(grammar.error().code != ErrorCode::kInternal);
    return 0;
  }
  const auto compiled = Compiled::make(std::move(*grammar), bytes());
  if (!compiled) return 0;  // a control token that the vocabulary does not have
  Matcher matcher(*compiled);
  for (size_t step = 0; step < 48; ++step) {
    const ByteSet next = matcher.next_bytes();
    if (!matcher.status()) return 0;
    if (next.empty()) {
      fuzz::require(matcher.may_stop() || matcher.may_continue());
      return 0;
    }
    unsigned skip = data[(step * 7) % size] % static_cast<unsigned>(next.count());
    unsigned byte = 0;
    while (!next.has(byte) || skip-- > 0) ++byte;
    fuzz::require(matcher.accept(static_cast<TokenId>(byte)) || !matcher.status());
  }
  return 0;
}
