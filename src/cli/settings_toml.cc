// Settings from a TOML file. The only file that includes toml++.

// toml++ 3.3 turns its assertions into compiler assumptions when NDEBUG is set, and some are false
// for damaged input ("[." for one), which makes them undefined behaviour. Without them its parser
// reports those inputs as errors.
#undef NDEBUG
#define TOML_ASSERT(condition) static_assert(true)
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <fmt/format.h>
#include <toml++/toml.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cli/near_miss.h"
#include "cli/settings.h"

namespace deepmint::cli {
namespace {

// A configuration is a page or two; a larger file was named by mistake.
constexpr size_t kMaxFileBytes = 1 << 20;

Result<std::string> read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file)
    return fail(ErrorCode::kNotFound, fmt::format("cannot open: {}", std::strerror(errno)), path);
  std::string text(kMaxFileBytes + 1, '\0');
  const size_t n = std::fread(text.data(), 1, text.size(), file.get());
  if (std::ferror(file.get()) != 0)
    return fail(ErrorCode::kInvalidFile, fmt::format("cannot read: {}", std::strerror(errno)),
                path);
  if (n > kMaxFileBytes)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected a configuration of at most {} bytes", kMaxFileBytes), path);
  text.resize(n);
  return text;
}

Result<ConfigValue> to_config_value(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return ConfigValue{v->get()};
  if (const auto* v = node.as_integer()) return ConfigValue{v->get()};
  if (const auto* v = node.as_floating_point()) return ConfigValue{v->get()};
  if (const auto* v = node.as_string()) return ConfigValue{v->get()};
  if (const auto* list = node.as_array()) {
    std::vector<std::string> texts;
    for (const toml::node& item : *list) {
      const auto* text = item.as_string();
      if (text == nullptr) return fail(ErrorCode::kInvalidArgument, "expected a list of texts");
      texts.push_back(text->get());
    }
    return ConfigValue{std::move(texts)};
  }
  return fail(ErrorCode::kInvalidArgument,
              "expected a number, a text, true, false or a list of texts, found a date or time");
}

Status apply_table(Settings& settings, const toml::table& table, const std::string& prefix,
                   const std::string& file_name) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    const std::string place = fmt::format("{}:{}", file_name, node.source().begin.line);
    if (const toml::table* inner = node.as_table()) {
      // A section that no setting has is wrong even when it is empty.
      bool known = false;
      for (const Setting& s : settings.all()) known = known || s.key.starts_with(key + ".");
      if (!known) {
        std::vector<std::string> sections;
        for (const Setting& s : settings.all())
          if (sections.empty() || sections.back() != s.section())
            sections.emplace_back(s.section());
        return tl::unexpected(unknown_name("section", key, sections, place));
      }
      DEEPMINT_CHECK_OK(apply_table(settings, *inner, key + ".", file_name));
      continue;
    }
    if (settings.find(key) == nullptr)
      return tl::unexpected(unknown_name("setting", key, settings.keys(), place));
    auto value = to_config_value(node);
    if (!value) return tl::unexpected(std::move(value).error().at(place + ": " + key));
    DEEPMINT_CHECK_OK(settings.set(key, *value, {Origin::Kind::kFile, place}));
  }
  return {};
}

}  // namespace

Status Settings::load_toml(std::string_view text, const std::string& file_name) {
  const toml::parse_result parsed = toml::parse(text, file_name);
  if (!parsed) {
    const toml::parse_error& e = parsed.error();
    return fail(ErrorCode::kInvalidFile, fmt::format("not valid TOML: {}", e.description()),
                fmt::format("{}:{}", file_name, e.source().begin.line));
  }
  return apply_table(*this, parsed.table(), "", file_name);
}

Status Settings::load_file(const std::string& path) {
  DEEPMINT_TRY(text, read_file(path));
  return load_toml(text, path);
}

}  // namespace deepmint::cli
