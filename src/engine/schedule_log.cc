#include "engine/schedule_log.h"

#include <fmt/format.h>

#include <bit>
#include <iterator>
#include <type_traits>

#include "core/json.h"
#include "core/utf8.h"

namespace deepmint {
namespace {

int64_t ns(Clock::time_point t) { return std::chrono::nanoseconds(t.time_since_epoch()).count(); }

struct Writes {
  json::Writer& w;
  template <class T>
  void operator()(std::string_view name, const T& value) const {
    w.key(name);
    if constexpr (std::is_same_v<T, std::string>) {
      w.value(utf8::sanitize(value));
    } else if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, bool>) {
      w.value(value);
    } else if constexpr (std::is_unsigned_v<T>) {
      w.value(static_cast<uint64_t>(value));
    } else {
      w.value(static_cast<int64_t>(value));
    }
  }
};

void ids(json::Writer& w, std::string_view name, std::span<const TokenId> list) {
  if (list.empty()) return;
  w.key(name).begin_array();
  for (const TokenId id : list) w.value(id);
  w.end_array();
}

void put(std::string& line, std::string_view name, std::string& list) {
  if (list.empty()) return;
  fmt::format_to(std::back_inserter(line), FMT_STRING(",\"{}\":[{}]"), name, list);
  list.clear();
}

template <class... Args>
void entry(std::string& list, fmt::format_string<Args...> format, Args&&... args) {
  if (!list.empty()) list += ',';
  fmt::format_to(std::back_inserter(list), format, std::forward<Args>(args)...);
}

}  // namespace

void ScheduleLog::setup(ScheduleSetup setup) {
  json::Writer w;
  w.begin_object().key("deepmint_schedule").value(ScheduleSetup::kVersion);
  setup.visit(Writes{w});
  w.end_object();
  write_(w.take() + "\n");
}

void ScheduleLog::add(const Sequence& s) {
  const GenerationRequest& r = s.request;
  json::Writer w;
  w.begin_object().key("add").begin_object();
  w.key("id").value(s.control->id).key("seed").value(s.seed);
  w.key("max_tokens").value(s.limit - s.prompt_tokens);
  ids(w, "tokens", s.prompt());
  ids(w, "stop_ids", r.stop_ids);
  w.key("class").value(static_cast<int>(r.request_class));
  if (r.choice != 0) w.key("choice").value(r.choice);
  if (r.want_prompt_logits) w.key("want_prompt_logits").value(true);
  if (r.bounded_replay) w.key("bounded_replay").value(true);
  if (r.tail_keep_tokens) w.key("tail_keep_tokens").value(*r.tail_keep_tokens);
  if (r.deadline) w.key("deadline").value(ns(*r.deadline));
  if (s.due && s.due != r.deadline && s.due != Clock::time_point::max())
    w.key("due").value(ns(*s.due));
  if (r.start_by) w.key("start_by").value(ns(*r.start_by));
  if (!r.fair_key.empty()) w.key("fair_key").value(utf8::sanitize(r.fair_key));
  if (r.fair_weight != 1) w.key("fair_weight").value(r.fair_weight);
  if (!r.cache_salt.empty()) w.key("cache_salt").value(utf8::sanitize(r.cache_salt));
  if (r.mask != nullptr) w.key("mask").value(true);
  w.key("sampling").begin_object();
  visit_sampling(r.sampling, Writes{w});
  ids(w, "allowed_ids", r.sampling.allowed_ids);
  ids(w, "banned_ids", r.sampling.banned_ids);
  if (!r.sampling.logit_bias.empty()) {
    w.key("logit_bias").begin_array();
    for (const auto& [id, bias] : r.sampling.logit_bias) w.value(id).value(bias);
    w.end_array();
  }
  w.end_object();
  if (!s.saved.empty()) {
    std::string hex;
    for (const std::byte b : s.saved)
      fmt::format_to(std::back_inserter(hex), FMT_STRING("{:02x}"), std::to_integer<unsigned>(b));
    w.key("state").value(hex);
  }
  w.end_object().end_object();
  write_(w.take() + "\n");
}

void ScheduleLog::cancel_all_at(Clock::time_point when) {
  write_(fmt::format(FMT_STRING("{{\"cancel_all_at\":{}}}\n"), ns(when)));
}

void ScheduleLog::open(std::string_view call, uint64_t value, Clock::time_point now) {
  head_ = fmt::format(FMT_STRING("{{\"{}\":{},\"now\":{}"), call, value, ns(now));
}

void ScheduleLog::id(std::string& list, const Sequence& s) { entry(list, "{}", s.control->id); }

void ScheduleLog::plan(const StepPlan& plan) {
  for (const Grant& g : plan.grants)
    entry(plan_, "[{},{},{},{}]", g.sequence->control->id, g.begin, g.count, g.sample ? 1 : 0);
}

void ScheduleLog::cancelled(const Sequence& s, bool before_plan) {
  id(before_plan ? cancelled_ : late_, s);
}

void ScheduleLog::token(const Sequence& s, TokenId token, float logprob) {
  // A mask takes part in what is not of the model alone, and the one of a replay is another.
  const bool comparable = s.request.mask == nullptr || s.request.sampling.raw_logprobs;
  if (s.request.sampling.top_logprobs < 0 || !comparable)
    return entry(tokens_, "[{},{}]", s.control->id, token);
  entry(tokens_, "[{},{},{}]", s.control->id, token, std::bit_cast<uint32_t>(logprob));
}

void ScheduleLog::end(const Sequence& s, FinishReason reason) {
  entry(ends_, "[{},\"{}\"]", s.control->id, to_string(reason));
}

void ScheduleLog::close() {
  put(head_, "cancelled", cancelled_);
  put(head_, "plan", plan_);
  put(head_, "admitted", admitted_);
  put(head_, "aside", aside_);
  put(head_, "late", late_);
  put(head_, "tokens", tokens_);
  put(head_, "ends", ends_);
  head_ += "}\n";
  write_(head_);
}

}  // namespace deepmint
