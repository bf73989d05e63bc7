// Text of a custom tool call out of its arguments {"input": "…"}, decoded as they arrive.
#pragma once

#include <string>
#include <string_view>

namespace deepmint::recipe {

// push() returns the newly decoded text. Arguments of any other shape are passed through as they
// are. Escapes and surrogate pairs that are not complete wait; what follows the closing quote is
// ignored.
class CustomInput {
 public:
  void reset();
  std::string_view push(std::string_view piece);  // valid until the next call
  std::string_view finish();  // what still waits, when the arguments were of another shape

 private:
  enum class Mode : unsigned char { kUndecided, kString, kPassThrough, kDone };
  void decode();

  Mode mode_ = Mode::kUndecided;
  std::string pending_, out_;
};

}  // namespace deepmint::recipe
