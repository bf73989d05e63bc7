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
    if (const auto it = index_.find(key); it != index_.end()) return use(it->second);
  }
  DEEPMINT_TRY(grammar, build());
  DEEPMINT_TRY(compiled, Compiled::make(std::move(grammar), vocabulary_));
  const std::lock_guard held(mutex_);
  if (const auto it = index_.find(key); it != index_.end()) return use(it->second);
  order_.push_front({std::move(key), std::move(compiled), 0});
  index_.emplace(order_.front().key, order_.begin());
  return use(order_.begin());
}

std::shared_ptr<const Compiled> CompiledCache::use(std::list<Entry>::iterator entry) {
  order_.splice(order_.begin(), order_, entry);
  bytes_ -= entry->bytes;
  entry->bytes = entry->compiled->memory_bytes() + entry->key.size();
  bytes_ += entry->bytes;
  while (bytes_ > max_bytes_ && order_.size() > 1) {
    bytes_ -= order_.back().bytes;
    index_.erase(order_.back().key);
    order_.pop_back();
  }
  return entry->compiled;
}

}  // namespace deepmint::grammar
