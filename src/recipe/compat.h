// Which behaviour the codec shows where the published recipe changed between releases, or where
// ours goes beyond it. docs/recipe.md lists every difference; each one is a named case in
// tests/e2e/test_recipe_differential.py.
#pragma once

#include <cstdint>

namespace deepmint::recipe {

enum class Compat : uint8_t {
  kRecipe01,  // deepseek-recipe 0.1: the fixed vectors of tests/spec/recipe
  kRecipe02,  // deepseek-recipe 0.2.0: the live package, byte for byte, errors included
  kOurs,      // the default: prompts of 0.2, lenient input, honest output
};

// The prompt format of the model. The names the published package uses are DeepSeek-V4-Pro and
// DeepSeek-V4.1-Flash.
enum class ModelVersion : uint8_t { kV4, kV41 };

}  // namespace deepmint::recipe
