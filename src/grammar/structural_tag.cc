#include "grammar/structural_tag.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/json.h"
#include "core/names.h"
#include "core/utf8.h"
#include "grammar/free_text.h"

namespace deepmint::grammar {

namespace {

constexpr size_t kMaxTags = 1024, kMaxTriggers = 64, kMaxTriggerBytes = 256;

tl::unexpected<Error> wrong(std::string message, std::string where) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(where));
}

std::string found(const json::Value* value) {
  return value == nullptr ? "nothing" : std::string(json::to_string(value->kind()));
}

Result<bool> flag(const json::Value& root, std::string_view key) {
  const json::Value* value = root.find(key);
  if (value == nullptr || value->is_null()) return false;
  if (!value->is_bool())
    return wrong(fmt::format("expected true or false, found {}", found(value)),
                 fmt::format("#/{}", key));
  return value->as_bool();
}

Result<std::string> text(const json::Value& tag, std::string_view key, const std::string& where) {
  const json::Value* value = tag.find(key);
  if (value == nullptr || !value->is_string())
    return wrong(fmt::format("expected a string, found {}", found(value)),
                 fmt::format("{}/{}", where, key));
  return value->as_string();
}

Result<StructuralTag> read_tag(const json::Value& tag, const std::string& where) {
  if (!tag.is_object())
    return wrong(fmt::format("expected an object, found {}", found(&tag)), where);
  StructuralTag out;
  DEEPMINT_TRY(begin, text(tag, "begin", where));
  DEEPMINT_TRY(end, text(tag, "end", where));
  out.begin = std::move(begin);
  out.end = std::move(end);
  int contents = 0;
  for (const json::Member& m : tag.members()) {
    if (m.key == "begin" || m.key == "end") continue;
    if (m.key == "schema") {
      out.content = {SpecKind::kJsonSchema, json::dump(m.value)};
    } else if (m.key == "regex" || m.key == "grammar") {
      DEEPMINT_TRY(written, text(tag, m.key, where));
      out.content = {m.key == "regex" ? SpecKind::kRegex : SpecKind::kEbnf, std::move(written)};
    } else {
      return wrong(fmt::format("expected begin, end and one of schema, regex and grammar, found {}",
                               quote_name(m.key)),
                   where);
    }
    ++contents;
  }
  if (contents != 1)
    return wrong(fmt::format("expected one of schema, regex and grammar, found {}",
                             contents == 0 ? "none" : "several"),
                 where);
  return out;
}

}  // namespace

Result<StructuralTags> parse_structural_tags(std::string_view source) {
  DEEPMINT_TRY(root, json::parse(source, {.max_bytes = kMaxSpecBytes}));
  if (!root.is_object())
    return wrong(fmt::format("expected an object, found {}", found(&root)), "#");
  static constexpr std::string_view kKnown[] = {"type", "triggers", "structures", "at_least_one",
                                                "stop_after_first"};
  for (const json::Member& m : root.members())
    if (std::find(std::begin(kKnown), std::end(kKnown), m.key) == std::end(kKnown))
      return wrong(fmt::format("expected triggers, structures, at_least_one or stop_after_first, "
                               "found {}",
                               quote_name(m.key)),
                   "#");
  if (const json::Value* type = root.find("type");
      type != nullptr && !(type->is_string() && type->as_string() == "structural_tag"))
    return wrong("expected \"structural_tag\"", "#/type");
  StructuralTags out;
  const json::Value* triggers = root.find("triggers");
  if (triggers == nullptr || !triggers->is_array() || triggers->items().empty() ||
      triggers->items().size() > kMaxTriggers)
    return wrong(fmt::format("expected 1 to {} strings", kMaxTriggers), "#/triggers");
  for (size_t i = 0; i < triggers->items().size(); ++i) {
    const json::Value& trigger = triggers->items()[i];
    if (!trigger.is_string() || trigger.as_string().empty() ||
        trigger.as_string().size() > kMaxTriggerBytes)
      return wrong(fmt::format("expected a string of 1 to {} bytes", kMaxTriggerBytes),
                   fmt::format("#/triggers/{}", i));
    out.triggers.push_back(trigger.as_string());
  }
  const json::Value* structures = root.find("structures");
  if (structures == nullptr || !structures->is_array() || structures->items().empty() ||
      structures->items().size() > kMaxTags)
    return wrong(fmt::format("expected 1 to {} tags", kMaxTags), "#/structures");
  for (size_t i = 0; i < structures->items().size(); ++i) {
    DEEPMINT_TRY(tag, read_tag(structures->items()[i], fmt::format("#/structures/{}", i)));
    out.tags.push_back(std::move(tag));
  }
  DEEPMINT_TRY(at_least_one, flag(root, "at_least_one"));
  DEEPMINT_TRY(stop_after_first, flag(root, "stop_after_first"));
  out.at_least_one = at_least_one;
  out.stop_after_first = stop_after_first;
  return out;
}

Result<Symbol> add_structural_tags(GrammarBuilder& builder, const StructuralTags& tags) {
  FreeText free(builder, tags.triggers);
  std::vector<uint8_t> used(tags.triggers.size(), 0);
  std::vector<Symbol> pieces;
  for (size_t i = 0; i < tags.tags.size(); ++i) {
    const StructuralTag& tag = tags.tags[i];
    const std::string where = fmt::format("#/structures/{}", i);
    auto content = add_spec(builder, tag.content);
    if (!content) return tl::unexpected(std::move(content).error().at(where));
    std::vector<RegexId> openings;
    for (size_t t = 0; t < tags.triggers.size(); ++t) {
      if (!tag.begin.starts_with(tags.triggers[t])) continue;
      used[t] = 1;
      openings.push_back(
          free.up_to(t, std::string_view(tag.begin).substr(tags.triggers[t].size())));
    }
    if (openings.empty())
      return wrong("expected a beginning that starts with a trigger", where + "/begin");
    pieces.push_back(builder.sequence({builder.terminal(builder.regexes().alternate(openings)),
                                       *content, builder.literal(tag.end)}));
  }
  for (size_t t = 0; t < used.size(); ++t)
    if (!used[t]) return wrong("no tag begins with this trigger", fmt::format("#/triggers/{}", t));
  const size_t empty = builder.first_empty(pieces);
  if (empty < pieces.size() && !builder.exhausted())
    return wrong("expected a tag that some text satisfies", fmt::format("#/structures/{}", empty));
  return free.interrupted(builder.choice(pieces), {.at_least_one = tags.at_least_one,
                                                   .at_most_one = tags.stop_after_first});
}

}  // namespace deepmint::grammar
