// "Did you mean …": the nearest of a list of known names to a mistyped one. Used for commands,
// options, settings and variables.
//
//   near_miss("temprature", names)              // "temperature", or "" when nothing is close
//   unknown_name("option", "--temprature", …)   // Error: unknown option "--temprature"; did you
//   mean "--temperature"?
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "deepmint/result.h"

namespace deepmint::cli {

// Insertions, deletions, substitutions and swaps of neighbouring bytes that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b);

// The closest name within a third of the longer length (at least 1 edit), the first one on ties; ""
// when there is none.
std::string near_miss(std::string_view name, std::span<const std::string> known);

// kInvalidArgument with the suggestion, when there is one.
Error unknown_name(std::string_view what, std::string_view name, std::span<const std::string> known,
                   std::string where = {});

}  // namespace deepmint::cli
