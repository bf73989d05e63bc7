// One reply's place in a grammar: which tokens may come next, and what happened so far.
//
//   Matcher m(compiled);
//   m.mask(bits);                     // one bit per id, padded logits included
//   if (!m.accept(token)) …           // false: not allowed, nothing changed
//   m.rollback(2);                    // as if the last two tokens had not come
//   Matcher other = m.fork();
//
// Every answer is a function of the grammar, the vocabulary and the tokens accepted so far. Stop
// ids are allowed exactly where the text may stop; after one is accepted nothing is. One thread at
// a time per matcher.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "deepmint/result.h"
#include "deepmint/types.h"
#include "grammar/compiled.h"

namespace deepmint::grammar {

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Compiled> compiled);
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;
  ~Matcher();

  // Writes one bit per id: 1 = may come next. bits.size() >= vocabulary.mask_words(); words beyond
  // are cleared. Returns whether every id below the width is allowed (never, in practice, with
  // special tokens). All bits are 0 only after a stop id, or when status() is an error.
  bool mask(std::span<uint32_t> bits);

  bool accept(TokenId token);   // false: not allowed here (nothing changes)
  bool allowed(TokenId token);  // whether accept() would take it
  void rollback(size_t n);      // n <= accepted()
  size_t accepted() const;      // tokens since the start
  Matcher fork() const;

  bool may_stop() const;      // the text so far is complete
  bool stopped() const;       // a stop id was accepted
  bool may_continue() const;  // some byte or token can follow

  // The bytes that every continuation starts with; empty where there is a choice or the text may
  // stop. At most 4,096 of them.
  std::string forced();

  struct Viable {
    size_t bytes = 0;       // length of the longest prefix that some accepted text starts with
    bool complete = false;  // all of `text` was viable and may end there
  };
  Viable accepts_bytes(std::string_view text);  // from here; the matcher does not move
  // The bytes that could come next (for messages).
  ByteSet next_bytes();

  // An error once a limit of the automaton was passed, or when no token of the vocabulary can
  // continue a text that may not stop: then every mask is empty and the reply must end as failed.
  const Status& status() const;

 private:
  struct Impl;
  explicit Matcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepmint::grammar
