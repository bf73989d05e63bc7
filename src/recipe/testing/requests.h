// Requests and files of the specification, as tests of the recipe write and read them.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"
#include "recipe/convert.h"
#include "recipe/prompt.h"

namespace deepmint::testing {

json::Value parsed(std::string_view text);
json::Value spec_file(const std::string& name);  // tests/spec/recipe/NAME

// A request that converts.
recipe::ConversationRequest request(recipe::Protocol protocol, std::string_view body,
                                    const recipe::ConvertOptions& options = {});

std::string prompt_of(const recipe::ConversationRequest& r,
                      recipe::ModelVersion version = recipe::ModelVersion::kV41);

}  // namespace deepmint::testing
