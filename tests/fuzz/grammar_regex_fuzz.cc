// Any text as a regular expression. The first byte chooses the dialect and whether the pattern may
// match anywhere. Errors are one line with a place; where it compiles, emptiness, membership by
// bytes and a complement agree with each other.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "grammar/grammar.h"
#include "grammar/regex_parser.h"
#include "promises.h"

using namespace deepmint;
using namespace deepmint::grammar;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view pattern(reinterpret_cast<const char*>(data) + 1, size - 1);
  const RegexOptions options{.dialect = (data[0] & 1) ? RegexDialect::kEcma : RegexDialect::kRe2,
                             .search = (data[0] & 2) != 0};
  GrammarBuilder builder;
  RegexSet& set = builder.regexes();
  const auto language = parse_regex(set, pattern, options);
  if (!language) {
    fuzz::check_error(language.error());
    fuzz::require(language.error().code != ErrorCode::kInternal);
    return 0;
  }
  const bool empty = set.empty(*language);
  if (set.exhausted()) return 0;
  // A text that the language accepts, found along derivatives: its complement must refuse it.
  const RegexId others = set.complement(*language);
  RegexId in = *language, out = others;
  for (size_t i = 0; i < 64 && !set.exhausted(); ++i) {
    fuzz::require(set.nullable(in) != set.nullable(out));
    if (set.nullable(in)) fuzz::require(!empty);
    const uint8_t byte = data[i % size];
    in = set.derivative(in, byte);
    out = set.derivative(out, byte);
  }
  builder.set_start(builder.terminal(*language));
  const auto grammar = builder.build();
  if (!grammar) fuzz::require(empty || grammar.error().code == ErrorCode::kTooLarge);
  return 0;
}
