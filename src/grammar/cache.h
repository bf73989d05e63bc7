// Compiled grammars of one vocabulary, kept while there is room: the same schema in the next
// request costs a look-up.
//
//   CompiledCache cache(vocabulary);
//   DEEPMINT_TRY(compiled, cache.get({SpecKind::kRegex, "[0-9]+"}));
//
// Any thread. Two threads that ask for the same new specification at once both compile it. An
// automaton grows as it is used, so an entry is measured anew each time it is asked for; the one
// that was asked for last stays, whatever its size.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "deepmint/result.h"
#include "grammar/compiled.h"

namespace deepmint::grammar {

class CompiledCache {
 public:
  static constexpr size_t kMaxBytes = size_t{256} << 20;

  explicit CompiledCache(std::shared_ptr<const Vocabulary> vocabulary, size_t max_bytes = kMaxBytes)
      : vocabulary_(std::move(vocabulary)), max_bytes_(max_bytes) {}

  // Errors are not kept.
  Result<std::shared_ptr<const Compiled>> get(const Spec& spec);
  // A grammar that the caller builds; `key` names it and everything that goes into it.
  Result<std::shared_ptr<const Compiled>> get(std::string key,
                                              const std::function<Result<Grammar>()>& build);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Compiled> compiled;
    size_t bytes;  // when it was last asked for
  };
  // Moves an entry to the front, measures it and makes room; under the mutex.
  std::shared_ptr<const Compiled> use(std::list<Entry>::iterator entry);

  std::shared_ptr<const Vocabulary> vocabulary_;
  size_t max_bytes_;
  std::mutex mutex_;
  std::list<Entry> order_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> index_;  // keys live in order_
  size_t bytes_ = 0;
};

}  // namespace deepmint::grammar
