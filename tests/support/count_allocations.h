// Counts calls of operator new in the whole program. Add support/count_allocations.cc to the
// sources of the test that wants it.
#pragma once

namespace deepmint::testing {
long allocations();  // since the program started, on all threads
}
