#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace deepmint::internal {
void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "deepmint: internal error at %s:%d: %s does not hold\n", file, line,
               condition);
  std::abort();
}
}  // namespace deepmint::internal
