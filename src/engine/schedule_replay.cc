#include "engine/schedule_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <fstream>
#include <map>
#include <type_traits>
#include <utility>

#include "core/cpu_isa.h"
#include "core/json.h"
#include "engine/engine_core.h"

namespace deepmint {
namespace {

using json::Value;

tl::unexpected<Error> malformed(std::string what) {
  return fail(ErrorCode::kInvalidFile, std::move(what));
}

template <class T>
bool assign(const Value& value, T& out) {
  if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) return false;
    out = value.as_string();
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_bool()) return false;
    out = value.as_bool();
  } else if constexpr (std::is_floating_point_v<T>) {
    const auto number = value.to_double();
    if (!number) return false;
    out = static_cast<T>(*number);
  } else if constexpr (std::is_unsigned_v<T>) {
    const auto number = value.to_uint64();
    if (!number || !std::in_range<T>(*number)) return false;
    out = static_cast<T>(*number);
  } else {
    const auto number = value.to_int64();
    if (!number || !std::in_range<T>(*number)) return false;
    out = static_cast<T>(*number);
  }
  return true;
}

// Reads members into fields; remembers the first that is not right.
struct Reads {
  const Value& object;
  bool required;
  std::string& wrong;
  template <class T>
  void operator()(std::string_view name, T& field) const {
    const Value* value = object.find(name);
    if ((value == nullptr && !required) || !wrong.empty()) return;
    if (value == nullptr || !assign(*value, field)) wrong = std::string(name);
  }
};

bool read_ids(const Value& object, std::string_view name, std::vector<TokenId>& out) {
  const Value* list = object.find(name);
  if (list == nullptr) return true;
  if (!list->is_array()) return false;
  for (const Value& item : list->items())
    if (TokenId id = 0; assign(item, id)) {
      out.push_back(id);
    } else {
      return false;
    }
  return true;
}

Clock::time_point time_of(int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); }

// What a recorded request was allowed to say next is what it said.
class RecordedReply : public TokenMask {
 public:
  RecordedReply(int64_t vocab, std::deque<TokenId> reply)
      : words_(static_cast<size_t>((vocab + 31) / 32)), reply_(std::move(reply)) {}
  std::span<const uint32_t> allowed() override {
    if (reply_.empty()) return {};  // of a token that was never delivered
    std::fill(words_.begin(), words_.end(), 0);
    words_[static_cast<size_t>(reply_.front()) / 32] |= 1u << (reply_.front() % 32);
    return words_;
  }
  void accept(TokenId) override {
    if (!reply_.empty()) reply_.pop_front();
  }

 private:
  std::vector<uint32_t> words_;
  std::deque<TokenId> reply_;
};

class IgnoresEvents : public EventSink {
 public:
  void on_token(const TokenEvent&) override {}
  void on_finish(const FinishEvent&) override {}
};

// Cancels, behind the forward step, whom the recorded engine found cancelled there.
struct LateCancels : StepObserver {
  std::vector<RequestControl*> due;
  void at(StepPoint point, const StepPlan*) override {
    if (point == StepPoint::kSampled) now();
  }
  void now() {
    for (RequestControl* control : due) control->cancelled = true;
    due.clear();
  }
};

class Replay {
 public:
  explicit Replay(const LoadedModel& loaded)
      : loaded_(loaded), log_([this](std::string_view line) { written_ += line; }) {}

  Result<ReplayedSchedule> run(std::span<const std::string> lines, Tap* tap) {
    std::vector<Value> calls;
    for (size_t i = 0; i < lines.size(); ++i) {
      auto parsed = json::parse(lines[i]);
      if (!parsed) return at_line(i, std::move(parsed).error());
      collect_reply(*parsed);
      calls.push_back(std::move(*parsed));
    }
    if (calls.empty()) return malformed("expected a schedule, found nothing");
    if (auto begun = begin(calls[0], tap); !begun) return at_line(0, std::move(begun).error());
    for (size_t i = 1; i < calls.size(); ++i) {
      written_.clear();
      if (auto done = call(calls[i]); !done) return at_line(i, std::move(done).error());
      std::string_view expected = lines[i], found = written_;
      while (expected.ends_with('\n')) expected.remove_suffix(1);
      while (found.ends_with('\n')) found.remove_suffix(1);
      if (expected != found)
        return at_line(
            i, {ErrorCode::kInternal, fmt::format("recorded {}, found {}", expected, found), {}});
    }
    done_.tokens = core_->stats().output_tokens;
    return done_;
  }

 private:
  static tl::unexpected<Error> at_line(size_t index, Error error) {
    error.where = fmt::format("schedule line {}", index + 1) +
                  (error.where.empty() ? "" : ": " + error.where);
    return tl::unexpected(std::move(error));
  }

  void collect_reply(const Value& line) {
    const Value* tokens = line.find("tokens");
    if (tokens == nullptr || !tokens->is_array()) return;
    for (const Value& entry : tokens->items()) {
      uint64_t id = 0;
      TokenId token = 0;
      if (entry.is_array() && entry.items().size() >= 2 && assign(entry.items()[0], id) &&
          assign(entry.items()[1], token) && token >= 0 && token < loaded_.model->info().vocab_size)
        replies_[id].push_back(token);
    }
  }

  Status begin(const Value& head, Tap* tap) {
    int version = 0;
    if (const Value* v = head.find("deepmint_schedule"); v == nullptr || !assign(*v, version))
      return malformed("expected deepmint_schedule, found another line");
    if (version != ScheduleSetup::kVersion)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected version {}, found {}", ScheduleSetup::kVersion, version));
    ScheduleSetup setup;
    std::string wrong;
    setup.visit(Reads{head, true, wrong});
    if (!wrong.empty()) return malformed("expected a right value of " + wrong);
    if (setup.fingerprint != loaded_.model->info().fingerprint)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected model {:016x} ({}), found {:016x}", setup.fingerprint,
                              setup.model, loaded_.model->info().fingerprint));
    if (setup.isa != isa_class(active_isa()))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected instruction-set class {}, found {}; DEEPMINT_CPU_ISA "
                              "chooses one",
                              setup.isa, isa_class(active_isa())));
    EngineConfig config;
    config.context_tokens = setup.state.context_tokens;
    config.max_running = setup.state.max_running;
    config.max_waiting = 1'000'000;
    config.step_tokens = setup.step_tokens;
    config.step_attention = setup.step_attention;
    config.prefix_cache = setup.prefix_cache;
    config.plan_ahead = setup.plan_ahead;
    DEEPMINT_CHECK_OK(check_engine_config(config));
    if (setup.hash_bits < 1 || setup.hash_bits > 128 || setup.state.context_tokens < 1 ||
        !fits(setup.state))
      return malformed("expected a state that fits into the memory of this machine");
    EngineHooks hooks;
    hooks.tap = tap;
    hooks.observer = &late_;
    hooks.hash_bits = setup.hash_bits;
    hooks.log = &log_;
    hooks.state = &setup.state;
    DEEPMINT_TRY(core, EngineCore::create(loaded_, config, clock_, hooks));
    core_ = std::move(core);
    return {};
  }

  bool fits(const StatePlan& state) const {
    constexpr size_t kMost = size_t{1} << 24;
    if (state.n_blocks > kMost || state.n_slots > kMost || state.n_snapshots > kMost) return false;
    constexpr double kBookkeeping = 1024;  // bytes per block, at most
    double bytes = kBookkeeping * static_cast<double>(state.n_blocks);
    for (const StatePart& part : loaded_.model->state_parts())
      bytes += static_cast<double>(part.bytes) *
               static_cast<double>(part.family == StatePart::Family::kGlobal
                                       ? state.n_blocks
                                       : state.n_slots + state.n_snapshots);
    return bytes < static_cast<double>(available_memory());
  }

  Status add(const Value& r) {
    GenerationRequest request;
    uint64_t id = 0, seed = 0;
    int request_class = 0;
    std::string wrong, state;
    const Reads need{r, true, wrong}, may{r, false, wrong};
    need("id", id), need("seed", seed), need("max_tokens", request.max_tokens);
    need("class", request_class), may("choice", request.choice);
    may("want_prompt_logits", request.want_prompt_logits);
    may("bounded_replay", request.bounded_replay);
    may("fair_key", request.fair_key), may("fair_weight", request.fair_weight);
    may("cache_salt", request.cache_salt), may("state", state);
    const auto optional = [&](std::string_view name, auto& out, auto make) {
      int64_t value = 0;
      if (r.find(name) == nullptr) return;
      need(name, value);
      out = make(value);
    };
    optional("deadline", request.deadline, time_of);
    optional("start_by", request.start_by, time_of);
    std::optional<Clock::time_point> due = request.deadline;
    optional("due", due, time_of);
    if (r.find("tail_keep_tokens") != nullptr)
      need("tail_keep_tokens", request.tail_keep_tokens.emplace());
    const Value* sampling = r.find("sampling");
    if (sampling == nullptr) return malformed("expected sampling, found nothing");
    SamplingParams& p = request.sampling;
    visit_sampling(p, Reads{*sampling, true, wrong});
    p.seed = seed;
    if (!wrong.empty()) return malformed("expected a right value of " + wrong);
    if (!read_ids(r, "tokens", request.tokens) || !read_ids(r, "stop_ids", request.stop_ids) ||
        !read_ids(*sampling, "allowed_ids", p.allowed_ids) ||
        !read_ids(*sampling, "banned_ids", p.banned_ids))
      return malformed("expected lists of token ids");
    if (const Value* bias = sampling->find("logit_bias"); bias != nullptr && bias->is_array())
      for (size_t i = 0; i + 1 < bias->items().size(); i += 2) {
        std::pair<TokenId, float> entry;
        if (!assign(bias->items()[i], entry.first) || !assign(bias->items()[i + 1], entry.second))
          return malformed("expected logit_bias as ids and numbers");
        p.logit_bias.push_back(entry);
      }
    if (request_class < 0 || request_class >= kRequestClasses)
      return malformed("expected a class from 0 to 2");
    request.request_class = static_cast<RequestClass>(request_class);
    if (r.find("mask") != nullptr)
      request.mask =
          std::make_shared<RecordedReply>(loaded_.model->info().vocab_size, replies_[id]);
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < state.size(); i += 2) {
      const char* end = state.data() + std::min(state.size(), i + 2);
      uint8_t byte = 0;
      if (const auto [at, error] = std::from_chars(state.data() + i, end, byte, 16); at != end)
        return malformed("expected state as hexadecimal digits");
      bytes.push_back(static_cast<std::byte>(byte));
    }
    const auto sink = std::make_shared<IgnoresEvents>();
    DEEPMINT_TRY(sequence, bytes.empty()
                               ? core_->prepare(std::move(request), sink)
                               : core_->prepare_saved(std::move(request), std::move(bytes), sink));
    sequence->control->id = id;
    controls_[id] = sequence->control;
    sequence->due = due.value_or(Clock::time_point::max());  // as recorded, whatever the clock says
    DEEPMINT_CHECK_OK(core_->take_place(*sequence));
    core_->add(std::move(sequence));
    ++done_.requests;
    return {};
  }

  // Those of a list of ids that are known.
  std::vector<RequestControl*> named(const Value& line, std::string_view name) const {
    std::vector<RequestControl*> out;
    if (const Value* list = line.find(name); list != nullptr && list->is_array())
      for (const Value& item : list->items())
        if (uint64_t id = 0; assign(item, id))
          if (const auto it = controls_.find(id); it != controls_.end())
            out.push_back(it->second.get());
    return out;
  }

  Status call(const Value& line) {
    if (const Value* r = line.find("add")) return add(*r);
    int64_t when = 0;
    if (const Value* v = line.find("cancel_all_at"); v != nullptr && assign(*v, when)) {
      core_->cancel_all_at(time_of(when));
      return {};
    }
    if (const Value* now = line.find("now"); now == nullptr || !assign(*now, when))
      return malformed("expected add, cancel_all_at, or a call with its time");
    clock_.advance(time_of(when) - clock_.now());
    for (RequestControl* control : named(line, "cancelled")) control->cancelled = true;
    late_.due = named(line, "late");
    uint64_t id = 0;
    if (line.find("step") != nullptr) {
      core_->step();
      ++done_.steps;
    } else if (const Value* who = line.find("preempt"); who != nullptr && assign(*who, id)) {
      late_.now();
      core_->preempt(id);
    } else if (const Value* saved = line.find("export"); saved != nullptr && assign(*saved, id)) {
      late_.now();
      (void)core_->export_state(id);
    } else {
      return malformed("expected a step, preempt or export");
    }
    late_.due.clear();
    return {};
  }

  const LoadedModel& loaded_;
  ManualClock clock_;
  LateCancels late_;
  std::string written_;
  ScheduleLog log_;
  std::map<uint64_t, std::deque<TokenId>> replies_;
  std::map<uint64_t, std::shared_ptr<RequestControl>> controls_;
  ReplayedSchedule done_;
  std::unique_ptr<EngineCore> core_;
};

}  // namespace

Result<std::vector<std::string>> read_schedule(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(ErrorCode::kNotFound, "expected a readable file, found none", path.string());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line) && !in.eof();) lines.push_back(std::move(line));
  return lines;
}

Result<ReplayedSchedule> replay_schedule(std::span<const std::string> lines,
                                         const LoadedModel& loaded, Tap* tap) {
  return Replay(loaded).run(lines, tap);
}

}  // namespace deepmint
