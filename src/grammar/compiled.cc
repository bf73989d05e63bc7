#include "grammar/compiled.h"

#include <fmt/format.h>

#include "grammar/lexer.h"
#include "grammar/slices.h"

namespace deepmint::grammar {

std::string_view to_string(SpecKind kind) {
  switch (kind) {
    case SpecKind::kJsonSchema:
      return "json_schema";
    case SpecKind::kRegex:
      return "regex";
    case SpecKind::kEbnf:
      return "ebnf";
    case SpecKind::kJsonObject:
      return "json_object";
    case SpecKind::kChoice:
      return "choice";
    case SpecKind::kStructuralTag:
      return "structural_tag";
  }
  return "?";
}

Compiled::Compiled(Grammar grammar, std::shared_ptr<const Vocabulary> vocabulary,
                   const AutomatonLimits& limits)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      lexer_(std::make_unique<Lexer>(grammar_, limits)),
      slices_(std::make_unique<Slices>(*lexer_, *vocabulary_)) {}

Compiled::~Compiled() = default;

Result<std::shared_ptr<const Compiled>> Compiled::make(Grammar grammar,
                                                       std::shared_ptr<const Vocabulary> vocabulary,
                                                       const AutomatonLimits& limits) {
  for (const TokenId id : grammar.tokens) {
    if (id < 0 || static_cast<size_t>(id) >= vocabulary->width())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("token {} of the grammar is outside the vocabulary of {}", id,
                              vocabulary->width()));
    if (!vocabulary->bytes(id).empty())
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("token {} of the grammar is ordinary text: write what it spells", id));
    if (vocabulary->is_stop(id))
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("token {} of the grammar ends the text: a grammar cannot demand it", id));
  }
  return std::shared_ptr<const Compiled>(
      new Compiled(std::move(grammar), std::move(vocabulary), limits));
}

size_t Compiled::memory_bytes() const {
  const auto held = lexer_->lock();
  return sizeof(*this) + grammar_.memory_bytes() + lexer_->memory_bytes() + slices_->memory_bytes();
}

}  // namespace deepmint::grammar
