#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/env.h"

namespace deepmint::cli {
namespace {

std::atomic<bool> g_stdout_closed{false};

// Nothing is drawn for work shorter than this, so that a fast load does not flicker.
constexpr std::chrono::milliseconds kFirstDraw{250}, kRedraw{80};
constexpr int kBarCells = 30;

}  // namespace

Status write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return fail(ErrorCode::kUnavailable, fmt::format("cannot write: {}", std::strerror(errno)));
    text.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }

bool stderr_is_terminal() {
  static const bool is = ::isatty(STDERR_FILENO) == 1 && env("TERM").value_or("dumb") != "dumb";
  return is;
}

Status write_stdout(std::string_view text) {
  if (g_stdout_closed) return fail(ErrorCode::kCancelled, "standard output was closed");
  auto ok = write_all(STDOUT_FILENO, text);
  if (ok) return ok;
  if (errno == EPIPE) {
    g_stdout_closed = true;
    return fail(ErrorCode::kCancelled, "standard output was closed");
  }
  return tl::unexpected(std::move(ok).error().at("standard output"));
}

bool stdout_closed() { return g_stdout_closed; }

void write_stderr(std::string_view text) { (void)write_all(STDERR_FILENO, text); }

void remark(std::string_view text) {
  if (stderr_is_terminal()) write_stderr(std::string(text) + "\n");
}

Result<std::string> read_stdin(size_t max_bytes) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return fail(ErrorCode::kUnavailable, fmt::format("cannot read: {}", std::strerror(errno)),
                  "standard input");
    if (n == 0) return text;
    if (text.size() + static_cast<size_t>(n) > max_bytes)
      return fail(ErrorCode::kTooLarge, fmt::format("expected at most {} bytes", max_bytes),
                  "standard input");
    text.append(buffer, static_cast<size_t>(n));
  }
}

void Progress::update(double fraction, std::string_view note) {
  if (!stderr_is_terminal()) return;
  const auto now = Clock::now();
  if (now - start_ < kFirstDraw || (visible_ && now - drawn_ < kRedraw)) return;
  drawn_ = now;
  visible_ = true;
  const double f = std::clamp(fraction, 0.0, 1.0);
  const int cells = static_cast<int>(f * kBarCells);
  write_stderr(fmt::format("\r\x1b[K{} [{}{}] {:3.0f} %{}{}", label_,
                           std::string(static_cast<size_t>(cells), '#'),
                           std::string(static_cast<size_t>(kBarCells - cells), '.'), f * 100,
                           note.empty() ? "" : " ", note));
}

void Progress::clear() {
  if (visible_) write_stderr("\r\x1b[K");
  visible_ = false;
}

}  // namespace deepmint::cli
