// Renders chat templates: one JSON object per line on stdin, one answer per line on stdout.
//
//   {"template": "…", "variables": {…}, "trusted": {…}, "now": seconds}
//   → {"text": "…", "control": [[begin, end], …]}   byte ranges that came from the template
//   → {"error": "…", "code": 1, "where": "chat template line 3"}
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <string>

#include "core/json.h"
#include "recipe/jinja/jinja.h"

namespace {

using namespace deepmint;
using recipe::jinja::Template;

std::string failure(const Error& error) {
  json::Writer w;
  w.begin_object()
      .key("error")
      .value(error.message)
      .key("code")
      .value(static_cast<int>(error.code));
  w.key("where").value(error.where).end_object();
  return w.take();
}

std::string answer(const std::string& line, std::map<std::string, Template>& known) {
  const auto request = json::parse(line);
  if (!request) return failure(request.error());
  const std::string& source = request->find("template")->as_string();
  auto at = known.find(source);
  if (at == known.end()) {
    auto parsed = Template::parse(source);
    if (!parsed) return failure(parsed.error());
    at = known.emplace(source, std::move(*parsed)).first;
  }
  recipe::jinja::Variables variables;
  for (const auto& [name, list] :
       {std::pair("variables", &variables.caller), std::pair("trusted", &variables.trusted)})
    if (const json::Value* members = request->find(name))
      for (const json::Member& m : members->members()) list->emplace_back(m.key, m.value);
  if (const json::Value* now = request->find("now")) variables.now = now->to_int64();
  const auto segments = at->second.render(variables);
  if (!segments) return failure(segments.error());
  std::string text;
  json::Writer control;
  control.begin_array();
  for (const Segment& s : *segments) {
    const auto begin = static_cast<int64_t>(text.size());
    text += s.text;
    if (s.kind == Segment::Kind::kControl)
      control.begin_array().value(begin).value(static_cast<int64_t>(text.size())).end_array();
  }
  control.end_array();
  json::Writer w;
  w.begin_object().key("text").value(text).key("control").raw(control.str()).end_object();
  return w.take();
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  std::map<std::string, Template> known;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    std::cout << answer(line, known) << '\n';
  }
  return 0;
}
