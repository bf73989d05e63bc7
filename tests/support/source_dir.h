// Where the files of the repository are that a test reads. The folder is known to one object file
// only, so that every other one is the same in every checkout and a compiler cache can share it.
#pragma once

#include <filesystem>

namespace deepmint::testing {

// `relative` below the root of the source tree: source_path("tests/spec/model/vectors.json").
std::filesystem::path source_path(const std::filesystem::path& relative);

}  // namespace deepmint::testing
