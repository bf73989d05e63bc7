#include "recipe/jinja/jinja.h"

#include "core/utf8.h"
#include "recipe/jinja/ast.h"
#include "recipe/jinja/interpreter.h"
#include "recipe/jinja/parser.h"

namespace deepmint::recipe::jinja {

struct Template::Tree {
  Body body;
};

Template::Template(std::unique_ptr<const Tree> tree) : tree_(std::move(tree)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Result<Template> Template::parse(std::string_view source) {
  if (!utf8::is_valid(source))
    return fail(ErrorCode::kInvalidArgument, "expected UTF-8, found other bytes", "chat template");
  auto tree = std::make_unique<Tree>();
  DEEPMINT_TRY(body, parse_template(source));
  tree->body = std::move(body);
  return Template(std::move(tree));
}

Result<std::vector<Segment>> Template::render(const Variables& variables,
                                              const Limits& limits) const {
  return Interpreter(variables, limits).run(tree_->body);
}

}  // namespace deepmint::recipe::jinja
