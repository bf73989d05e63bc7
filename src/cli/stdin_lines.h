// Lines of standard input as they come, for commands that answer line by line.
//
//   StdinLines lines(kMaxLineBytes);
//   for (;;) {
//     DEEPMINT_TRY(line, lines.next());
//     if (!line) break;
//     use(*line);
//   }
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "deepmint/result.h"

namespace deepmint::cli {

class StdinLines {
 public:
  explicit StdinLines(size_t max_line_bytes) : max_(max_line_bytes) {}

  // The next line without its end ("\n" or "\r\n"), valid until the next call; nullopt at the end
  // of input. A last line without an end counts. kTooLarge names the line.
  Result<std::optional<std::string_view>> next();
  size_t number() const { return number_; }  // of the line that next() gave, from 1
  std::string place() const;                 // "standard input, line 3", for errors

 private:
  const size_t max_;
  std::string buffer_;
  size_t begin_ = 0;     // of what is not given out yet
  size_t searched_ = 0;  // no line end in [begin_, searched_)
  size_t number_ = 0;
  bool ended_ = false;
};

}  // namespace deepmint::cli
