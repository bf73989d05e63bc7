// Counts calls of operator new in a test program. Add
// ${CMAKE_SOURCE_DIR}/tests/support/counting_new.cc to the SOURCES of the test that needs it: it
// replaces the operators of the whole program.
#pragma once

#include <cstdint>

namespace deepmint::testing {

uint64_t allocations();  // since the start, from every thread

}  // namespace deepmint::testing
