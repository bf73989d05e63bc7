// Recognises one DSML tag at the start of a text: the published forms of V4 and V4.1, and the
// look-alikes that models write as ordinary characters when they slip.
#pragma once

#include <cstdint>
#include <string_view>

namespace deepmint::recipe {

// In text that comes from token ids, the ｜DSML｜ token is this byte, which never occurs in UTF-8;
// so is the </think> token.
inline constexpr char kDsmlByte = '\xF8';
inline constexpr char kThinkCloseByte = '\xF9';

struct Tag {
  enum class Status : uint8_t {
    kNo,    // not a tag, whatever follows
    kMore,  // may become one
    kYes,
  };
  enum class Kind : uint8_t { kBlock, kInvoke, kParameter };
  enum class Type : uint8_t {
    kMissing,
    kString,
    kJson
  };  // the string="true|false" attribute of a parameter

  Status status = Status::kNo;
  Kind kind = Kind::kBlock;
  bool close = false;
  bool genuine = false;  // written as trained: full-width bars, or the token itself
  Type type = Type::kMissing;
  std::string_view name;  // of an invoke or parameter, raw
  size_t length = 0;      // bytes, with the brackets
};

// `s` starts with '<'. `from_ids`: only kDsmlByte makes a genuine tag. `at_end`: nothing more
// comes, so kMore is never answered.
Tag lex_tag(std::string_view s, bool from_ids, bool at_end);

inline constexpr size_t kMaxTagBytes = 4096;  // a longer run without the closing bracket is text

}  // namespace deepmint::recipe
