// From a specification's text to a grammar: the one place that knows every kind.
#include <fmt/format.h>

#include <string>

#include "core/json.h"
#include "core/utf8.h"
#include "grammar/compiled.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex_parser.h"
#include "grammar/structural_tag.h"

namespace deepmint::grammar {

namespace {

Result<Symbol> add_choice(GrammarBuilder& builder, std::string_view text) {
  DEEPMINT_TRY(
      list, json::parse(text, {.max_bytes = kMaxSpecBytes, .max_depth = 4, .max_values = 100'000}));
  if (list.kind() != json::Kind::kArray || list.items().empty())
    return fail(ErrorCode::kInvalidArgument, "expected a JSON array of at least one string");
  std::vector<RegexId> choices;
  for (size_t i = 0; i < list.items().size(); ++i) {
    const json::Value& item = list.items()[i];
    if (!item.is_string())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected a string, found {}", json::to_string(item.kind())),
                  fmt::format("#/{}", i));
    choices.push_back(builder.regexes().literal(item.as_string()));
  }
  return builder.terminal(builder.regexes().alternate(choices));
}

Status check_size(const Spec& spec) {
  if (spec.text.size() <= kMaxSpecBytes) return {};
  return fail(ErrorCode::kTooLarge,
              fmt::format("expected at most {} bytes of {}, found {}", kMaxSpecBytes,
                          to_string(spec.kind), spec.text.size()));
}

}  // namespace

Result<Symbol> add_spec(GrammarBuilder& builder, const Spec& spec) {
  DEEPMINT_CHECK_OK(check_size(spec));
  switch (spec.kind) {
    case SpecKind::kRegex: {
      DEEPMINT_TRY(id, parse_regex(builder.regexes(), spec.text, {}));
      return builder.terminal(id);
    }
    case SpecKind::kEbnf:
      return add_ebnf(builder, spec.text);
    case SpecKind::kChoice:
      return add_choice(builder, spec.text);
    case SpecKind::kJsonSchema: {
      DEEPMINT_TRY(schema, json::parse(spec.text, {.max_bytes = kMaxSpecBytes}));
      return add_json_schema(builder, schema);
    }
    case SpecKind::kJsonObject:
      return add_json_object(builder);
    case SpecKind::kStructuralTag: {
      DEEPMINT_TRY(tags, parse_structural_tags(spec.text));
      return add_structural_tags(builder, tags);
    }
  }
  return fail(ErrorCode::kInternal, "a specification of no known kind");
}

Result<Grammar> compile_grammar(const Spec& spec) {
  DEEPMINT_CHECK_OK(check_size(spec));
  if (spec.kind == SpecKind::kJsonSchema) {  // says itself that no value satisfies a schema
    DEEPMINT_TRY(schema, json::parse(spec.text, {.max_bytes = kMaxSpecBytes}));
    return compile_json_schema(schema);
  }
  GrammarBuilder builder;
  DEEPMINT_TRY(start, add_spec(builder, spec));
  builder.set_start(start);
  return builder.build();
}

Result<std::shared_ptr<const Compiled>> compile(const Spec& spec,
                                                std::shared_ptr<const Vocabulary> vocabulary) {
  DEEPMINT_TRY(grammar, compile_grammar(spec));
  return Compiled::make(std::move(grammar), std::move(vocabulary));
}

}  // namespace deepmint::grammar
