// A piece of prompt. Control strings ("<|im_start|>") are control tokens only inside control
// segments; the same characters in text are ordinary text, whoever sent them.
#pragma once

#include <string>
#include <vector>

namespace deepmint {

struct Segment {
  enum class Kind : unsigned char {
    kText,  // from a caller, or template text without control tokens: never matched against control
            // tokens
    kControl,  // from a template: added tokens are matched, leftmost longest; what lies between
               // them is text
  };
  Kind kind = Kind::kText;
  std::string text;
  friend bool operator==(const Segment&, const Segment&) = default;
};

}  // namespace deepmint
