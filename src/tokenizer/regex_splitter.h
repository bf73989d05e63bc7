// Cuts text at the matches of a PCRE2 pattern: each match and each gap between matches is a piece.
// The general splitter, and the oracle of the hand-written ones in fast_split.h.
//
//   DEEPMINT_TRY(splitter, RegexSplitter::compile(R"(\p{N}{1,3})"));
//   splitter.split(text, [&](std::string_view piece) { ... });
//
// Const methods may be called from many threads: the match state is per thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "deepmint/result.h"

namespace deepmint {

class RegexSplitter {
 public:
  // `pattern` in the dialect of tokenizer.json. Errors: kUnsupported or kInvalidFile naming the
  // pattern and the place in it.
  static Result<RegexSplitter> compile(std::string_view pattern);
  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  // text is valid UTF-8. Pieces are never empty and joined give the text. A match that passes the
  // match limit (a pattern that backtracks without end) leaves the rest of the text as one piece.
  template <class F>
  void split(std::string_view text, F&& piece) const {
    size_t done = 0;
    Cursor cursor;
    while (next(text, cursor)) {
      if (cursor.begin > done) piece(text.substr(done, cursor.begin - done));
      if (cursor.end > cursor.begin) piece(text.substr(cursor.begin, cursor.end - cursor.begin));
      done = cursor.end;
    }
    if (done < text.size()) piece(text.substr(done));
  }

 private:
  struct Cursor {
    size_t begin = 0, end = 0;  // the match
    bool matched = false;       // there was one before
  };
  struct Code;
  explicit RegexSplitter(std::unique_ptr<Code> code);
  bool next(std::string_view text, Cursor& cursor) const;
  std::unique_ptr<Code> code_;
};

}  // namespace deepmint
