// Requests and files of the specification, as tests of the recipe write and read them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "core/json.h"
#include "recipe/convert.h"
#include "recipe/prompt.h"

namespace deepmint::testing {

inline json::Value parsed(std::string_view text) {
  auto v = json::parse(text);
  EXPECT_TRUE(v.has_value()) << text;
  return v ? *v : json::Value();
}

// tests/spec/recipe/NAME
inline json::Value spec_file(const std::string& name) {
  std::ifstream in(std::string(DEEPMINT_SOURCE_DIR) + "/tests/spec/recipe/" + name);
  std::stringstream text;
  text << in.rdbuf();
  return parsed(text.str());
}

// A request that converts.
inline recipe::ConversationRequest request(recipe::Protocol protocol, std::string_view body,
                                           const recipe::ConvertOptions& options = {}) {
  auto r = recipe::convert(protocol, parsed(body), options);
  EXPECT_TRUE(r.has_value()) << body << "\n" << (r ? "" : r.error().str());
  return r ? *r : recipe::ConversationRequest();
}

inline std::string prompt_of(const recipe::ConversationRequest& r,
                             recipe::ModelVersion version = recipe::ModelVersion::kV41) {
  return recipe::render_prompt(r.conversation, {.version = version}).text;
}

}  // namespace deepmint::testing
