// Our own mistakes. Neither macro may be reachable from user input: that is a bug in the validator
// above it.
#pragma once

namespace deepmint::internal {
[[noreturn]] void check_failed(const char* file, int line, const char* condition);
}

// Always on, cheap conditions only.
#define DEEPMINT_CHECK(condition) \
  (static_cast<bool>(condition)   \
       ? static_cast<void>(0)     \
       : ::deepmint::internal::check_failed(__FILE__, __LINE__, #condition))
#ifdef NDEBUG
#define DEEPMINT_DCHECK(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#else
#define DEEPMINT_DCHECK(condition) DEEPMINT_CHECK(condition)
#endif
