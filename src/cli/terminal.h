// What the program says to a terminal: answers on standard output, progress and remarks on standard
// error, and only there when it is a terminal. Standard output carries nothing but the answer.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "deepmint/result.h"

namespace deepmint::cli {

bool stdout_is_terminal();
bool stderr_is_terminal();  // and not a dumb one

// kUnavailable, without a place, when the descriptor takes no more; errno says why.
Status write_all(int fd, std::string_view text);

// Writes all of `text` at once, unbuffered. A reader that went away is kCancelled and sets
// stdout_closed(): main() then ends quietly. Another failure (disk full) is kUnavailable.
Status write_stdout(std::string_view text);
bool stdout_closed();

void write_stderr(std::string_view text);  // best effort
void remark(std::string_view text);        // a line on standard error when it is a terminal

// The bytes of standard input up to its end. kTooLarge beyond max_bytes.
Result<std::string> read_stdin(size_t max_bytes);

// A bar on standard error that appears when the work takes longer than a moment and leaves no
// trace. Silent without a terminal. update() may be called from any one thread at a time.
class Progress {
 public:
  explicit Progress(std::string label) : label_(std::move(label)) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(double fraction,
              std::string_view note = {});  // 0 … 1; the note stands behind the bar
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  Clock::time_point start_ = Clock::now(), drawn_ = start_;
  bool visible_ = false;
};

}  // namespace deepmint::cli
