#include "grammar/cache.h"

#include <fmt/format.h>

namespace deepmint::grammar {

Result<std::shared_ptr<const Compiled>> CompiledCache::get(const Spec& spec) {
  return get(fmt::format("{}\n{}", to_string(spec.kind), spec.text),
             [&] { return compile_grammar(spec); });
}

Result<std::shared_ptr<const Compiled>> CompiledCache::get(
    std::string key, const std::function<Result<Grammar>()>& build) {
  {
    const std::lock_guard held(mutex_);
    if (const auto it = index_.find(key); it != index_.end()) {
      order_.splice(order_.begin(), order_, it->second);
      return it->second->compiled;
    }
  }
  DEEPMINT_TRY(grammar, build());
  DEEPMINT_TRY(compiled, Compiled::make(std::move(grammar), vocabulary_));
  // The automaton grows later; Compiled bounds it, so the share of an entry is counted as it is now
  // and twice over.
  const size_t bytes = 2 * compiled->memory_bytes() + key.size();
  const std::lock_guard held(mutex_);
  if (const auto it = index_.find(key); it != index_.end()) return it->second->compiled;
  order_.push_front({std::move(key), compiled, bytes});
  index_.emplace(order_.front().key, order_.begin());
  bytes_ += bytes;
  while (bytes_ > max_bytes_ && order_.size() > 1) {
    bytes_ -= order_.back().bytes;
    index_.erase(order_.back().key);
    order_.pop_back();
  }
  return compiled;
}

size_t CompiledCache::size() const {
  const std::lock_guard held(mutex_);
  return order_.size();
}

}  // namespace deepmint::grammar
