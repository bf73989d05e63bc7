#include "recipe/output_parser.h"

#include "recipe/exact_parser.h"

namespace deepmint::recipe {

std::unique_ptr<OutputParser> OutputParser::create(const ParsingOptions& options,
                                                   const std::vector<Tool>&, Compat compat,
                                                   OutputSink& sink) {
  return std::make_unique<ExactParser>(options, compat == Compat::kRecipe01, sink);
}

}  // namespace deepmint::recipe
