// Pre-tokenizer patterns: the known ones by name, and the translation of any other from the dialect
// of tokenizer.json files (Oniguruma, Unicode 16) to PCRE2. A construct that would mean something
// else there is an error that names it.
//
//   DEEPMINT_TRY(regex, pattern_to_pcre2("\\s+(?!\\S)|\\p{L}+"));
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "tokenizer/tokenizer.h"

namespace deepmint {

// The definition of a known pre-tokenizer: isolating splits, applied one after another.
std::span<const std::string_view> known_patterns(PreTokenizer pre);
std::string_view to_string(PreTokenizer pre);  // "gpt2", "llama3", "qwen2", "smollm", "deepseek-v3"

// Which known pre-tokenizer these patterns are, in whatever spelling; nullopt when none.
std::optional<PreTokenizer> recognize_patterns(std::span<const std::string> patterns);

// Same matches with PCRE2_UTF and the newline set to LF. Errors: kUnsupported naming the construct,
// `where` is its offset.
Result<std::string> pattern_to_pcre2(std::string_view pattern);

}  // namespace deepmint
