#include "grammar/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/names.h"
#include "grammar/json_schema.h"
#include "grammar/schema_document.h"
#include "grammar/schema_space.h"

namespace deepmint::grammar {

namespace {

class Builder {
 public:
  Builder(const ToolMarkup& markup, const ToolCallOptions& options)
      : markup_(markup),
        options_(options),
        mark_(g_.token(markup.mark)),
        text_(g_.regexes().star(g_.regexes().any_code_point())) {}

  Result<Grammar> run(std::span<const ToolSignature> tools) {
    DEEPMINT_TRY(any_call,
                 any_call_of(g_, tools, [this](const ToolSignature& t) { return call(t); }));
    const Symbol more = g_.sequence({g_.literal("\n"), any_call});
    const Symbol list =
        options_.single ? any_call : g_.sequence({any_call, g_.repeat(more, 0, kUnbounded)});
    const Symbol inside =
        g_.sequence({list, g_.literal("\n</"), mark_, g_.literal(markup_.block + ">")});
    const auto block = [&](Symbol opening) {
      return g_.sequence({opening, mark_, g_.literal(markup_.block + ">\n"), inside});
    };
    if (options_.required && options_.opened) {
      g_.set_start(inside);
    } else if (options_.required) {
      g_.set_start(block(g_.literal("\n\n<")));
    } else if (options_.answer) {
      DEEPMINT_TRY(answer, add_spec(g_, *options_.answer));
      g_.set_start(g_.choice({answer, block(g_.literal("\n\n<"))}));
    } else {
      // Any text up to a `<` that the mark follows, or text to the end.
      g_.set_start(g_.choice({g_.terminal(text_), block(text_up_to("<"))}));
    }
    return g_.build();
  }

 private:
  Symbol text_up_to(std::string_view end) {
    return g_.terminal(g_.regexes().concat(text_, g_.regexes().literal(end)));
  }
  Symbol json_any() { return *add_json_schema(g_, json::Value(true)); }

  // A name that can stand between quotes in the markup.
  static Status check_name(const std::string& name) {
    const bool bad = name.empty() || std::any_of(name.begin(), name.end(), [](char c) {
                       return c == '"' || c == '<' || c == '>' || static_cast<uint8_t>(c) < 0x20;
                     });
    if (!bad) return {};
    return fail(ErrorCode::kUnsupported,
                fmt::format("the name {} cannot stand in the markup of a call", quote_name(name)));
  }

  Symbol parameter(RegexId name, std::string_view string, Symbol value_and_close) {
    RegexSet& r = g_.regexes();
    return g_.sequence(
        {g_.literal("<"), mark_,
         g_.terminal(r.concat(std::array{r.literal(markup_.parameter + " name=\""), name,
                                         r.literal(fmt::format("\" string=\"{}\">", string))})),
         value_and_close, mark_, g_.literal(markup_.parameter + ">")});
  }

  Symbol closed(Symbol value) { return g_.sequence({value, g_.literal("</")}); }

  Result<Symbol> call(const ToolSignature& tool) {
    DEEPMINT_CHECK_OK(check_name(tool.name));
    Symbol parameters{};
    if (tool.input) {
      auto input = add_spec(g_, *tool.input);
      if (!input) return tl::unexpected(std::move(input).error().at("format"));
      parameters = parameter(g_.regexes().literal("input"), "true", closed(*input));
    } else if (tool.strict) {
      DEEPMINT_TRY(typed, strict_parameters(tool.parameters));
      parameters = typed;
    } else {
      RegexSet& r = g_.regexes();
      const RegexId name =
          r.repeat(r.bytes(~(ByteSet::range(0, 0x1f) | ByteSet::one('"') | ByteSet::one('<') |
                             ByteSet::one('>') | ByteSet::range(0x7f, 0xff))),
                   1, 128);
      const Symbol one = g_.choice({parameter(name, "true", text_up_to("</")),
                                    parameter(name, "false", closed(json_any()))});
      parameters = g_.optional(
          g_.sequence({one, g_.repeat(g_.sequence({g_.literal("\n"), one}), 0, kUnbounded)}));
    }
    return g_.sequence({g_.literal("<"), mark_,
                        g_.literal(fmt::format("{} name=\"{}\">\n", markup_.invoke, tool.name)),
                        parameters, g_.literal("\n</"), mark_, g_.literal(markup_.invoke + ">")});
  }

  Result<Symbol> strict_parameters(const json::Value& schema) {
    if (schema.is_null()) return g_.empty();
    if (!schema.is_object())
      return fail(ErrorCode::kInvalidArgument, "expected a schema of an object", "parameters");
    static constexpr std::string_view kTaken[] = {
        "type",    "properties",  "required", "additionalProperties",
        "$defs",   "definitions", "title",    "description",
        "$schema", "$id",         "examples", "$comment"};
    for (const json::Member& m : schema.members())
      if (std::find(std::begin(kTaken), std::end(kTaken), m.key) == std::end(kTaken))
        return fail(
            ErrorCode::kUnsupported,
            fmt::format("{} cannot be enforced on the parameters of a call", quote_name(m.key)),
            "parameters");
    if (const json::Value* type = schema.find("type");
        type != nullptr && !(type->is_string() && type->as_string() == "object"))
      return fail(ErrorCode::kUnsupported, "expected \"object\"", "parameters: #/type");
    std::vector<std::string> required;
    if (const json::Value* list = schema.find("required")) {
      if (list->kind() != json::Kind::kArray)
        return fail(ErrorCode::kInvalidArgument, "expected a list of names",
                    "parameters: #/required");
      for (const json::Value& name : list->items()) {
        if (!name.is_string())
          return fail(ErrorCode::kInvalidArgument, "expected a list of names",
                      "parameters: #/required");
        required.push_back(name.as_string());
      }
    }
    struct One {
      Symbol symbol;
      bool required;
    };
    std::vector<One> all;
    if (const json::Value* properties = schema.find("properties")) {
      if (!properties->is_object())
        return fail(ErrorCode::kInvalidArgument, "expected an object", "parameters: #/properties");
      for (const json::Member& m : properties->members()) {
        auto one = typed_parameter(schema, m.key, m.value);
        if (!one)
          return tl::unexpected(std::move(one).error().at(
              fmt::format("parameters: #/properties/{}", printable(m.key))));
        const auto it = std::find(required.begin(), required.end(), m.key);
        all.push_back({*one, it != required.end()});
        if (it != required.end()) required.erase(it);
      }
    }
    if (!required.empty())
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{} is required and has no schema", quote_name(required[0])),
                  "parameters: #/required");
    // From the end: what may follow, with or without a parameter before it.
    std::array<Symbol, 2> rest{g_.empty(), g_.empty()};
    for (size_t i = all.size(); i-- > 0;) {
      std::array<Symbol, 2> next{};
      for (const size_t some : {size_t{0}, size_t{1}}) {
        const Symbol take = some != 0 ? g_.sequence({g_.literal("\n"), all[i].symbol, rest[1]})
                                      : g_.sequence({all[i].symbol, rest[1]});
        next[some] = all[i].required ? take : g_.choice({take, rest[some]});
      }
      rest = next;
    }
    return rest[0];
  }

  // {"allOf": [part], "type": types} in the scope of the tool's definitions.
  static json::Value scoped(const json::Value& root, const json::Value& part, json::Value types) {
    json::Object out;
    for (const std::string_view key : {"$schema", "$defs", "definitions"})
      if (const json::Value* value = root.find(key)) out.push_back({std::string(key), *value});
    out.push_back({"allOf", json::Value(json::Array{part})});
    out.push_back({"type", std::move(types)});
    return json::Value(std::move(out));
  }

  Result<Symbol> typed_parameter(const json::Value& root, const std::string& name,
                                 const json::Value& part) {
    DEEPMINT_CHECK_OK(check_name(name));
    RegexSet& r = g_.regexes();
    const json::Value only_string = scoped(root, part, json::Value(std::string("string")));
    DEEPMINT_TRY(document, SchemaDocument::make(only_string));
    const JsonSchemaOptions options;
    SchemaSpace space(document, r, options);
    DEEPMINT_TRY(shape, space.shape(space.node(document.root())));
    std::vector<Symbol> alternatives;
    if (!r.empty(shape->strings))
      alternatives.push_back(parameter(r.literal(name), "true",
                                       g_.terminal(r.concat(shape->strings, r.literal("</")))));
    json::Array others;
    for (const char* type : {"null", "boolean", "number", "array", "object"})
      others.push_back(json::Value(std::string(type)));
    DEEPMINT_TRY(value, add_json_schema(g_, scoped(root, part, json::Value(std::move(others)))));
    alternatives.push_back(parameter(r.literal(name), "false", closed(value)));
    return g_.choice(alternatives);
  }

  const ToolMarkup& markup_;
  const ToolCallOptions& options_;
  GrammarBuilder g_;
  Symbol mark_;
  RegexId text_;
};

}  // namespace

Result<Symbol> any_call_of(GrammarBuilder& g, std::span<const ToolSignature> tools,
                           const std::function<Result<Symbol>(const ToolSignature&)>& call) {
  std::vector<Symbol> calls;
  for (size_t i = 0; i < tools.size(); ++i) {
    auto one = call(tools[i]);
    if (!one) return tl::unexpected(std::move(one).error().at(fmt::format("tools[{}]", i)));
    calls.push_back(*one);
  }
  if (calls.empty()) return fail(ErrorCode::kInvalidArgument, "expected at least one tool");
  const size_t empty = g.first_empty(calls);
  if (empty < calls.size() && !g.exhausted())
    return fail(ErrorCode::kInvalidArgument, "expected parameters that some call satisfies",
                fmt::format("tools[{}]", empty));
  return g.choice(calls);
}

Result<Grammar> tool_call_grammar(const ToolMarkup& markup, std::span<const ToolSignature> tools,
                                  const ToolCallOptions& options) {
  return Builder(markup, options).run(tools);
}

}  // namespace deepmint::grammar
