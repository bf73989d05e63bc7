// API keys, known only by their SHA-256 digests.
//
//   DEEPMINT_TRY(keys, ApiKeys::load("keys.txt"));      // printf %s "$KEY" | sha256sum >> keys.txt
//   if (!keys.allows(head.header("authorization"))) ... // 401
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"

namespace deepmint {

class ApiKeys {
 public:
  // One digest of 64 hexadecimal digits at the start of each line ("sha256:" in front and anything
  // after white space are ignored); empty lines and lines that begin with # are skipped. Errors:
  // kNotFound, kInvalidFile with the line number.
  static Result<ApiKeys> load(const std::filesystem::path& path);
  static Result<ApiKeys> parse(std::string_view text, std::string_view file_name);

  bool required() const { return !digests_.empty(); }

  // The value of an Authorization header, "Bearer KEY". True for everybody when no key is required.
  // Takes the same time for every key of the same length, right or wrong.
  bool allows(std::string_view authorization) const;

  // Who is served, for fairness between keys: a name made of the key's digest, nothing of which
  // tells the key. Empty when no key is required. Of a header that allows() has passed.
  std::string account(std::string_view authorization) const;

 private:
  std::vector<std::array<std::byte, 32>> digests_;
};

}  // namespace deepmint
