#include "grammar/family_calls.h"

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "core/json.h"
#include "grammar/free_text.h"
#include "grammar/json_schema.h"
#include "grammar/regex_parser.h"

namespace deepmint::grammar {

namespace {

class Builder {
 public:
  Builder(const FamilyMarkup& markup, const ToolCallOptions& options)
      : markup_(markup), options_(options) {
    const ByteSet blanks =
        ByteSet::one(' ') | ByteSet::one('\t') | ByteSet::one('\n') | ByteSet::one('\r');
    RegexSet& r = g_.regexes();
    space_ = r.repeat(r.bytes(blanks), 0, JsonSchemaOptions().max_whitespace);
    blank_ = r.bytes(blanks);
  }

  Result<Grammar> run(std::span<const ToolSignature> tools) {
    DEEPMINT_TRY(object,
                 any_call_of(g_, tools, [this](const ToolSignature& t) { return call(t); }));
    DEEPMINT_TRY(reply, markup_.open ? marked(object) : bare(object));
    g_.set_start(with_thinking(reply));
    return g_.build();
  }

 private:
  Symbol space() { return g_.terminal(space_); }
  Symbol mark(const CallMark& m) { return m.token ? g_.token(*m.token) : g_.literal(m.text); }

  // {"name": NAME, "arguments": …}
  Result<Symbol> call(const ToolSignature& tool) {
    if (tool.input)
      return fail(ErrorCode::kUnsupported, "tools with a grammar cannot be enforced here");
    const bool any =
        !tool.strict || (tool.parameters.is_object() && tool.parameters.members().empty());
    DEEPMINT_TRY(arguments, any ? add_json_object(g_) : strict_arguments(tool.parameters));
    RegexSet& r = g_.regexes();
    std::string name;
    json::append_escaped(name, tool.name);
    std::vector<RegexId> head;
    for (const std::string& part :
         {std::string("{"), std::string("\"name\""), std::string(":"), name, std::string(","),
          "\"" + markup_.arguments + "\"", std::string(":")}) {
      head.push_back(r.literal(part));
      head.push_back(space_);
    }
    return g_.sequence({g_.terminal(r.concat(head)), arguments, space(), g_.literal("}")});
  }

  Result<Symbol> strict_arguments(const json::Value& schema) {
    if (schema.is_null()) {
      DEEPMINT_TRY(nothing, json::parse(R"({"type":"object","maxProperties":0})"));
      return add_json_schema(g_, nothing);
    }
    if (!schema.is_object())
      return fail(ErrorCode::kInvalidArgument, "expected a schema of an object", "parameters");
    const json::Value* type = schema.find("type");
    if (type == nullptr || !type->is_string() || type->as_string() != "object")
      return fail(ErrorCode::kUnsupported, "expected \"object\"", "parameters: #/type");
    auto out = add_json_schema(g_, schema);
    if (!out) return tl::unexpected(std::move(out).error().at("parameters"));
    return out;
  }

  // Hermes: calls between marks, free text around them.
  Result<Symbol> marked(Symbol object) {
    FreeText free(g_, {markup_.open->text});
    const auto opening = [&](RegexId before) {
      RegexSet& r = g_.regexes();
      return markup_.open->token
                 ? g_.sequence({g_.terminal(before), g_.token(*markup_.open->token)})
                 : g_.terminal(r.concat(before, r.literal(markup_.open->text)));
    };
    const auto whole = [&](Symbol open) {
      return g_.sequence({open, space(), object, space(), mark(*markup_.close)});
    };
    const Symbol plain = whole(opening(space_));  // nothing but white space in front
    const Symbol only = options_.single ? plain : g_.repeat(plain, 1, kUnbounded);
    if (options_.required) return only;
    if (options_.answer) {
      DEEPMINT_TRY(answer, answer_symbol(*options_.answer, free));
      return g_.choice({answer, only});
    }
    const Symbol piece =
        whole(markup_.open->token ? opening(free.without_marks()) : g_.terminal(free.up_to(0)));
    return free.interrupted(piece, {.at_least_one = false, .at_most_one = options_.single});
  }

  // Llama 3: the reply is calls from its first character, or none.
  Result<Symbol> bare(Symbol object) {
    RegexSet& r = g_.regexes();
    const Symbol begin = markup_.prefix
                             ? g_.sequence({space(), g_.optional(mark(*markup_.prefix)), space()})
                             : space();
    const RegexId between = r.concat(std::array{space_, r.optional(r.literal(";")), space_});
    const Symbol more = g_.sequence({g_.terminal(between), object});
    const Symbol only = options_.single
                            ? g_.sequence({begin, object})
                            : g_.sequence({begin, object, g_.repeat(more, 0, kUnbounded)});
    if (options_.required) return only;
    if (options_.answer)
      return fail(ErrorCode::kUnsupported,
                  "a format beside tools cannot be enforced for this family of models, whose calls "
                  "are JSON themselves");
    // Text in which no call is seen.
    std::vector<RegexId> calls{r.literal("{")};
    if (markup_.prefix) calls.push_back(r.literal(markup_.prefix->text));
    const RegexId looks_like_one =
        r.concat(std::array{r.star(blank_), r.alternate(calls), r.any()});
    return g_.choice(
        {g_.terminal(r.intersect(r.star(r.any_code_point()), r.complement(looks_like_one))), only});
  }

  // An answer must not spell a call. JSON cannot: a call has quotes that a string escapes.
  Result<Symbol> answer_symbol(const Spec& spec, const FreeText& free) {
    if (spec.kind != SpecKind::kRegex) return add_spec(g_, spec);
    DEEPMINT_TRY(id, parse_regex(g_.regexes(), spec.text, {}));
    return g_.terminal(g_.regexes().intersect(id, free.without_marks()));
  }

  Symbol with_thinking(Symbol reply) {
    if (!markup_.think || !markup_.end_think) return reply;
    FreeText free(g_, {markup_.end_think->text});
    const Symbol thoughts =
        markup_.end_think->token
            ? g_.sequence({g_.terminal(free.without_marks()), g_.token(*markup_.end_think->token)})
            : g_.terminal(free.up_to(0));
    return g_.choice({reply, g_.sequence({mark(*markup_.think), thoughts, space(), reply})});
  }

  const FamilyMarkup& markup_;
  const ToolCallOptions& options_;
  GrammarBuilder g_;
  RegexId space_{}, blank_{};
};

}  // namespace

Result<Grammar> family_call_grammar(const FamilyMarkup& markup,
                                    std::span<const ToolSignature> tools,
                                    const ToolCallOptions& options) {
  return Builder(markup, options).run(tools);
}

}  // namespace deepmint::grammar
