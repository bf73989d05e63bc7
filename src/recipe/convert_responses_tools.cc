#include "recipe/convert_responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "recipe/custom_tool.h"
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

Result<std::vector<ResponsesConverter::RawTool>> ResponsesConverter::parse_tools(
    const json::Array& tools, std::string_view where) const {
  std::vector<RawTool> out;
  for (size_t i = 0; i < tools.size(); ++i) {
    DEEPMINT_TRY(f, Fields::of(tools[i], "internally tagged enum ResponsesTool"));
    DEEPMINT_TRY(type, f.need_string("type"));
    const std::string path = fmt::format("{}[{}]", where, i);
    if (type == "function") {
      DEEPMINT_TRY(t, read_function(f, path));
      out.push_back(std::move(t));
    } else if (type == "custom") {
      DEEPMINT_TRY(t, read_custom(f, path));
      out.push_back(std::move(t));
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
      out.push_back(std::move(t));
    } else {
      RawTool t;
      t.type = type;
      t.path = path;
      if (type == "tool_search" && !v01()) {
        DEEPMINT_TRY(execution, f.opt_variant("execution", {"client", "server"}));
        DEEPMINT_TRY(description, f.opt_string("description"));
        t.name = type;
        t.execution = execution;
        t.description = description;
        t.parameters = f.get("parameters");
      }
      out.push_back(std::move(t));
    }
  }
  return out;
}

Status ResponsesConverter::read_tools(const json::Array& tools, std::string_view where) {
  DEEPMINT_TRY(parsed, parse_tools(tools, where));
  raw_tools_.insert(raw_tools_.end(), parsed.begin(), parsed.end());
  return {};
}

bool ResponsesConverter::is_search(const RawTool& t) const {
  return t.type == "tool_search" && t.execution == "client" && !v01() && !v4();
}

// The tools that a search found: declared, hidden until the message behind the search's result.
// `result` becomes what the model reads as the result.
Status ResponsesConverter::load_found_tools(const json::Array& tools, const std::string& at,
                                            std::string& result) {
  DEEPMINT_TRY(found, parse_tools(tools, at + ".tools"));
  result.assign(1, '[');
  for (const RawTool& t : found) {
    const bool space = t.type == "namespace";
    for (const RawTool& one : space ? t.inner : std::vector<RawTool>{t}) {
      std::string text = tool_echo(one);
      if (text.empty()) {
        if (!ours())
          return request_error(
              at + ": the enum variant ResponsesTool::Unsupported cannot be serialized");
        continue;
      }
      if (space) {
        text.pop_back();
        text.append(fmt::format(",\"namespace\":{{\"name\":{},\"description\":{}}}}}",
                                quoted_json(t.name), quoted_json(t.description.value_or(""))));
      }
      result.append(result.size() > 1 ? "," : "").append(text);
    }
  }
  result.push_back(']');
  for (RawTool& t : found) {
    const bool known = std::any_of(raw_tools_.begin(), raw_tools_.end(), [&](const RawTool& r) {
      return r.type == t.type && r.name == t.name;
    });
    if (ours() && known) continue;  // declared before, or found before: the first stays
    t.load = loads_.size();
    raw_tools_.push_back(std::move(t));
  }
  loads_.emplace_back();
  return {};
}

void ResponsesConverter::show_found_tools() {
  std::vector<Message>& all = r_.conversation.messages;
  for (const Load& load : loads_) {
    for (const std::string& name : load.names) {
      const std::vector<Tool>& tools = r_.conversation.tools;  // those left after tool_choice
      const auto it =
          std::find_if(tools.begin(), tools.end(), [&](const Tool& t) { return t.name == name; });
      if (it != tools.end()) all[load.message].loaded_tools.push_back(*it);
    }
  }
  std::vector<size_t> places;
  places.reserve(loads_.size());
  for (const Load& load : loads_) places.push_back(load.message);
  std::sort(places.begin(), places.end());
  std::vector<Message> kept;
  kept.reserve(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const bool place = std::binary_search(places.begin(), places.end(), i);
    if (!place || !all[i].loaded_tools.empty()) kept.push_back(std::move(all[i]));
  }
  all = std::move(kept);
}

bool ResponsesConverter::is_web_search(std::string_view type) {
  return type == "web_search" || type == "web_search_2025_08_26";
}

Result<ConvertBase::Declared> ResponsesConverter::declare(const RawTool& t) const {
  Declared d;
  d.tool.name = std::string(t.name);
  d.name_path = t.path + ".name";
  d.path01 = t.path;
  if (t.type == "function" || t.type == "tool_search") {
    DEEPMINT_CHECK_OK(check_tool_name(t.name, d.name_path, d.path01));
    if (t.description) d.tool.description = std::string(*t.description);
    d.tool.strict = t.strict;
    d.has_parameters = t.parameters != nullptr;
    if (t.parameters != nullptr) d.tool.parameters = *t.parameters;
    return d;
  }
  if (t.name != "apply_patch" && !ours()) {
    return request_error(
        fmt::format("Unsupported custom tool: '{}'. Only 'apply_patch' is supported{}", t.name,
                    v01() ? "" : "."));
  }
  if (t.name != "apply_patch") DEEPMINT_CHECK_OK(check_tool_name(t.name, d.name_path, d.path01));
  DEEPMINT_TRY(tool, make_custom_tool(t.name, t.description, o_.compat, o_.version));
  d.tool = std::move(tool);
  if (ours() && t.format != nullptr) {
    DEEPMINT_TRY(format, custom_tool_format(*t.format));
    d.tool.format = std::move(format);
  }
  return d;
}

Status ResponsesConverter::assign_tools() {
  std::vector<Declared> tools;
  std::set<std::string> taken, namespaces;
  for (const RawTool& t : raw_tools_) {
    const size_t before = tools.size();
    if (t.type == "function" || t.type == "custom" || is_search(t)) {
      DEEPMINT_TRY(d, declare(t));
      if (d.tool.custom) r_.reply.custom_tools.push_back(d.tool.name);
      if (is_search(t)) r_.reply.tool_search = true;
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
    if (t.load == kNotLoaded) continue;
    for (size_t i = before; i < tools.size(); ++i) {
      tools[i].tool.deferred = true;
      loads_[t.load].names.push_back(tools[i].tool.name);
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
  DEEPMINT_CHECK_OK(set_tools(std::move(tools), choice_));
  if (!loads_.empty()) show_found_tools();
  return {};
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
    // 0.2 forgets where found tools came from.
    if (t.load == kNotLoaded || ours())
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
  if (t.type == "tool_search" && !v01()) {
    const std::string execution = t.execution ? quoted_json(*t.execution) : "null";
    return fmt::format(
        "{{\"type\":\"tool_search\",\"execution\":{},\"description\":{},\"parameters\":{}}}",
        execution, quoted_or_null(t.description),
        t.parameters == nullptr ? "null" : compact_json(*t.parameters));
  }
  if (is_web_search(t.type))
    return fmt::format("{{\"type\":\"{}\",\"search_context_size\":null,\"user_location\":null}}",
                       t.type);
  return {};
}

}  // namespace deepmint::recipe
