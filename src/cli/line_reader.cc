#include "cli/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/utf8.h"

namespace deepmint::cli {

LineReader::Input LineReader::next() {
  for (;;) {
    const size_t found = pending_.find('\n', searched_);
    if (found != std::string::npos || pending_.size() >= kMaxLineBytes ||
        (ended_ && !pending_.empty())) {
      const size_t end = std::min({found, kMaxLineBytes, pending_.size()});
      std::string line = pending_.substr(0, end);
      pending_.erase(0, found == end ? end + 1 : end);
      searched_ = 0;
      if (line.ends_with('\r')) line.pop_back();
      return {Kind::kLine, utf8::sanitize(line)};
    }
    searched_ = pending_.size();
    if (ended_) return {Kind::kEnd, {}};

    pollfd fds[2] = {{fd_, POLLIN, 0}, {signals_->fd(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return {Kind::kEnd, {}};
    }
    if (signals_->take() != 0) {
      while (signals_->take() != 0) {
      }
      pending_.clear();
      searched_ = 0;
      return {Kind::kInterrupt, {}};
    }
    if ((fds[0].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
    char buffer[4096];
    const ssize_t n = ::read(fd_, buffer, sizeof(buffer));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) {
      ended_ = true;
    } else {
      pending_.append(buffer, static_cast<size_t>(n));
    }
  }
}

}  // namespace deepmint::cli
