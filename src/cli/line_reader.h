// Lines of standard input for a conversation: complete UTF-8, and Ctrl-C while waiting is an answer
// of its own.
//
//   LineReader reader(signals);
//   auto line = reader.next();
//   if (line.kind == LineReader::Kind::kLine) use(line.text);
#pragma once

#include <string>

#include "cli/signals.h"

namespace deepmint::cli {

class LineReader {
 public:
  enum class Kind { kLine, kEnd, kInterrupt };
  struct Input {
    Kind kind = Kind::kEnd;
    std::string text;  // without the line end; bytes that are not UTF-8 are U+FFFD
  };

  // Lines longer than this are cut into several: a bound, not a feature.
  static constexpr size_t kMaxLineBytes = size_t{64} << 20;

  explicit LineReader(SignalPipe& signals, int fd = 0) : signals_(&signals), fd_(fd) {}

  // Waits for a line, the end of input, or a signal. After kInterrupt what was typed so far is
  // dropped. A last line without a line end counts.
  Input next();

 private:
  SignalPipe* signals_;
  int fd_;
  std::string pending_;
  size_t searched_ = 0;  // no line end before this offset
  bool ended_ = false;
};

}  // namespace deepmint::cli
