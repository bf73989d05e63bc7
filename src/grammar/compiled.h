// A grammar made ready for one vocabulary, and the specifications that it is compiled from.
//
//   Spec spec{.kind = SpecKind::kRegex, .text = "[0-9]{4}"};
//   DEEPMINT_TRY(compiled, compile(spec, vocabulary));       // shared_ptr<const Compiled>
//   Matcher matcher(compiled);                               // one per reply
//
// Compiled objects are shared by any number of matchers on any threads; the automaton inside grows
// lazily behind a lock. What a matcher answers never depends on what the cache holds.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "deepmint/result.h"
#include "grammar/grammar.h"
#include "grammar/vocabulary.h"

namespace deepmint::grammar {

enum class SpecKind { kJsonSchema, kRegex, kEbnf, kJsonObject, kChoice, kStructuralTag };
std::string_view to_string(SpecKind kind);  // "json_schema", "regex", "ebnf", "json_object", …

// text: the schema, the pattern, the grammar; empty for kJsonObject; a JSON array of strings for
// kChoice; JSON as structural_tag.h has it for kStructuralTag.
struct Spec {
  SpecKind kind = SpecKind::kJsonSchema;
  std::string text;
};

inline constexpr size_t kMaxSpecBytes = size_t{1} << 20;

class Lexer;
class Slices;

class Compiled {
 public:
  static Result<std::shared_ptr<const Compiled>> make(Grammar grammar,
                                                      std::shared_ptr<const Vocabulary> vocabulary,
                                                      const AutomatonLimits& limits = {});
  ~Compiled();

  const Grammar& grammar() const { return grammar_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  Lexer& lexer() const { return *lexer_; }     // internal; locks itself
  Slices& slices() const { return *slices_; }  // internal; under the lexer's lock
  size_t memory_bytes() const;                 // now, the lazily built automaton included

 private:
  Compiled(Grammar grammar, std::shared_ptr<const Vocabulary> vocabulary,
           const AutomatonLimits& limits);
  Grammar grammar_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::unique_ptr<Lexer> lexer_;
  std::unique_ptr<Slices> slices_;
};

// Errors: kInvalidArgument (malformed), kUnsupported (not done exactly), kTooLarge (a limit);
// `where` is a JSON pointer ("#/properties/a"), "line:column" or "character N".
Result<Grammar> compile_grammar(const Spec& spec);
// The same inside a larger grammar; a part that no text satisfies shows in build().
Result<Symbol> add_spec(GrammarBuilder& builder, const Spec& spec);
Result<std::shared_ptr<const Compiled>> compile(const Spec& spec,
                                                std::shared_ptr<const Vocabulary> vocabulary);

}  // namespace deepmint::grammar
