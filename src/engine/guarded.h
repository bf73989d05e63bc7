// Calls what others wrote, or what may run out of memory: an exception becomes an error and goes no
// further.
//
//   if (auto error = guarded("the mask", [&] { mask->accept(id); })) fail(*error);
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "deepmint/result.h"

namespace deepmint {

// kInternal: "WHOSE failed: WHAT".
template <class Call>
std::optional<Error> guarded(const char* whose, const Call& call) {
  std::string what;
  try {
    call();
    return std::nullopt;
  } catch (const std::exception& e) {
    what = e.what();
  } catch (...) {
    what = "unknown exception";
  }
  return Error{ErrorCode::kInternal, std::string(whose) + " failed: " + what, {}};
}

}  // namespace deepmint
