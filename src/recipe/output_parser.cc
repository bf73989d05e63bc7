#include "recipe/output_parser.h"

#include "recipe/exact_parser.h"
#include "recipe/lenient_parser.h"

namespace deepmint::recipe {

std::unique_ptr<OutputParser> OutputParser::create(const ParsingOptions& options,
                                                   const std::vector<Tool>& tools, Compat compat,
                                                   OutputSink& sink) {
  if (compat == Compat::kOurs) return std::make_unique<LenientParser>(options, tools, sink);
  return std::make_unique<ExactParser>(options, compat == Compat::kRecipe01, sink);
}

}  // namespace deepmint::recipe
