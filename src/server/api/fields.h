// Reading checked values out of a JSON object. Every reader leaves `out` alone when the member is
// absent or null, and returns "expected …, found …" with the member's path in `where` when it is of
// another kind or out of range.
//
//   const Fields f(object, "stream_options");
//   DEEPMINT_CHECK_OK(f.boolean("include_usage", out.include_usage));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/json.h"
#include "deepmint/result.h"

namespace deepmint {

// A value as an error message shows it: "\"text\"" (cut short), "1e999", "true", "an array", "an
// object".
std::string describe(const json::Value& value);

class Fields {
 public:
  explicit Fields(const json::Value& object, std::string path = {})
      : object_(object), path_(std::move(path)) {}

  // The member; nullptr when absent or null. The last one when a key is there twice.
  const json::Value* find(std::string_view key) const;
  std::string path(std::string_view key) const {
    return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  }
  tl::unexpected<Error> wrong(std::string_view key, std::string_view expected,
                              const json::Value& found) const;

  Status boolean(std::string_view key, bool& out) const;
  Status text(std::string_view key, std::string& out, size_t max_bytes) const;
  Status integer(std::string_view key, int64_t min, int64_t max, int64_t& out) const;
  Status integer(std::string_view key, int32_t min, int32_t max, int32_t& out) const;
  // min <= value <= max, or min < value with `above_min`.
  Status number(std::string_view key, double min, double max, double& out,
                bool above_min = false) const;
  Status number(std::string_view key, double min, double max, float& out) const;

 private:
  const json::Value& object_;
  std::string path_;
};

}  // namespace deepmint
