// Names from files in messages for people.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace deepmint {

// In double quotes on one line: invalid UTF-8 becomes U+FFFD, control characters are escaped (a
// file must not be able to move the cursor of the terminal that shows the error), and what is
// longer than `max_bytes` is cut with "…".
std::string quote_name(std::string_view name, size_t max_bytes = 120);

// The same without the quotes and without a length limit.
std::string printable(std::string_view text);

}  // namespace deepmint
