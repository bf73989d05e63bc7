// The options that say what a reply looks like: --schema, --regex, --grammar, --structural-tag.
// Shared by the commands that hold replies to a form.
//
//   ReplyFormat format;
//   format.options(o);
//   DEEPMINT_CHECK_OK(format.check("deepmint run"));
//   DEEPMINT_TRY(given, format.read());                 // nullopt: none was asked for
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/open_model.h"
#include "cli/options.h"
#include "deepmint/result.h"
#include "engine/grammar_masks.h"

namespace deepmint::cli {

class ReplyFormat {
 public:
  struct Given {
    grammar::Spec spec;
    std::string_view option;  // "--schema"
    std::string place;        // the file, or the option: where an error is
  };

  void options(Options& o);
  Status check(std::string_view command) const;  // at most one of them
  Result<std::optional<Given>> read() const;     // reads the file

 private:
  std::optional<std::string> schema_, regex_, grammar_, tags_;
};

// Compiles, and gives what further masks of the same form come from. Errors name the place in the
// specification, behind `given.place`.
struct CompiledFormat {
  std::shared_ptr<GrammarMasks> grammars;
  std::shared_ptr<TokenMask> mask;  // at the beginning of the form
};
Result<CompiledFormat> compile_format(const ReplyFormat::Given& given, const OpenModel& open);

}  // namespace deepmint::cli
