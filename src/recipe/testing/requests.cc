#include "recipe/testing/requests.h"
#include "support/source_dir.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace deepmint::testing {

json::Value parsed(std::string_view text) {
  auto v = json::parse(text);
  EXPECT_TRUE(v.has_value()) << text;
  return v ? *v : json::Value();
}

json::Value spec_file(const std::string& name) {
  std::ifstream in(source_path("tests/spec/recipe/" + name));
  std::stringstream text;
  text << in.rdbuf();
  return parsed(text.str());
}

recipe::ConversationRequest request(recipe::Protocol protocol, std::string_view body,
                                    const recipe::ConvertOptions& options) {
  auto r = recipe::convert(protocol, parsed(body), options);
  EXPECT_TRUE(r.has_value()) << body << "\n" << (r ? "" : r.error().str());
  return r ? *r : recipe::ConversationRequest();
}

std::string prompt_of(const recipe::ConversationRequest& r, recipe::ModelVersion version) {
  return recipe::render_prompt(r.conversation, {.version = version}).text;
}

}  // namespace deepmint::testing
