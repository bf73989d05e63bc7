// What a server may remember between requests, as interfaces: the codec itself keeps nothing.
// MemoryTurnStore is for tests and small servers; a store that outlives the process and the key
// that seals are the caller's to bring. Implementations are thread-safe.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/json.h"
#include "tokenizer/segment.h"

namespace deepmint::recipe {

// One finished Responses turn: what previous_response_id continues.
struct StoredTurn {
  std::vector<json::Value> items =
      {};  // input items of the turn followed by its output items, in order
  std::string instructions =
      {};  // not inherited by the next turn (as the protocol says); kept for GET
};

// Text that a tool call was sampled as, and the reasoning before it; found again by call id.
struct StoredCall {
  // The whole calls block of the turn that this call is part of, as it was sampled.
  std::shared_ptr<const std::vector<Segment>> markup = {};
  std::string block_id = {};  // the same for all calls of one block
  size_t n_calls = 0;         // calls in that block
  std::string name = {};  // as the client received it, like the arguments: replay only when both
                          // come back unchanged
  std::string arguments = {};
  std::string reasoning = {};  // before the block
  // Everything the model wrote up to the end of the block, for a turn whose text comes back too:
  // newlines around </think> and calls straight out of the reasoning are part of the prefix.
  std::shared_ptr<const std::vector<Segment>> turn = {};
  std::string content = {};  // the answer text before the block
  bool thinking = false;     // the turn began inside a thinking block
};

class TurnStore {
 public:
  virtual ~TurnStore() = default;
  virtual std::optional<StoredTurn> find_turn(std::string_view tenant,
                                              std::string_view response_id) const = 0;
  virtual std::optional<StoredCall> find_call(std::string_view tenant,
                                              std::string_view call_id) const = 0;
  virtual void put_turn(std::string_view tenant, std::string_view response_id, StoredTurn turn) = 0;
  virtual void put_call(std::string_view tenant, std::string_view call_id, StoredCall call) = 0;
};

// Reasoning that the client keeps for us (Responses encrypted_content). seal() never fails; open()
// gives nullopt for anything that this tenant's key did not seal, which is then ignored.
class SealedReasoning {
 public:
  virtual ~SealedReasoning() = default;
  virtual std::string seal(std::string_view tenant, std::string_view reasoning) const = 0;
  virtual std::optional<std::string> open(std::string_view tenant,
                                          std::string_view sealed) const = 0;
};

// Bounded by entries; the oldest go first.
class MemoryTurnStore final : public TurnStore {
 public:
  explicit MemoryTurnStore(size_t max_entries = 4096) : max_entries_(max_entries) {}
  std::optional<StoredTurn> find_turn(std::string_view tenant,
                                      std::string_view response_id) const override;
  std::optional<StoredCall> find_call(std::string_view tenant,
                                      std::string_view call_id) const override;
  void put_turn(std::string_view tenant, std::string_view response_id, StoredTurn turn) override;
  void put_call(std::string_view tenant, std::string_view call_id, StoredCall call) override;

 private:
  template <class T>
  struct Table {
    std::unordered_map<std::string, T> entries;
    std::list<std::string> order;
  };
  template <class T>
  void put(Table<T>& table, std::string key, T value);

  const size_t max_entries_;
  mutable std::mutex mutex_;
  Table<StoredTurn> turns_;
  Table<StoredCall> calls_;
};

}  // namespace deepmint::recipe
