// A grammar and a vocabulary at work for the grammar command: texts are walked token by token as a
// model would write them, every mask and every step timed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "deepmint/result.h"
#include "grammar/compiled.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "tokenizer/tokenizer.h"

namespace deepmint::cli {

// Every byte is a token, 256 ends the text: how texts are walked without a tokenizer.
Result<std::shared_ptr<const grammar::Vocabulary>> byte_vocabulary();
// width: of the logits; 0 = as many as the tokenizer has ids.
Result<std::shared_ptr<const grammar::Vocabulary>> vocabulary_of(const Tokenizer& tokenizer,
                                                                 size_t width);

struct GrammarSource {
  grammar::SpecKind kind = grammar::SpecKind::kJsonSchema;
  std::string text;
  grammar::JsonSchemaOptions options;
};
Result<grammar::Grammar> build_grammar(const GrammarSource& source);

// Nanoseconds, one entry per step.
struct GrammarTimes {
  std::vector<float> mask_ns, accept_ns;
};
struct TimeSummary {
  double mean = 0, p50 = 0, p99 = 0, max = 0;
};
TimeSummary summarize(std::vector<float> values);  // in the unit of the values; zeros when empty

struct Walk {
  bool accepted = false;
  size_t bytes = 0;  // where it stopped: the length of the text, or the first byte refused
  size_t tokens = 0;
};

class GrammarCase {
 public:
  // Without a tokenizer texts are walked byte by byte; `vocabulary` is then byte_vocabulary().
  GrammarCase(std::shared_ptr<const grammar::Vocabulary> vocabulary, const Tokenizer* tokenizer)
      : vocabulary_(std::move(vocabulary)), tokenizer_(tokenizer) {}

  Status compile(const GrammarSource& source);
  // Walks the text and adds its times when `times` is given. With times or a tokenizer every step
  // is also checked against its mask; kInternal when they differ.
  Result<Walk> walk(std::string_view text, GrammarTimes* times) const;

  double compile_us() const { return compile_us_; }
  const grammar::Compiled& compiled() const { return *compiled_; }
  std::shared_ptr<const grammar::Compiled> shared() const { return compiled_; }

 private:
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  const Tokenizer* tokenizer_;
  std::shared_ptr<const grammar::Compiled> compiled_;
  double compile_us_ = 0;
};

// A text that the grammar accepts, drawn byte by byte from what may come next, with a growing wish
// to end. `case_of_bytes` was made with byte_vocabulary(). kUnavailable when no end was found
// within max_bytes.
Result<std::string> sample(const GrammarCase& case_of_bytes, std::mt19937_64& rng,
                           size_t max_bytes);

// `"a" … "z", '{' or the end of the text`.
std::string describe(const grammar::ByteSet& bytes, bool may_stop);

}  // namespace deepmint::cli
