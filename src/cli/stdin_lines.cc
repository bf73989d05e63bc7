#include "cli/stdin_lines.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace deepmint::cli {

std::string StdinLines::place() const { return fmt::format("standard input, line {}", number_); }

Result<std::optional<std::string_view>> StdinLines::next() {
  for (;;) {
    const size_t found = buffer_.find('\n', searched_);
    if (found != std::string::npos || (ended_ && begin_ < buffer_.size())) {
      const size_t end = std::min(found, buffer_.size());
      std::string_view line = std::string_view(buffer_).substr(begin_, end - begin_);
      begin_ = searched_ = std::min(end + 1, buffer_.size());
      ++number_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      return line;
    }
    if (ended_) return std::nullopt;
    buffer_.erase(0, begin_);
    begin_ = 0;
    searched_ = buffer_.size();
    if (buffer_.size() > max_) {
      ++number_;
      return fail(ErrorCode::kTooLarge, fmt::format("expected at most {} bytes in a line", max_),
                  place());
    }
    std::array<char, 1 << 16> piece;
    const ssize_t n = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return fail(ErrorCode::kUnavailable, fmt::format("cannot read: {}", std::strerror(errno)),
                  "standard input");
    if (n == 0) ended_ = true;
    if (n > 0) buffer_.append(piece.data(), static_cast<size_t>(n));
  }
}

}  // namespace deepmint::cli
