// Cuts a stream of text at the first stop string, wherever the stream was cut into pieces. Text
// that may still become a stop string is held back; everything else passes at once.
//
//   StopFilter f({"\n\n", "END"});
//   out += f.push("some te");       // new, final text
//   out += f.push("xt EN");         // "xt ": "EN" is held back
//   out += f.push("D more");        // ""; f.stopped(), f.matched() == "END"
//   out += f.finish();              // what was held back, when nothing matched
//
// Which match wins: the one that is complete first; among those complete at the same byte the
// longest. So the result depends on the joined text alone. Memory is bounded by the stop strings:
// at most the longest one less a byte is held back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepmint::recipe {

class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stop_strings);  // empty strings are ignored

  std::string_view push(std::string_view text);  // valid until the next call
  std::string_view finish();

  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }
  // Bytes of text let through so far. Once stopped, this is where the matched string began.
  size_t passed_bytes() const { return passed_; }

 private:
  // Knuth-Morris-Pratt per stop string: `state` bytes of it are the end of the text so far.
  struct Pattern {
    std::string text;
    std::vector<uint32_t> failure;  // [length]: longest proper border of text[0..i]
    size_t state = 0;
  };
  std::vector<Pattern> patterns_;
  std::string held_;  // seen, not let through: the longest state among the patterns
  std::string out_, matched_;
  size_t passed_ = 0;
  bool stopped_ = false;
};

}  // namespace deepmint::recipe
