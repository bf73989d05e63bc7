// Conversation → the exact prompt of DeepSeek V4 or V4.1.
//
//   Prompt p = render_prompt(request.conversation, {.version = ModelVersion::kV41});
//   std::vector<TokenId> ids = tokenizer.encode(p.segments());
//
// A pure function of its arguments, and stable under appending: the prompt of turn n is a prefix of
// the prompt of turn n+1 as far as the format allows. Control tokens and caller text never mix:
// only the ranges in `controls` are control tokens, whatever characters a caller sends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "recipe/conversation.h"

namespace deepmint::recipe {

struct PromptOptions {
  ModelVersion version = ModelVersion::kV41;
  Compat compat = Compat::kOurs;
  // Reasoning of earlier turns while thinking is on. Unset: kept when tools are declared and
  // dropped otherwise, as the published encoders do since 0.2 (0.1 kept it always). True keeps it
  // always, which makes longer cached prefixes.
  std::optional<bool> keep_reasoning = {};
};

struct Prompt {
  struct Range {
    size_t begin = 0, end = 0;  // bytes of `text`
    int message = -1;           // index in Conversation::messages; -1: the template
  };
  std::string text;
  std::vector<Range> controls;      // each is exactly one control token; ascending, disjoint
  std::vector<Range> origins;       // where caller text came from; ascending, disjoint; what lies
                                    // between is the template
  std::vector<ImageSource> images;  // in the order of their <｜image｜> control tokens

  std::vector<Segment> segments() const;
};

Prompt render_prompt(const Conversation& conversation, const PromptOptions& options);

}  // namespace deepmint::recipe
