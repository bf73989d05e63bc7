#include "recipe/convert_responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "recipe/prompt_text.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {
Result<ResponsesConverter::RawTool> ResponsesConverter::read_function(const Fields& f,
                                                                      std::string path) const {
  RawTool t;
  t.type = "function";
  t.path = std::move(path);
  DEEPMINT_TRY(name, f.need_string("name"));
  DEEPMINT_TRY(description, f.opt_string("description"));
  DEEPMINT_TRY(strict, f.opt_bool("strict"));
  t.name = name;
  t.description = description;
  t.strict = strict;
  t.parameters = f.get("parameters");
  return t;
}

Result<ResponsesConverter::RawTool> ResponsesConverter::read_custom(const Fields& f,
                                                                    std::string path) const {
  RawTool t;
  t.type = "custom";
  t.path = std::move(path);
  DEEPMINT_TRY(name, f.need_string("name"));
  t.name = name;
  if (ours()) {
    DEEPMINT_TRY(description, f.opt_string("description"));
    t.description = description;
    t.format = f.get("format");
  }
  return t;
}

Status ResponsesConverter::read_tools(const json::Array& tools, std::string_view where) {
  for (size_t i = 0; i < tools.size(); ++i) {
    DEEPMINT_TRY(f, Fields::of(tools[i], "internally tagged enum ResponsesTool"));
    DEEPMINT_TRY(type, f.need_string("type"));
    const std::string path = fmt::format("{}[{}]", where, i);
    if (type == "function") {
      DEEPMINT_TRY(t, read_function(f, path));
      raw_tools_.push_back(std::move(t));
    } else if (type == "custom") {
      DEEPMINT_TRY(t, read_custom(f, path));
      raw_tools_.push_back(std::move(t));
    } else if (type == "namespace") {
      RawTool t;
      t.type = type;
      t.path = path;
      DEEPMINT_TRY(name, f.need_string("name"));
      DEEPMINT_TRY(description, f.opt_string("description"));
      DEEPMINT_TRY(list, f.need_array("tools"));
      t.name = name;
      t.description = description;
      for (size_t j = 0; j < list->size(); ++j) {
        DEEPMINT_TRY(g, Fields::of((*list)[j], "internally tagged enum ResponsesNamespaceTool"));
        DEEPMINT_TRY(kind, g.need_variant("type", {"function", "custom"}));
        const std::string inner_path = fmt::format("{}.tools[{}]", path, j);
        DEEPMINT_TRY(
            inner, kind == "function" ? read_function(g, inner_path) : read_custom(g, inner_path));
        t.inner.push_back(std::move(inner));
      }
      raw_tools_.push_back(std::move(t));
    } else {
      RawTool t;
      t.type = type;
      t.path = path;
      raw_tools_.push_back(std::move(t));
    }
  }
  return {};
}

bool ResponsesConverter::is_web_search(std::string_view type) {
  return type == "web_search" || type == "web_search_2025_08_26";
}

Result<ConvertBase::Declared> ResponsesConverter::declare(const RawTool& t) const {
  Declared d;
  d.tool.name = std::string(t.name);
  d.name_path = t.path + ".name";
  d.path01 = t.path;
  if (t.type == "function") {
    DEEPMINT_CHECK_OK(check_tool_name(t.name, d.name_path, d.path01));
    if (t.description) d.tool.description = std::string(*t.description);
    d.tool.strict = t.strict;
    d.has_parameters = t.parameters != nullptr;
    if (t.parameters != nullptr) d.tool.parameters = *t.parameters;
    return d;
  }
  d.tool.custom = true;
  if (t.name == "apply_patch") {
    d.tool.description = std::string(apply_patch_description());
    if (v4() && !v01()) {  // one empty line less
      const size_t at = d.tool.description->find("\n\n*** Begin Patch");
      if (at != std::string::npos) d.tool.description->erase(at, 1);
    }
    DEEPMINT_TRY(parameters, json::parse(apply_patch_parameters()));
    d.tool.parameters = std::move(parameters);
    if (ours() && t.format != nullptr) d.tool.format = *t.format;
    return d;
  }
  if (!ours()) {
    return request_error(
        fmt::format("Unsupported custom tool: '{}'. Only 'apply_patch' is supported{}", t.name,
                    v01() ? "" : "."));
  }
  DEEPMINT_CHECK_OK(check_tool_name(t.name, d.name_path, d.path01));
  if (t.description) d.tool.description = std::string(*t.description);
  DEEPMINT_TRY(
      parameters,
      json::parse(
          R"({"type":"object","additionalProperties":false,"properties":{"input":{"type":"string"}},)"
          R"("required":["input"]})"));
  d.tool.parameters = std::move(parameters);
  if (t.format != nullptr && t.format->find("type") != nullptr &&
      *t.format->find("type") != json::Value(std::string("text")))
    d.tool.format = *t.format;
  return d;
}

Status ResponsesConverter::assign_tools() {
  std::vector<Declared> tools;
  std::set<std::string> taken, namespaces;
  for (const RawTool& t : raw_tools_) {
    if (t.type == "function" || t.type == "custom") {
      DEEPMINT_TRY(d, declare(t));
      if (d.tool.custom) r_.reply.custom_tools.push_back(d.tool.name);
      taken.insert(d.tool.name);
      tools.push_back(std::move(d));
    } else if (t.type == "namespace") {
      DEEPMINT_CHECK_OK(add_namespace(t, tools, taken, namespaces));
    } else if (is_web_search(t.type) && o_.responses_web_search == WebSearch::kReject) {
      return request_error(fmt::format("{}: server tools are not supported", t.path));
    } else if (ours()) {
      warn(
          fmt::format("{}: tool type {} is not served; the model does not see it", t.path, t.type));
    }
  }
  if (ours() && choice_.name && std::none_of(tools.begin(), tools.end(), [&](const Declared& d) {
        return d.tool.name == *choice_.name;
      })) {
    if (const auto only = resolve_name(tools, *choice_.name)) choice_.name = *only;
  }
  if (ours() && allowed_) {
    std::erase_if(tools, [&](const Declared& d) { return !allowed_->contains(d.tool.name); });
  }
  return set_tools(std::move(tools), choice_);
}

std::string_view ResponsesConverter::separator() const { return v4() && !v01() ? "__" : "::"; }

// A name with a missing or an extra namespace prefix, when exactly one tool matches.
std::optional<std::string> ResponsesConverter::resolve_name(const std::vector<Declared>& tools,
                                                            std::string_view name) {
  const auto tail = [](std::string_view s) {
    const size_t at = s.rfind("::");
    return at == std::string_view::npos ? s : s.substr(at + 2);
  };
  std::optional<std::string> found;
  for (const Declared& d : tools) {
    if (tail(d.tool.name) != tail(name)) continue;
    if (found) return std::nullopt;
    found = d.tool.name;
  }
  return found;
}

Status ResponsesConverter::add_namespace(const RawTool& t, std::vector<Declared>& tools,
                                         std::set<std::string>& taken,
                                         std::set<std::string>& seen) {
  DEEPMINT_CHECK_OK(check_tool_name(t.name, t.path + ".name", t.path));
  if (v01() && !seen.insert(std::string(t.name)).second)
    return request_error(fmt::format("{}: duplicate namespace name '{}'", t.path, t.name));
  std::unordered_set<std::string_view> inner_names;
  for (const RawTool& inner : t.inner) {
    if (inner.type == "custom" && !ours()) {
      if (v01())
        return request_error(
            fmt::format("{}: custom tools are not supported inside a namespace", inner.path));
      return request_error(
          fmt::format("Currently custom tools are not allowed inside a namespace. Found custom "
                      "tool '{}' in {}.",
                      inner.name, inner.path));
    }
    DEEPMINT_TRY(d, declare(inner));
    if (!inner_names.insert(inner.name).second)
      return request_error(v01() ? "Tool names must be unique"
                                 : "Tool names within a namespace must be unique.");
    if (t.description && !t.description->empty() && separator() == "::")
      d.tool.description =
          fmt::format("{}\n{}", *t.description, d.tool.description.value_or(std::string()));
    // V4 knows the names of the package's older form.
    const std::string base = fmt::format("{}{}{}", t.name, separator(), inner.name);
    d.tool.name = base;
    for (int suffix = 1; taken.contains(d.tool.name); ++suffix)
      d.tool.name = fmt::format("{}_{}", base, suffix);
    taken.insert(d.tool.name);
    r_.reply.namespaces[d.tool.name] = {std::string(t.name), std::string(inner.name)};
    if (d.tool.custom) r_.reply.custom_tools.push_back(d.tool.name);
    tools.push_back(std::move(d));
  }
  return {};
}

// additional_tools may repeat what an earlier item or the request declared: the first stays.
void ResponsesConverter::drop_repeated_tools() {
  std::set<std::string> seen;
  std::erase_if(raw_tools_, [&](const RawTool& t) {
    const bool repeated = !seen.insert(fmt::format("{}/{}", t.type, t.name)).second;
    return repeated && !t.path.starts_with("tools[");
  });
}

std::string ResponsesConverter::tool_echo(const RawTool& t) const {
  if (t.type == "function") {
    return fmt::format(
        "{{\"type\":\"function\",\"name\":{},\"description\":{},\"parameters\":{},\"strict\":{}}"
        "}",
        quoted_json(t.name), quoted_or_null(t.description),
        t.parameters == nullptr ? "null" : compact_json(*t.parameters),
        !t.strict   ? "null"
        : *t.strict ? "true"
                    : "false");
  }
  if (t.type == "custom") {
    std::string out = fmt::format("{{\"type\":\"custom\",\"name\":{}", quoted_json(t.name));
    if (t.description) out.append(",\"description\":").append(quoted_json(*t.description));
    if (t.format != nullptr) out.append(",\"format\":").append(compact_json(*t.format));
    return out + "}";
  }
  if (t.type == "namespace") {
    std::string inner;
    for (const RawTool& i : t.inner) inner.append(inner.empty() ? "" : ",").append(tool_echo(i));
    return fmt::format("{{\"type\":\"namespace\",\"name\":{},\"description\":{},\"tools\":[{}]}}",
                       quoted_json(t.name), quoted_or_null(t.description), inner);
  }
  if (is_web_search(t.type))
    return fmt::format("{{\"type\":\"{}\",\"search_context_size\":null,\"user_location\":null}}",
                       t.type);
  return {};
}

}  // namespace deepmint::recipe
