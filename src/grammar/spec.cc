// From a specification's text to a grammar: the one place that knows every kind.
#include <fmt/format.h>

#include <string>

#include "core/json.h"
#include "core/utf8.h"
#include "grammar/compiled.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex_parser.h"

namespace deepmint::grammar {

namespace {

Result<Grammar> compile_regex(std::string_view pattern) {
  GrammarBuilder builder;
  DEEPMINT_TRY(id, parse_regex(builder.regexes(), pattern, {}));
  builder.set_start(builder.terminal(id));
  return builder.build();
}

Result<Grammar> compile_choice(std::string_view text) {
  DEEPMINT_TRY(
      list, json::parse(text, {.max_bytes = kMaxSpecBytes, .max_depth = 4, .max_values = 100'000}));
  if (list.kind() != json::Kind::kArray || list.items().empty())
    return fail(ErrorCode::kInvalidArgument, "expected a JSON array of at least one string");
  GrammarBuilder builder;
  std::vector<RegexId> choices;
  for (size_t i = 0; i < list.items().size(); ++i) {
    const json::Value& item = list.items()[i];
    if (!item.is_string())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected a string, found {}", json::to_string(item.kind())),
                  fmt::format("#/{}", i));
    choices.push_back(builder.regexes().literal(item.as_string()));
  }
  builder.set_start(builder.terminal(builder.regexes().alternate(choices)));
  return builder.build();
}

}  // namespace

Result<Grammar> compile_grammar(const Spec& spec) {
  if (spec.text.size() > kMaxSpecBytes)
    return fail(ErrorCode::kTooLarge,
                fmt::format("expected at most {} bytes of {}, found {}", kMaxSpecBytes,
                            to_string(spec.kind), spec.text.size()));
  switch (spec.kind) {
    case SpecKind::kRegex:
      return compile_regex(spec.text);
    case SpecKind::kEbnf:
      return compile_ebnf(spec.text);
    case SpecKind::kChoice:
      return compile_choice(spec.text);
    case SpecKind::kJsonSchema: {
      DEEPMINT_TRY(schema, json::parse(spec.text, {.max_bytes = kMaxSpecBytes}));
      return compile_json_schema(schema);
    }
    case SpecKind::kJsonObject:
      return compile_json_object();
  }
  return fail(ErrorCode::kInternal, "a specification of no known kind");
}

Result<std::shared_ptr<const Compiled>> compile(const Spec& spec,
                                                std::shared_ptr<const Vocabulary> vocabulary) {
  DEEPMINT_TRY(grammar, compile_grammar(spec));
  return Compiled::make(std::move(grammar), std::move(vocabulary));
}

}  // namespace deepmint::grammar
