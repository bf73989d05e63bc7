#include "cli/options.h"

#include <fmt/format.h>

namespace deepmint::cli {

void Options::positional(std::string name, std::string& out, std::string help, bool required) {
  options_.push_back({.names = std::move(name),
                      .help = std::move(help),
                      .is_positional = true,
                      .required = required,
                      .set = [&out](const std::string& value) { out = value; }});
}

void Options::text(std::string names, std::optional<std::string>& out, std::string kind,
                   std::string help) {
  options_.push_back({.names = std::move(names),
                      .kind = std::move(kind),
                      .help = std::move(help),
                      .group = group_,
                      .set = [&out](const std::string& value) { out = value; }});
}

void Options::text(std::string names, std::string& out, std::string kind, std::string help) {
  options_.push_back({.names = std::move(names),
                      .kind = std::move(kind),
                      .help = std::move(help),
                      .default_text = out,
                      .group = group_,
                      .set = [&out](const std::string& value) { out = value; }});
}

void Options::texts(std::string names, std::vector<std::string>& out, std::string kind,
                    std::string help) {
  options_.push_back({.names = std::move(names),
                      .kind = std::move(kind),
                      .help = std::move(help),
                      .group = group_,
                      .repeats = true,
                      .set = [&out](const std::string& value) { out.push_back(value); }});
}

void Options::flag(std::string names, bool& out, std::string help) {
  options_.push_back({.names = std::move(names),
                      .help = std::move(help),
                      .group = group_,
                      .set = [&out](const std::string& value) { out = value == "true"; }});
}

void Options::settings(const Settings& settings, std::string_view section, const std::string& group,
                       std::vector<GivenFlag>& given) {
  for (const Setting& s : settings.all()) {
    if (s.section() != section) continue;
    options_.push_back({.names = s.flag,
                        .kind = std::string(s.kind),
                        .help = s.help,
                        .default_text = s.default_text.empty() ? "empty" : s.default_text,
                        .group = group,
                        .set = [&given, key = s.key, flag = s.flag](const std::string& value) {
                          given.push_back({key, flag, value});
                        }});
  }
}

}  // namespace deepmint::cli
