// Free text that marks interrupt: what a model may write around its calls and tags.
//
//   const FreeText text(builder, {"<call>"});
//   builder.set_start(text.interrupted(call, {}));     // text, <call> …, text, <call> …, text
//
// A mark counts where it is first complete, read from the left; the text in front of it and the
// text behind the last piece hold none. Texts are whole Unicode characters.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace deepmint::grammar {

class FreeText {
 public:
  FreeText(GrammarBuilder& builder, std::vector<std::string> marks);

  RegexId without_marks() const { return without_; }
  // Text that ends in marks[index], which is the first mark in it to be complete; then `rest`.
  RegexId up_to(size_t index, std::string_view rest = {});

  struct Pieces {
    bool at_least_one = false;
    bool at_most_one = false;  // and nothing behind it
  };
  // `piece` begins with the free text in front of it: up_to(), or without_marks() and a token.
  Symbol interrupted(Symbol piece, const Pieces& pieces);

 private:
  GrammarBuilder& g_;
  std::vector<std::string> marks_;
  RegexId text_, without_, too_late_;
};

}  // namespace deepmint::grammar
