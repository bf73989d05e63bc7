// Requests that wait for a place, in the order in which they get one: class, then fairly over keys,
// then when they are due (Sequence::due), then arrival.
//
// Fair: start-time fair queueing. A key has a virtual time that grows by cost / weight with each
// request that starts; the key with the smallest goes next. A key that was away comes back at its
// class's virtual time, which is that of the request whose prompt was served last, so it neither
// saves up turns nor waits behind what a busy key has piled up. Requests that begin at that time
// move it on, so keys without end that come anew do not hold it still. Inside a key: earliest due
// first, then first come.
//
//   queue.push(std::move(sequence));
//   if (Sequence* next = queue.front(); next && fits(*next)) run(queue.pop());
//   queue.served(*running);                  // a prompt chunk of it is in the step
//
// One thread. push() and pop() may allocate; front() and served() do not.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "engine/sequence.h"

namespace deepmint {

class WaitingQueue {
 public:
  // sequence->cost, ->due and ->arrival are set.
  void push(std::unique_ptr<Sequence> sequence);
  Sequence* front() const;                                     // null: empty
  std::unique_ptr<Sequence> pop();                             // front(), with its `tag` set
  std::unique_ptr<Sequence> remove(const Sequence* sequence);  // null: not here
  void served(const Sequence& sequence);
  void ended(const Sequence& sequence);  // that pop() gave away

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  size_t keys() const;  // that are remembered: for tests

  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const Class& c : classes_)
      for (const auto& [key, flow] : c.flows)
        for (const auto& sequence : flow.waiting) visit(*sequence);
  }

 private:
  struct Earlier {  // due, then arrival
    bool operator()(const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) const;
  };
  struct Flow {
    double tag = 0;
    std::set<std::unique_ptr<Sequence>, Earlier> waiting;
  };
  struct Class;
  struct Before {  // of flows that are not empty: tag, then their first request
    bool operator()(const Flow* a, const Flow* b) const;
  };
  struct Class {
    std::map<std::string, Flow, std::less<>> flows;
    std::set<Flow*, Before> ready;
    double time = 0;
    size_t active = 0;      // that were popped and have not ended
    size_t forget_at = 64;  // how many flows make it look for those that can be forgotten
  };
  void forget(Class& c);
  std::unique_ptr<Sequence> take(Class& c, Flow& flow,
                                 std::set<std::unique_ptr<Sequence>, Earlier>::iterator which,
                                 bool starts);

  std::array<Class, kRequestClasses> classes_;
  size_t size_ = 0;
};

}  // namespace deepmint
