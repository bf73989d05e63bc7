// The chat templates that models carry: Jinja2 as `transformers` runs it (trim_blocks,
// lstrip_blocks, loop controls, its own tojson, raise_exception, strftime_now, generation),
// as far as templates of published models use it. docs/jinja.md lists what there is and what is
// refused.
//
//   DEEPMINT_TRY(t, jinja::Template::parse(metadata.chat_template));
//   jinja::Variables variables;
//   variables.caller.emplace_back("messages", messages);          // JSON
//   variables.trusted.emplace_back("bos_token", json::Value("<s>"));
//   DEEPMINT_TRY(segments, t.render(variables));
//
// The result is text and control segments: only bytes that the template (or a trusted variable)
// wrote itself are matched against control tokens, whatever joins, trims, slices and replaces lie
// between. Parsed templates are immutable; render() may run on many threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "deepmint/result.h"
#include "tokenizer/segment.h"

namespace deepmint::recipe::jinja {

struct Limits {
  uint64_t max_steps = 20'000'000;           // nodes evaluated, items compared or walked over
  uint64_t max_output_bytes = 64ull << 20;   // of the result
  uint64_t max_total_bytes = 1024ull << 20;  // of all values made on the way, together
  int max_depth = 400;                       // nested evaluation; a macro call takes about eight
};

struct Variables {
  using List = std::vector<std::pair<std::string, json::Value>>;
  List caller;   // strings inside are text, never control tokens
  List trusted;  // strings inside count as written by the template
  // A string inside `caller` for which this returns true is trusted: roles, which templates put
  // into control tokens. Null: none. The path is that of the members around it:
  // {"messages", "role"}.
  std::function<bool(std::string_view variable, std::string_view key, std::string_view value)>
      is_trusted = {};
  // What strftime_now() reads, in seconds since 1970 UTC. Without it `strftime_now is defined` is
  // false, so that a template takes its own date, and a call without asking gives `fallback_date`.
  std::optional<int64_t> now = {};
  int64_t fallback_date = 1721952000;  // 26 July 2024, the date that Llama 3 templates fall back to
};

class Template {
 public:
  // kInvalidArgument: not a template. kUnsupported: a construct that is not there. Both with the
  // line in `where`.
  static Result<Template> parse(std::string_view source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Neighbouring bytes of one kind are one segment. Errors: kInvalidArgument (raise_exception, or
  // what would be an exception in Python), kUnsupported, kTooLarge (a limit).
  Result<std::vector<Segment>> render(const Variables& variables, const Limits& limits = {}) const;

 private:
  struct Tree;
  explicit Template(std::unique_ptr<const Tree> tree);
  std::unique_ptr<const Tree> tree_;
};

}  // namespace deepmint::recipe::jinja
