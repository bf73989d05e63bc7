// A configuration file may be anything: it is read or refused in one line, and a refused value
// changes nothing.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cli/settings.h"
#include "core/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepmint::cli;
  Config config;
  Settings settings(config);
  const auto status = settings.load_toml({reinterpret_cast<const char*>(data), size}, "fuzz.toml");
  if (!status) {
    DEEPMINT_CHECK(!status.error().message.empty());
    DEEPMINT_CHECK(status.error().str().find('\n') == std::string::npos);
    DEEPMINT_CHECK(status.error().where.starts_with("fuzz.toml:"));
  }
  // Whatever was accepted can be written and read back.
  for (const Setting& s : settings.all()) {
    const std::string text = s.text();
    DEEPMINT_CHECK(s.origin.kind == Origin::Kind::kFile || text == s.default_text);
    if (s.kind != "A,B,…") DEEPMINT_CHECK(s.assign(ConfigValue::from_text(text)).has_value());
  }
  (void)effective_table(settings);
  (void)effective_json(settings);
  return 0;
}
