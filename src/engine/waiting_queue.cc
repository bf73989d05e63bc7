#include "engine/waiting_queue.h"

#include <algorithm>
#include <tuple>

#include "core/check.h"

namespace deepmint {

namespace {
constexpr size_t kMaxKeys = 4096;  // of a class that are remembered without a request
}

bool WaitingQueue::Earlier::operator()(const std::unique_ptr<Sequence>& a,
                                       const std::unique_ptr<Sequence>& b) const {
  return std::tuple(a->due_key(), a->arrival) < std::tuple(b->due_key(), b->arrival);
}

bool WaitingQueue::Before::operator()(const Flow* a, const Flow* b) const {
  const Sequence &x = **a->waiting.begin(), &y = **b->waiting.begin();
  return std::tuple(a->tag, x.due_key(), x.arrival) < std::tuple(b->tag, y.due_key(), y.arrival);
}

void WaitingQueue::push(std::unique_ptr<Sequence> sequence) {
  Class& c = classes_[sequence->class_index()];
  Flow& flow = c.flows[sequence->request.fair_key];
  if (flow.waiting.empty()) {
    flow.tag = std::max(flow.tag, c.time);
  } else {
    c.ready.erase(&flow);  // its first request may become another
  }
  flow.waiting.insert(std::move(sequence));
  c.ready.insert(&flow);
  ++size_;
  if (c.flows.size() >= c.forget_at) forget(c);
}

// A key without requests whose time has passed is as good as a new one. Where thousands are still
// ahead of their time, they are forgotten as well: a small gift, and memory is bounded.
void WaitingQueue::forget(Class& c) {
  const bool many = c.flows.size() >= kMaxKeys;
  std::erase_if(c.flows, [&](const auto& entry) {
    return entry.second.waiting.empty() && (many || entry.second.tag <= c.time);
  });
  c.forget_at = std::max<size_t>(64, 2 * c.flows.size());
  if (c.forget_at > kMaxKeys) c.forget_at = std::max(kMaxKeys, c.flows.size() + kMaxKeys / 4);
}

Sequence* WaitingQueue::front() const {
  for (const Class& c : classes_)
    if (!c.ready.empty()) return (*c.ready.begin())->waiting.begin()->get();
  return nullptr;
}

std::unique_ptr<Sequence> WaitingQueue::take(
    Class& c, Flow& flow, std::set<std::unique_ptr<Sequence>, Earlier>::iterator which,
    bool starts) {
  c.ready.erase(&flow);
  std::unique_ptr<Sequence> sequence = std::move(flow.waiting.extract(which).value());
  if (starts) {
    sequence->tag = flow.tag;
    const double turn = sequence->cost / sequence->request.fair_weight;
    flow.tag += turn;
    ++c.active;
    // Who begins at the present moves it on, by the share that is theirs of all that are there. Or
    // keys that nobody has seen, which all begin at the present, would hold it still, and who has
    // had a turn would never have the next.
    if (sequence->tag <= c.time)
      c.time += turn / static_cast<double>(c.active + c.ready.size() + 1);
  }
  if (!flow.waiting.empty()) c.ready.insert(&flow);
  --size_;
  return sequence;
}

std::unique_ptr<Sequence> WaitingQueue::pop() {
  for (Class& c : classes_)
    if (!c.ready.empty()) {
      Flow& flow = **c.ready.begin();
      return take(c, flow, flow.waiting.begin(), true);
    }
  return nullptr;
}

std::unique_ptr<Sequence> WaitingQueue::remove(const Sequence* sequence) {
  Class& c = classes_[sequence->class_index()];
  const auto entry = c.flows.find(sequence->request.fair_key);
  if (entry == c.flows.end()) return nullptr;
  Flow& flow = entry->second;
  const auto it =
      std::find_if(flow.waiting.begin(), flow.waiting.end(),
                   [sequence](const auto& waiting) { return waiting.get() == sequence; });
  return it == flow.waiting.end() ? nullptr : take(c, flow, it, false);
}

void WaitingQueue::served(const Sequence& sequence) {
  double& time = classes_[sequence.class_index()].time;
  time = std::max(time, sequence.tag);
}

// When nobody of a class waits or runs, nobody owes anybody.
void WaitingQueue::ended(const Sequence& sequence) {
  Class& c = classes_[sequence.class_index()];
  if (--c.active > 0 || !c.ready.empty()) return;
  c.flows.clear();
  c.time = 0;
}

size_t WaitingQueue::keys() const {
  size_t keys = 0;
  for (const Class& c : classes_) keys += c.flows.size();
  return keys;
}

}  // namespace deepmint
