// Public test suites that are kept beside the project, not inside it: zstd-compressed JSON Lines in
// tests/data or in the shared data folder next to the checkout.
//
//   const auto cases = public_suite("json-test-suite.jsonl.zst");
//   if (!cases) GTEST_SKIP() << "json-test-suite.jsonl.zst is not in tests/data or ../shared/data";
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepmint::testing {

// One line each; nullopt when the file is in none of the places. Throws std::runtime_error when it
// is damaged.
std::optional<std::vector<std::string>> public_suite(std::string_view file_name);

std::string from_base64(std::string_view text);  // characters outside the alphabet are ignored

}  // namespace deepmint::testing
