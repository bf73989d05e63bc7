// Pieces that the files of the interpreter share: interpreter.cc (the run and statements),
// expressions.cc, calls.cc. Internal to them.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "recipe/jinja/interpreter.h"

namespace deepmint::recipe::jinja {

// One more level of evaluation while it lives.
struct Deeper {
  explicit Deeper(int& d) : depth(d) { ++depth; }
  ~Deeper() { --depth; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  int& depth;
};

// Error without a place yet → with the line.
inline tl::unexpected<Error> at_line(Error error, int line) {
  if (error.where.empty()) error.where = fmt::format("chat template line {}", line);
  return tl::unexpected(std::move(error));
}

// A scope on the stack of blocks; moves to the run when something captured it.
class Interpreter::Frame {
 public:
  Frame(Interpreter& run, Scope& parent) : run_(run), scope_(std::make_unique<Scope>(&parent)) {}
  ~Frame() {
    if (!scope_->captured) return;
    run_.budget_.bytes(sizeof(Scope) + 256);
    run_.scopes_.push_back(std::move(scope_));
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  Scope& scope() { return *scope_; }

 private:
  Interpreter& run_;
  std::unique_ptr<Scope> scope_;
};

}  // namespace deepmint::recipe::jinja
