// The program: command line → settings → command → exit code.
#pragma once

#include <string>
#include <vector>

#include "deepmint/result.h"

namespace deepmint::cli {

// args: without the program's name. Prints errors as one line on standard error. Returns 0, 1 or 2;
// throws nothing.
int run_program(const std::vector<std::string>& args) noexcept;

// "deepmint: …" on standard error, one line whatever the message holds; returns the exit code.
int report(const Error& error);

}  // namespace deepmint::cli
