#include "recipe/custom_tool.h"

#include <utility>

#include "recipe/fields.h"
#include "recipe/prompt_text.h"

namespace deepmint::recipe {

Result<Tool> make_custom_tool(std::string_view name, std::optional<std::string_view> description,
                              Compat compat, ModelVersion version) {
  Tool tool;
  tool.name = std::string(name);
  tool.custom = true;
  if (name == "apply_patch") {
    tool.description = std::string(apply_patch_description());
    if (version == ModelVersion::kV4 && compat != Compat::kRecipe01) {  // one empty line less
      const size_t at = tool.description->find("\n\n*** Begin Patch");
      if (at != std::string::npos) tool.description->erase(at, 1);
    }
    DEEPMINT_TRY(parameters, json::parse(apply_patch_parameters()));
    tool.parameters = std::move(parameters);
    return tool;
  }
  if (description) tool.description = std::string(*description);
  DEEPMINT_TRY(
      parameters,
      json::parse(
          R"({"type":"object","additionalProperties":false,"properties":{"input":{"type":"string"}},)"
          R"("required":["input"]})"));
  tool.parameters = std::move(parameters);
  return tool;
}

Result<std::optional<json::Value>> custom_tool_format(const json::Value& format) {
  DEEPMINT_TRY(outer, Fields::of(format, "struct CustomToolFormat"));
  DEEPMINT_TRY(type, outer.need_variant("type", {"text", "grammar"}));
  if (type == "text") return std::optional<json::Value>();
  const json::Value* wrapped = outer.get("grammar");
  DEEPMINT_TRY(inner,
               Fields::of(wrapped != nullptr ? *wrapped : format, "struct CustomToolGrammar"));
  DEEPMINT_TRY(syntax, inner.need_variant("syntax", {"lark", "regex"}));
  DEEPMINT_TRY(definition, inner.need_string("definition"));
  json::Object out{{"type", json::Value(std::string("grammar"))},
                   {"syntax", json::Value(std::string(syntax))},
                   {"definition", json::Value(std::string(definition))}};
  return std::optional<json::Value>(json::Value(std::move(out)));
}

std::string custom_tool_arguments(std::string_view input) {
  std::string out = "{\"input\":";
  json::append_escaped(out, input);
  out.push_back('}');
  return out;
}

}  // namespace deepmint::recipe
