#include "grammar/schema_document.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>

namespace deepmint::grammar {

namespace {

constexpr int kMaxDepth = 128;  // as deep as core/json.h reads

struct Uri {
  std::string scheme, authority, path, query;
  bool has_authority = false, has_query = false;
};

// RFC 3986, appendix B, without the fragment.
Uri split_uri(std::string_view text) {
  Uri out;
  if (const size_t colon = text.find_first_of(":/?");
      colon != std::string_view::npos && text[colon] == ':' && colon > 0) {
    out.scheme = text.substr(0, colon);
    text.remove_prefix(colon + 1);
  }
  if (text.starts_with("//")) {
    const size_t end = text.find_first_of("/?", 2);
    out.has_authority = true;
    out.authority = text.substr(2, end == std::string_view::npos ? end : end - 2);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end);
  }
  const size_t question = text.find('?');
  out.path = text.substr(0, question);
  if (question != std::string_view::npos) {
    out.has_query = true;
    out.query = text.substr(question + 1);
  }
  return out;
}

std::string join_uri(const Uri& u) {
  std::string out;
  if (!u.scheme.empty()) out += u.scheme + ":";
  if (u.has_authority) out += "//" + u.authority;
  out += u.path;
  if (u.has_query) out += "?" + u.query;
  return out;
}

std::string without_dots(std::string_view path) {  // RFC 3986, 5.2.4
  std::string out;
  while (!path.empty()) {
    if (path.starts_with("../")) {
      path.remove_prefix(3);
    } else if (path.starts_with("./") || path.starts_with("/./")) {
      path.remove_prefix(2);
    } else if (path == "/.") {
      path = "/";
    } else if (path.starts_with("/../") || path == "/..") {
      path = path == "/.." ? std::string_view("/") : path.substr(3);
      out.erase(out.rfind('/') == std::string::npos ? 0 : out.rfind('/'));
    } else if (path == "." || path == "..") {
      path = {};
    } else {
      const size_t end = path.find('/', 1);
      out += path.substr(0, end);
      path = end == std::string_view::npos ? std::string_view() : path.substr(end);
    }
  }
  return out;
}

std::string resolve_uri(const std::string& base, std::string_view reference) {  // RFC 3986, 5.2.2
  Uri r = split_uri(reference);
  const Uri b = split_uri(base);
  if (!r.scheme.empty()) {
    r.path = without_dots(r.path);
    return join_uri(r);
  }
  r.scheme = b.scheme;
  if (r.has_authority) {
    r.path = without_dots(r.path);
    return join_uri(r);
  }
  r.has_authority = b.has_authority;
  r.authority = b.authority;
  if (r.path.empty()) {
    r.path = b.path;
    if (!r.has_query) {
      r.has_query = b.has_query;
      r.query = b.query;
    }
  } else if (r.path[0] == '/') {
    r.path = without_dots(r.path);
  } else {
    const size_t slash = b.path.rfind('/');
    std::string merged = b.has_authority && b.path.empty() ? "/"
                         : slash == std::string::npos      ? ""
                                                           : b.path.substr(0, slash + 1);
    r.path = without_dots(merged + r.path);
  }
  return join_uri(r);
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      out.push_back(text[at]);
      continue;
    }
    unsigned byte = 0;
    if (at + 2 >= text.size() ||
        std::from_chars(text.data() + at + 1, text.data() + at + 3, byte, 16).ptr !=
            text.data() + at + 3)
      return std::nullopt;
    out.push_back(static_cast<char>(byte));
    at += 2;
  }
  return out;
}

std::string pointer_unescape(std::string_view token) {
  std::string out;
  for (size_t at = 0; at < token.size(); ++at) {
    if (token[at] == '~' && at + 1 < token.size() &&
        (token[at + 1] == '0' || token[at + 1] == '1')) {
      out.push_back(token[++at] == '0' ? '~' : '/');
    } else {
      out.push_back(token[at]);
    }
  }
  return out;
}

std::optional<Draft> draft_of(std::string_view uri) {
  while (uri.ends_with('#')) uri.remove_suffix(1);
  if (uri.starts_with("https://"))
    uri.remove_prefix(8);
  else if (uri.starts_with("http://"))
    uri.remove_prefix(7);
  struct Known {
    std::string_view uri;
    Draft draft;
  };
  static constexpr std::array kKnown = {
      Known{"json-schema.org/draft-04/schema", Draft::k4},
      Known{"json-schema.org/draft-06/schema", Draft::k6},
      Known{"json-schema.org/draft-07/schema", Draft::k7},
      Known{"json-schema.org/draft/2019-09/schema", Draft::k2019},
      Known{"json-schema.org/draft/2020-12/schema", Draft::k2020},
      Known{"json-schema.org/schema", Draft::k2020},
  };
  for (const Known& known : kKnown)
    if (uri == known.uri) return known.draft;
  return std::nullopt;
}

// Keywords whose value is one schema, a list of them, or a map to them.
constexpr std::array kOne = {std::string_view("additionalItems"),
                             std::string_view("additionalProperties"),
                             std::string_view("contains"),
                             std::string_view("contentSchema"),
                             std::string_view("else"),
                             std::string_view("if"),
                             std::string_view("items"),
                             std::string_view("not"),
                             std::string_view("propertyNames"),
                             std::string_view("then"),
                             std::string_view("unevaluatedItems"),
                             std::string_view("unevaluatedProperties")};
constexpr std::array kList = {std::string_view("allOf"), std::string_view("anyOf"),
                              std::string_view("oneOf"), std::string_view("prefixItems"),
                              std::string_view("items")};
constexpr std::array kMap = {
    std::string_view("$defs"),        std::string_view("definitions"),
    std::string_view("dependencies"), std::string_view("dependentSchemas"),
    std::string_view("properties"),   std::string_view("patternProperties")};

template <size_t N>
bool among(const std::array<std::string_view, N>& names, std::string_view name) {
  for (const std::string_view n : names)
    if (n == name) return true;
  return false;
}

const std::string* text_of(const json::Value& object, std::string_view key) {
  const json::Value* v = object.find(key);
  return v != nullptr && v->is_string() ? &v->as_string() : nullptr;
}

}  // namespace

std::string pointer_escape(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out.push_back(c);
  }
  return out;
}

NodeId SchemaDocument::add(const json::Value& value, std::string pointer, uint32_t resource) {
  const auto [at, fresh] =
      by_value_.try_emplace(&value, NodeId{static_cast<uint32_t>(nodes_.size())});
  if (fresh) nodes_.push_back({&value, std::move(pointer), resource});
  return at->second;
}

NodeId SchemaDocument::child(NodeId parent, const json::Value& value, std::string_view key) {
  const auto known = by_value_.find(&value);
  if (known != by_value_.end()) return known->second;
  return add(value, nodes_[index(parent)].pointer + "/" + pointer_escape(key),
             nodes_[index(parent)].resource);
}

NodeId SchemaDocument::child(NodeId parent, const json::Value& value, std::string_view key,
                             std::string_view below) {
  const auto known = by_value_.find(&value);
  if (known != by_value_.end()) return known->second;
  return add(
      value,
      nodes_[index(parent)].pointer + "/" + pointer_escape(key) + "/" + pointer_escape(below),
      nodes_[index(parent)].resource);
}

Result<SchemaDocument> SchemaDocument::make(const json::Value& schema) {
  SchemaDocument out;
  Draft draft = Draft::k2020;
  if (const json::Value* named = schema.find("$schema")) {
    if (!named->is_string())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected a string, found {}", to_string(named->kind())),
                  "#/$schema");
    const std::optional<Draft> known = draft_of(named->as_string());
    if (!known)
      return fail(ErrorCode::kUnsupported,
                  fmt::format("expected draft 4, 6, 7, 2019-09 or 2020-12, found \"{}\"",
                              named->as_string()),
                  "#/$schema");
    draft = *known;
  }
  out.resources_.push_back({"", draft, NodeId{0}});
  out.by_uri_.emplace("", 0);
  DEEPMINT_CHECK_OK(out.index_schema(schema, "#", 0, 0));
  return out;
}

Status SchemaDocument::index_schema(const json::Value& value, const std::string& pointer,
                                    uint32_t resource, int depth) {
  if (depth > kMaxDepth)
    return fail(ErrorCode::kTooLarge,
                fmt::format("expected at most {} levels of schemas", kMaxDepth), pointer);
  if (!value.is_object()) {
    if (value.is_bool()) add(value, pointer, resource);
    return {};
  }
  Draft draft = resources_[resource].draft;
  const bool old = draft == Draft::k4 || draft == Draft::k6 || draft == Draft::k7;
  // In these drafts everything beside $ref is ignored, identifiers too.
  const bool is_reference = old && text_of(value, "$ref") != nullptr;
  const std::string* id =
      is_reference ? nullptr : text_of(value, draft == Draft::k4 ? "id" : "$id");
  std::string old_anchor;
  if (id != nullptr) {
    const size_t hash = id->find('#');
    const std::string_view uri = std::string_view(*id).substr(0, hash);
    if (hash != std::string::npos && old) old_anchor = id->substr(hash + 1);
    if (!uri.empty()) {
      std::string base = resolve_uri(resources_[resource].base, uri);
      if (depth == 0) {
        resources_[0].base = base;
      } else {
        resources_.push_back({base, draft, NodeId{static_cast<uint32_t>(nodes_.size())}});
        resource = static_cast<uint32_t>(resources_.size() - 1);
        if (const std::string* named = text_of(value, "$schema"))
          if (const std::optional<Draft> known = draft_of(*named))
            resources_[resource].draft = *known;
      }
      const auto [at, fresh] = by_uri_.try_emplace(base, resource);
      if (!fresh && at->second != resource && depth > 0) repeated_uris_.insert(base);
    }
  }
  const NodeId self = add(value, pointer, resource);
  const std::string& base = resources_[resource].base;
  const auto name_place = [&](const std::string& name) {
    const auto [at, fresh] = anchors_.try_emplace(base + "#" + name, self);
    if (!fresh && at->second != self) repeated_uris_.insert(at->first);
  };
  if (!old_anchor.empty()) name_place(old_anchor);
  if (!old) {
    if (const std::string* name = text_of(value, "$anchor")) name_place(*name);
    if (const std::string* name = text_of(value, "$dynamicAnchor")) {
      name_place(*name);
      if (dynamic_.emplace(base + "#" + *name, true).second) ++dynamic_names_[*name];
    }
    if (const json::Value* flag = value.find("$recursiveAnchor");
        flag != nullptr && flag->is_bool() && flag->as_bool())
      ++recursive_anchors_;
  }
  for (const json::Member& m : value.members()) {
    const auto place = [&] { return pointer + "/" + pointer_escape(m.key); };
    if (m.value.is_array() && among(kList, m.key)) {
      size_t at = 0;
      for (const json::Value& item : m.value.items())
        DEEPMINT_CHECK_OK(
            index_schema(item, fmt::format("{}/{}", place(), at++), resource, depth + 1));
    } else if (among(kOne, m.key)) {
      DEEPMINT_CHECK_OK(index_schema(m.value, place(), resource, depth + 1));
    } else if (m.value.is_object() && among(kMap, m.key)) {
      for (const json::Member& below : m.value.members())
        DEEPMINT_CHECK_OK(index_schema(below.value, place() + "/" + pointer_escape(below.key),
                                       resource, depth + 1));
    }
  }
  return {};
}

Result<NodeId> SchemaDocument::at_pointer(uint32_t resource, std::string_view pointer,
                                          std::string_view reference) {
  const json::Value* at = nodes_[index(resources_[resource].root)].value;
  std::string place = nodes_[index(resources_[resource].root)].pointer;
  const auto missing = [&] {
    return fail(ErrorCode::kNotFound,
                fmt::format("expected a reference to a place in this document, found \"{}\"",
                            reference.substr(0, 200)));
  };
  while (!pointer.empty()) {
    if (pointer[0] != '/') return missing();
    const size_t end = pointer.find('/', 1);
    const std::string token =
        pointer_unescape(pointer.substr(1, end == std::string_view::npos ? end : end - 1));
    pointer = end == std::string_view::npos ? std::string_view() : pointer.substr(end);
    if (at->is_array()) {
      size_t item = 0;
      const auto [stop, error] = std::from_chars(token.data(), token.data() + token.size(), item);
      if (error != std::errc() || stop != token.data() + token.size() ||
          item >= at->items().size() || (token.size() > 1 && token[0] == '0'))
        return missing();
      at = &at->items()[item];
    } else {
      at = at->find(token);
      if (at == nullptr) return missing();
    }
    place += "/" + pointer_escape(token);
    if (const auto known = by_value_.find(at); known != by_value_.end())
      resource = nodes_[index(known->second)].resource;
  }
  if (!at->is_object() && !at->is_bool())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected a reference to a schema, found {} at {}",
                            to_string(at->kind()), place));
  return add(*at, place, resource);
}

Result<NodeId> SchemaDocument::resolve(NodeId from, std::string_view reference) {
  const size_t hash = reference.find('#');
  const std::string_view uri = reference.substr(0, hash);
  uint32_t resource = nodes_[index(from)].resource;
  if (!uri.empty()) {
    const std::string target = resolve_uri(resources_[resource].base, uri);
    const auto known = by_uri_.find(target);
    if (known == by_uri_.end())
      return fail(ErrorCode::kUnsupported,
                  fmt::format("expected a reference inside this document, found \"{}\"",
                              reference.substr(0, 200)));
    if (repeated_uris_.contains(target))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected identifiers that differ, found \"{}\" twice", target));
    resource = known->second;
  }
  if (hash == std::string_view::npos || hash + 1 == reference.size())
    return resources_[resource].root;
  const std::optional<std::string> fragment = percent_decode(reference.substr(hash + 1));
  if (!fragment)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("expected a well-formed reference, found \"{}\"", reference.substr(0, 200)));
  if (!fragment->empty() && (*fragment)[0] == '/')
    return at_pointer(resource, *fragment, reference);
  const std::string& base = resources_[resource].base;
  const auto anchor = anchors_.find(base + "#" + *fragment);
  if (repeated_uris_.contains(base) || repeated_uris_.contains(base + "#" + *fragment))
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("expected identifiers that differ, found \"{}#{}\" twice", base, *fragment));
  if (anchor == anchors_.end())
    return fail(ErrorCode::kNotFound,
                fmt::format("expected a reference to a place in this document, found \"{}\"",
                            reference.substr(0, 200)));
  return anchor->second;
}

Result<NodeId> SchemaDocument::resolve_dynamic(NodeId from, std::string_view reference) {
  DEEPMINT_TRY(target, resolve(from, reference));
  const size_t hash = reference.find('#');
  if (hash == std::string_view::npos) return target;
  const std::string name(reference.substr(hash + 1));
  const std::string& base = resources_[nodes_[index(target)].resource].base;
  if (name.empty() || name[0] == '/' || !dynamic_.contains(base + "#" + name)) return target;
  const auto count = dynamic_names_.find(name);
  if (count != dynamic_names_.end() && count->second > 1)
    return fail(ErrorCode::kUnsupported,
                fmt::format("$dynamicRef \"{}\" depends on how it is reached: {} resources have "
                            "that $dynamicAnchor",
                            reference.substr(0, 200), count->second));
  return target;
}

Result<NodeId> SchemaDocument::resolve_recursive(NodeId from) {
  DEEPMINT_TRY(target, resolve(from, "#"));
  if (recursive_anchors_ > 1)
    return fail(ErrorCode::kUnsupported,
                "$recursiveRef depends on how it is reached: several resources have "
                "$recursiveAnchor");
  return target;
}

}  // namespace deepmint::grammar
