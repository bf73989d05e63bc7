#include "server/auth.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "core/hash.h"
#include "core/mapped_file.h"
#include "server/http/message.h"

namespace deepmint {
namespace {

constexpr std::string_view kScheme = "Bearer ";

std::optional<std::array<std::byte, 32>> parse_digest(std::string_view text) {
  if (text.size() != 64) return std::nullopt;
  std::array<std::byte, 32> out;
  for (size_t i = 0; i < out.size(); ++i) {
    unsigned value = 0;
    for (const char c : text.substr(2 * i, 2)) {
      value *= 16;
      if (c >= '0' && c <= '9')
        value += static_cast<unsigned>(c - '0');
      else if (c >= 'a' && c <= 'f')
        value += static_cast<unsigned>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        value += static_cast<unsigned>(c - 'A' + 10);
      else
        return std::nullopt;
    }
    out[i] = static_cast<std::byte>(value);
  }
  return out;
}

}  // namespace

Result<ApiKeys> ApiKeys::load(const std::filesystem::path& path) {
  // Regular files only: a folder has no text, and a device may never end.
  DEEPMINT_TRY(file, MappedFile::open(path));
  const auto bytes = file.bytes();
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

Result<ApiKeys> ApiKeys::parse(std::string_view text, std::string_view file_name) {
  ApiKeys keys;
  size_t number = 0;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    ++number;
    line = line.substr(0, line.find_first_of(" \t\r"));
    if (line.empty() || line.starts_with('#')) continue;
    if (line.starts_with("sha256:")) line.remove_prefix(7);
    const auto digest = parse_digest(line);
    // The line itself is not shown: it may be a key that somebody put there by mistake.
    if (!digest)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected 64 hexadecimal digits, found {} characters", line.size()),
                  fmt::format("{}:{}", file_name, number));
    keys.digests_.push_back(*digest);
  }
  // Without this an emptied file would open the server to everybody.
  if (keys.digests_.empty())
    return fail(ErrorCode::kInvalidFile, "expected at least one API key digest, found none",
                std::string(file_name));
  return keys;
}

std::string ApiKeys::account(std::string_view authorization) const {
  if (digests_.empty() || authorization.size() < kScheme.size()) return {};
  const auto digest = sha256(as_byte_span(authorization.substr(kScheme.size())));
  std::string name = "key-";
  for (size_t i = 0; i < 8; ++i)
    name += fmt::format("{:02x}", std::to_integer<unsigned>(digest[i]));
  return name;
}

bool ApiKeys::allows(std::string_view authorization) const {
  if (digests_.empty()) return true;
  if (!http::equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) return false;
  const auto digest = sha256(as_byte_span(authorization.substr(kScheme.size())));
  bool found = false;
  for (const auto& known : digests_) {
    unsigned difference = 0;
    for (size_t i = 0; i < known.size(); ++i)
      difference |= std::to_integer<unsigned>(known[i] ^ digest[i]);
    found |= difference == 0;
  }
  return found;
}

}  // namespace deepmint
