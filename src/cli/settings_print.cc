// The effective settings as a table, as JSON and as docs/knobs.md.
#include <fmt/format.h>

#include <algorithm>

#include "cli/settings.h"
#include "core/json.h"
#include "core/utf8.h"
#include "format/names.h"

namespace deepmint::cli {
namespace {

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

constexpr std::string_view kKnobsHead =
    "# Settings\n"
    "\n"
    "Made by `deepmint config --markdown` from the list in `src/cli/config.h`; a test fails when "
    "this page is stale.\n"
    "\n"
    "A value comes from its default, else from the file named by `--config FILE` (TOML, one table "
    "per section), else from the\n"
    "environment, else from a flag: the later one wins. An unknown key, variable or flag is an "
    "error that names the nearest\n"
    "known one. An empty variable counts as not set. `deepmint config` prints the values in force "
    "and where each came from;\n"
    "`deepmint serve` logs them at start. Variables that begin with `DEEPMINT_TEST_` belong to the "
    "test suite and are ignored.\n"
    "\n"
    "```toml\n"
    "# deepmint.toml\n"
    "[cpu]\n"
    "threads = 2\n"
    "\n"
    "[engine]\n"
    "context_tokens = 4096\n"
    "kv_bytes = \"2GiB\"\n"
    "```\n";

}  // namespace

std::string effective_table(const Settings& settings) {
  size_t key_width = 0, value_width = 0;
  for (const Setting& s : settings.all()) {
    key_width = std::max(key_width, s.key.size());
    value_width = std::max(value_width, std::min<size_t>(24, printable(s.text()).size()));
  }
  std::string out;
  for (const Setting& s : settings.all())
    out += fmt::format("{:<{}} = {:<{}}  ({})\n", s.key, key_width, printable(s.text()),
                       value_width, printable(s.origin.str()));
  return out;
}

std::string effective_json(const Settings& settings) {
  json::Writer w;
  w.begin_object();
  for (const Setting& s : settings.all()) {
    w.key(s.key).begin_object();
    w.key("value").value(utf8::sanitize(s.text()));
    w.key("default").value(s.default_text);
    w.key("origin").value(utf8::sanitize(s.origin.str()));
    w.end_object();
  }
  w.end_object();
  return w.take();
}

std::string knobs_markdown(const Settings& settings) {
  std::string out(kKnobsHead);
  std::string_view section;
  for (const Setting& s : settings.all()) {
    if (s.section() != section) {
      section = s.section();
      out += fmt::format(
          "\n## {}\n\n| key | flag | variable | default | values | meaning "
          "|\n|---|---|---|---|---|---|\n",
          section);
    }
    out += fmt::format("| `{}` | `{}` | `{}` | {} | {} | {} |\n", s.key, s.flag, s.variable,
                       s.default_text.empty() ? "empty" : fmt::format("`{}`", cell(s.default_text)),
                       cell(s.values), cell(s.help));
  }
  return out;
}

}  // namespace deepmint::cli
