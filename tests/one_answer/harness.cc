#include "one_answer/harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <list>
#include <random>
#include <stdexcept>

#include "kvcache/seq_state.h"
#include "kvcache/state_arena.h"
#include "one_answer/covering_array.h"
#include "support/collecting_sink.h"

namespace deepmint::one_answer {
namespace {

using testing::CollectingSink;

constexpr std::array<const char*, 6> kCacheNames = {"cold",        "hit of one block",
                                                    "hit of half", "hit of some blocks",
                                                    "hit of all",  "hit after eviction"};
constexpr std::array<const char*, 4> kSamplingNames = {"greedy", "T=1 with a seed",
                                                       "T=1 with penalties", "n=3"};

constexpr int kRestores = 3;  // numbers of restores that are tried: 0, 1, 2

std::vector<Answer::Token> tokens_of(const CollectingSink& sink) {
  std::vector<Answer::Token> out;
  for (const auto& t : sink.tokens()) out.push_back({t.id, t.position, t.logprob, t.top});
  return out;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

std::string Case::describe() const {
  return fmt::format(
      "case {}: {} in company, {} rows of a prompt per step, prompt of {}, {} tail, {}, {}, {} "
      "restores{}{}{}{}, threads #{}",
      index, company, chunk, prompt, tail ? fmt::format("bounded {}", *tail) : "exact",
      kCacheNames[static_cast<size_t>(cache)], kSamplingNames[static_cast<size_t>(sampling)],
      restores, preempt ? ", preempted" : "", async ? ", planned ahead" : "",
      abort_neighbours ? ", neighbours aborted" : "", spread ? ", arrivals spread" : "", threads);
}

std::string difference(const Answer& found, const Answer& expected) {
  const size_t n = std::min(found.tokens.size(), expected.tokens.size());
  for (size_t i = 0; i < n; ++i) {
    const Answer::Token &a = found.tokens[i], &b = expected.tokens[i];
    if (a.id != b.id) return fmt::format("token {}: expected id {}, found {}", i, b.id, a.id);
    if (!same_bits(a.logprob, b.logprob))
      return fmt::format("token {}: expected log-probability {:a}, found {:a}", i, b.logprob,
                         a.logprob);
    if (a.top.size() != b.top.size())
      return fmt::format("token {}: expected {} alternatives, found {}", i, b.top.size(),
                         a.top.size());
    for (size_t t = 0; t < a.top.size(); ++t)
      if (a.top[t].id != b.top[t].id || !same_bits(a.top[t].logprob, b.top[t].logprob))
        return fmt::format("token {}: alternative {} differs", i, t);
  }
  if (found.tokens.size() != expected.tokens.size())
    return fmt::format("expected {} tokens, found {}", expected.tokens.size(), found.tokens.size());
  if (found.reason != expected.reason)
    return fmt::format("expected the end \"{}\", found \"{}\"", to_string(expected.reason),
                       to_string(found.reason));
  if (found.skipped_tokens != expected.skipped_tokens)
    return fmt::format("expected {} tokens that the tail skips, found {}", expected.skipped_tokens,
                       found.skipped_tokens);
  return {};
}

// ---------------------------------------------------------------- one case, run

class Harness::Run {
 public:
  Run(const Subject& subject, const std::vector<std::shared_ptr<TappedModel>>& tapped,
      const Case& c, Seen& seen, std::list<Recorded>* recorded = nullptr)
      : subject_(subject),
        tapped_(tapped),
        case_(c),
        seen_(seen),
        recorded_(recorded),
        rng_(c.seed) {}

  // Answers to the requests, or what went wrong on the way.
  Result<std::vector<Answer>> answers(const std::vector<GenerationRequest>& requests) {
    n_rows_ = requests.size() + static_cast<size_t>(case_.company) - 1;
    for (const GenerationRequest& r : requests) mine_.push_back({.request = r});
    for (size_t i = requests.size(); i < n_rows_; ++i)
      neighbours_.push_back({.request = companion()});
    EngineCore& first = add_core(case_.threads, case_.chunk);
    warm(first);
    schedule(first);
    for (int step = 0; step < 100'000; ++step) {
      const bool done =
          arrivals_.empty() &&
          std::ranges::all_of(mine_, [](const Party& p) { return p.sink->finished(); }) &&
          std::ranges::all_of(cores_, [](const auto& core) { return core->idle(); });
      if (done) return collect();
      disturb(step);
      if (!error_.empty()) return fail(ErrorCode::kInternal, error_);
      clock_.advance(std::chrono::milliseconds(1));
      for (const auto& core : cores_)
        if (!core->idle()) core->step();
    }
    return fail(ErrorCode::kInternal, "the engine does not come to an end");
  }

 private:
  struct Party {
    GenerationRequest request;
    std::shared_ptr<CollectingSink> sink = {};
    std::shared_ptr<RequestControl> control = {};
    EngineCore* core = nullptr;
    std::vector<Answer::Token> before = {};  // what came from engines that it has left
    std::vector<int> events = {};            // steps at which it is saved, preempted or cancelled
  };

  uint64_t below(uint64_t n) { return rng_() % n; }
  bool chance(int percent) { return below(100) < static_cast<uint64_t>(percent); }

  size_t blocks_of(const GenerationRequest& r) const {
    return kvcache::blocks_for(static_cast<int32_t>(r.tokens.size()) + r.max_tokens);
  }

  EngineCore& add_core(size_t threads, int chunk) {
    EngineConfig config;
    config.max_running = static_cast<int32_t>(n_rows_);
    config.step_tokens = chunk + static_cast<int32_t>(n_rows_) - 1;
    config.context_tokens = std::max(subject_.prompt_lengths.back(), subject_.companion_prompt) +
                            subject_.max_tokens + 1;
    size_t need = 0, block_bytes = 0, slot_bytes = 0;
    for (const auto* parties : {&mine_, &neighbours_})
      for (const Party& p : *parties) need += blocks_of(p.request);
    need = std::max(need, kvcache::blocks_for(config.context_tokens));
    if (case_.cache != Cache::kEvicted) need *= 3;
    for (const StatePart& part : subject_.loaded[0].model->state_parts())
      (part.family == StatePart::Family::kGlobal ? block_bytes : slot_bytes) += part.bytes;
    const size_t slots = slot_bytes * n_rows_;
    // Room for these, as much again for requests that step aside, and an eighth for snapshots.
    const size_t state = std::max((need + 1) * block_bytes + 2 * slots, 4 * slots);
    config.park_bytes = static_cast<int64_t>(state);
    config.kv_bytes = static_cast<int64_t>(state * 16 / 7 + 64);
    config.plan_ahead = case_.async;
    if (!subject_.tails.empty() && chance(40))
      config.snapshot_bytes = 0;  // window state is rebuilt
    seen_.planned_ahead += case_.async;
    LoadedModel loaded = subject_.loaded[threads];
    loaded.model = tapped_[threads];
    EngineHooks hooks;
    if (recorded_ != nullptr) {
      std::vector<std::string>& lines = recorded_->emplace_back(Recorded{{}, loaded}).lines;
      hooks.log =
          &logs_.emplace_back([&lines](std::string_view line) { lines.emplace_back(line); });
    }
    auto core = EngineCore::create(loaded, config, clock_, hooks);
    if (!core) throw std::runtime_error(case_.describe() + ": " + core.error().str());
    cores_.push_back(std::move(*core));
    pool_blocks_ = static_cast<size_t>(cores_.back()->stats().blocks_total);
    return *cores_.back();
  }

  void submit(EngineCore& core, Party& party, std::vector<std::byte> state = {}) {
    party.sink = std::make_shared<CollectingSink>();
    auto sequence = state.empty() ? core.prepare(party.request, party.sink)
                                  : core.prepare_saved(party.request, std::move(state), party.sink);
    if (!sequence) {
      error_ = "refused: " + sequence.error().str();
      return;
    }
    if (const Status place = core.take_place(**sequence); !place) {
      error_ = "no place: " + place.error().str();
      return;
    }
    party.control = (*sequence)->control;
    party.core = &core;
    core.add(std::move(*sequence));
  }

  std::vector<TokenId> random_ids(size_t n) {
    std::vector<TokenId> ids(n);
    const auto vocab = static_cast<uint64_t>(subject_.loaded[0].model->info().vocab_size);
    for (TokenId& id : ids) id = static_cast<TokenId>(below(vocab));
    return ids;
  }

  // A neighbour: every second one begins as we do, some exactly to the end of our prompt.
  GenerationRequest companion() {
    GenerationRequest r;
    const std::vector<TokenId>& ours = mine_[0].request.tokens;
    const auto longest = static_cast<size_t>(subject_.companion_prompt);
    if (chance(50))
      r.tokens.assign(ours.begin(), ours.begin() + static_cast<ptrdiff_t>(
                                                       1 + below(std::min(ours.size(), longest))));
    if (r.tokens.empty() || chance(80)) {
      const auto more = random_ids(1 + below(longest + 1 - std::min(longest, r.tokens.size())));
      r.tokens.insert(r.tokens.end(), more.begin(), more.end());
    }
    r.tokens.resize(std::min(r.tokens.size(), longest));
    r.max_tokens = static_cast<int32_t>(1 + below(static_cast<uint64_t>(subject_.max_tokens)));
    r.sampling.temperature = chance(50) ? 0.0f : 1.0f;
    r.sampling.seed = rng_();
    may_approximate(r);
    return r;
  }

  // Somebody else's request, where the model has approximations to ask for.
  void may_approximate(GenerationRequest& r) {
    const std::vector<int>& tails = subject_.tails;
    if (tails.empty()) return;
    if (chance(50)) r.tail_keep_tokens = tails[below(tails.size())];
    r.bounded_replay = chance(25);
    seen_.bounded_neighbours += !case_.tail && (r.tail_keep_tokens || r.bounded_replay);
  }

  void run_alone(EngineCore& core, std::vector<TokenId> tokens, int32_t max_tokens) {
    Party p;
    p.request.tokens = std::move(tokens);
    p.request.max_tokens = max_tokens;
    p.request.sampling.seed = 1;
    may_approximate(p.request);
    submit(core, p);
    while (error_.empty() && !core.idle()) core.step();
  }

  // What the cache has seen before we come.
  void warm(EngineCore& core) {
    if (case_.cache == Cache::kCold) return;
    const std::vector<TokenId>& ours = mine_[0].request.tokens;
    const auto first = [&](size_t n) {
      std::vector<TokenId> tokens(ours.begin(),
                                  ours.begin() + static_cast<ptrdiff_t>(std::min(n, ours.size())));
      return tokens;
    };
    const size_t depth = case_.cache == Cache::kOneBlock ? kBlockTokens + 1
                         : case_.cache == Cache::kHalf   ? ours.size() / 2 + 1
                         : case_.cache == Cache::kAnyBlock
                             ? kBlockTokens * below(1 + ours.size() / kBlockTokens) + 1
                             : ours.size();
    // Sometimes in two steps, so that the second finds what the first has left.
    if (depth == ours.size() && chance(40)) run_alone(core, first(below(depth) + 1), 0);
    run_alone(core, first(depth), static_cast<int32_t>(below(3)));
    if (case_.cache == Cache::kHalf && chance(50)) {  // and another way on from there
      auto other = first(depth);
      const auto tail = random_ids(40);
      other.insert(other.end(), tail.begin(), tail.end());
      other.resize(std::min<size_t>(other.size(), ours.size()));
      run_alone(core, other, 2);
    }
    if (case_.cache != Cache::kEvicted) return;
    const auto longest = static_cast<size_t>(subject_.prompt_lengths.back());
    for (size_t filled = 0; filled < pool_blocks_ / 2 + below(pool_blocks_);
         filled += kvcache::blocks_for(static_cast<int32_t>(longest)))
      run_alone(core, random_ids(longest), 1);
  }

  void schedule(EngineCore& core) {
    const uint64_t last = case_.spread ? 40 : 1;
    for (auto* parties : {&mine_, &neighbours_})
      for (Party& p : *parties) arrivals_.push_back({static_cast<int>(below(last)), &p});
    for (size_t i = arrivals_.size(); i > 1; --i) std::swap(arrivals_[i - 1], arrivals_[below(i)]);
    const auto some_step = [&] {
      return static_cast<int>(below(static_cast<uint64_t>(subject_.max_tokens) + last + 5));
    };
    for (int i = 0; i < case_.restores; ++i) restore_at_.push_back(some_step());
    for (Party& p : mine_)
      if (case_.preempt)
        for (int i = 0; i < 3; ++i) p.events.push_back(some_step());
    for (Party& p : neighbours_) {
      if (case_.abort_neighbours && chance(60)) p.events.push_back(some_step());
      if (case_.preempt && chance(30)) also_preempted_.push_back({some_step(), &p});
    }
    first_ = &core;
  }

  // What happens between two steps.
  void disturb(int step) {
    std::erase_if(arrivals_, [&](const std::pair<int, Party*>& a) {
      if (a.first > step) return false;
      submit(*first_, *a.second);
      return true;
    });
    for (Party& p : mine_)
      for (const int at : p.events)
        if (at == step && p.sink != nullptr && !p.sink->finished())
          seen_.preemptions += p.core->preempt(p.control->id);
    for (const auto& [at, p] : also_preempted_)
      if (at == step && p->sink != nullptr && !p->sink->finished())
        seen_.preemptions += p->core->preempt(p->control->id);
    for (Party& p : neighbours_)
      for (const int at : p.events)
        if (at == step && p.sink != nullptr && !p.sink->finished()) {
          p.control->cancelled = true;
          ++seen_.aborted;
        }
    for (int& at : restore_at_)
      if (at >= 0 && at <= step && restore(mine_[0])) at = -1;
  }

  // Saves a request and lets it go on in an engine of another shape. False: not now.
  bool restore(Party& p) {
    if (p.sink == nullptr) return false;
    if (p.sink->finished()) return true;
    EngineCore& from = *p.core;
    auto state = from.export_state(p.control->id);
    if (!state) return false;
    const auto delivered = tokens_of(*p.sink);
    p.before.insert(p.before.end(), delivered.begin(), delivered.end());
    p.control->cancelled = true;
    ++seen_.restores;
    // A model takes one caller at a time: who is left behind comes to its end first.
    for (const auto& [at, party] : arrivals_) submit(*first_, *party);
    arrivals_.clear();
    for (int step = 0; step < 100'000 && !from.idle(); ++step) from.step();
    const auto& sizes = subject_.chunks;
    EngineCore& to = add_core(below(subject_.loaded.size()), sizes[below(sizes.size())]);
    if (chance(50)) {
      Party& stranger = strangers_.emplace_back();
      stranger.request = companion();
      submit(to, stranger);
    }
    submit(to, p, std::move(*state));
    return true;
  }

  Result<std::vector<Answer>> collect() {
    std::vector<Answer> answers;
    for (const Party& p : mine_) {
      Answer a;
      a.tokens = p.before;
      const auto rest = tokens_of(*p.sink);
      a.tokens.insert(a.tokens.end(), rest.begin(), rest.end());
      const FinishEvent end = *p.sink->finish();
      if (end.error) return fail(ErrorCode::kInternal, "ended with: " + end.error->str());
      a.reason = end.reason;
      a.skipped_tokens = end.usage.tail_skipped_tokens;
      if (end.usage.bounded_replay)
        return fail(ErrorCode::kInternal, "a bounded replay that nobody has asked for");
      seen_.skipped_tokens += a.skipped_tokens;
      seen_.cached_tokens += end.usage.cached_tokens;
      for (size_t i = 0; i < a.tokens.size(); ++i)
        if (a.tokens[i].position != static_cast<int32_t>(p.request.tokens.size() + i))
          return fail(ErrorCode::kInternal,
                      fmt::format("token {} was delivered for position {} after a prompt of {}", i,
                                  a.tokens[i].position, p.request.tokens.size()));
      answers.push_back(std::move(a));
    }
    for (const auto& core : cores_) {
      const EngineStats s = core->stats();
      seen_.snapshots_restored += s.snapshots_restored;
      if (s.running != 0 || s.waiting != 0 || s.blocks_free != s.blocks_total)
        return fail(ErrorCode::kInternal,
                    fmt::format("left behind: {} running, {} waiting, {} of {} blocks free",
                                s.running, s.waiting, s.blocks_free, s.blocks_total));
    }
    return answers;
  }

  const Subject& subject_;
  const std::vector<std::shared_ptr<TappedModel>>& tapped_;
  const Case& case_;
  Seen& seen_;
  std::list<Recorded>* const recorded_;  // null: not asked for
  std::list<ScheduleLog> logs_;
  std::mt19937_64 rng_;
  ManualClock clock_;
  size_t n_rows_ = 1, pool_blocks_ = 0;
  std::vector<std::unique_ptr<EngineCore>> cores_;
  EngineCore* first_ = nullptr;
  std::vector<Party> mine_, neighbours_;
  std::list<Party> strangers_;
  std::vector<std::pair<int, Party*>> arrivals_, also_preempted_;
  std::vector<int> restore_at_;
  std::string error_;
};

// ---------------------------------------------------------------- cases

Harness::Harness(Subject subject, uint64_t seed, Fault fault)
    : subject_(std::move(subject)), seed_(seed), keeps_schedules_(fault == Fault::kNone) {
  for (const LoadedModel& loaded : subject_.loaded)
    tapped_.push_back(std::make_shared<TappedModel>(loaded.model, fault));
}
Harness::~Harness() = default;

Case Harness::case_at(int index) {
  const Subject& s = subject_;
  const std::array<int, 11> levels = {static_cast<int>(s.company.size()),
                                      static_cast<int>(s.chunks.size()),
                                      static_cast<int>(s.prompt_lengths.size()),
                                      static_cast<int>(kCacheNames.size()),
                                      static_cast<int>(kSamplingNames.size()),
                                      kRestores + static_cast<int>(s.tails.size()),
                                      2,
                                      2,
                                      2,
                                      2,
                                      static_cast<int>(s.loaded.size())};
  int round = 0, row = index;
  const std::vector<std::vector<int>>* array = nullptr;
  for (;; ++round) {
    auto it = arrays_.find(round);
    if (it == arrays_.end())
      it = arrays_.emplace(round, covering_array(levels, static_cast<uint64_t>(round))).first;
    array = &it->second;
    if (row < static_cast<int>(array->size())) break;
    row -= static_cast<int>(array->size());
  }
  const std::vector<int>& v = (*array)[static_cast<size_t>(row)];
  const auto at = [](const std::vector<int>& values, int i) {
    return values[static_cast<size_t>(i)];
  };
  Case c;
  c.index = index;
  c.company = at(s.company, v[0]);
  c.chunk = at(s.chunks, v[1]);
  c.prompt = at(s.prompt_lengths, v[2]);
  c.cache = static_cast<Cache>(v[3]);
  c.sampling = static_cast<Sampling>(v[4]);
  // One dimension, since a request with a bounded tail is never restored.
  if (v[5] < kRestores)
    c.restores = v[5];
  else
    c.tail = at(s.tails, v[5] - kRestores);
  c.preempt = v[6] != 0;
  c.async = v[7] != 0;
  c.abort_neighbours = v[8] != 0;
  c.spread = v[9] != 0;
  c.threads = static_cast<size_t>(v[10]);
  c.seed = seed_ + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(index) + 1);
  return c;
}

std::vector<GenerationRequest> Harness::requests_of(const Case& c) const {
  GenerationRequest r;
  r.tokens.assign(subject_.text.begin(), subject_.text.begin() + c.prompt);
  r.max_tokens = subject_.max_tokens;
  r.tail_keep_tokens = c.tail;
  r.sampling.top_logprobs = 3;
  r.sampling.seed = 1234567 + static_cast<uint64_t>(c.prompt);
  r.sampling.temperature = c.sampling == Sampling::kGreedy ? 0.0f : 1.0f;
  if (c.sampling == Sampling::kPenalties) {
    r.sampling.repetition_penalty = 1.2f;
    r.sampling.frequency_penalty = 0.4f;
    r.sampling.presence_penalty = 0.3f;
    r.sampling.top_p = 0.95;
    r.sampling.raw_logprobs = false;
  }
  std::vector<GenerationRequest> requests;
  const int n = c.sampling == Sampling::kThreeChoices ? 3 : 1;
  for (r.choice = 0; r.choice < n; ++r.choice) requests.push_back(r);
  return requests;
}

const std::vector<Answer>& Harness::reference(const Case& c) {
  const std::tuple key{c.prompt, c.sampling, c.tail};
  if (const auto it = references_.find(key); it != references_.end()) return it->second;
  Case alone;
  alone.prompt = c.prompt;
  alone.sampling = c.sampling;
  alone.tail = c.tail;
  std::vector<Answer> answers;
  for (const GenerationRequest& r : requests_of(alone)) {
    Seen ignored;
    auto found = Run(subject_, tapped_, alone, ignored).answers({r});
    if (!found) throw std::runtime_error("alone: " + found.error().str());
    answers.push_back(found->front());
  }
  return references_[key] = std::move(answers);
}

std::vector<Harness::Recorded> Harness::record(const Case& c) {
  std::list<Recorded> recorded;
  Seen ignored;
  (void)Run(subject_, tapped_, c, ignored, &recorded).answers(requests_of(c));
  return {std::make_move_iterator(recorded.begin()), std::make_move_iterator(recorded.end())};
}

std::optional<std::string> Harness::check(const Case& c) {
  const std::vector<Answer>& expected = reference(c);
  const auto found = Run(subject_, tapped_, c, seen_).answers(requests_of(c));
  const auto repeat = [&] {
    std::string text =
        fmt::format("\n  {}, {}\n  repeat: DEEPMINT_TEST_SEED={} DEEPMINT_ONE_ANSWER_CASE={}",
                    subject_.name, c.describe(), seed_, c.index);
    if (!keeps_schedules_) return text;
    size_t engine = 0;
    for (const Recorded& r : record(c)) {
      const auto path = std::filesystem::temp_directory_path() /
                        fmt::format("deepmint_one_answer_{}_{}_{}.jsonl", seed_, c.index, engine++);
      std::ofstream out(path);
      for (const std::string& line : r.lines) out << line;
      text += "\n  schedule: " + path.string();
    }
    return text;
  };
  if (!found) return found.error().str() + repeat();
  for (size_t i = 0; i < expected.size(); ++i)
    if (const std::string what = difference((*found)[i], expected[i]); !what.empty())
      return fmt::format("choice {}: {}\n  first difference at {}{}", i, what,
                         first_difference(c, i, expected), repeat());
  return {};
}

// Runs both again, watched.
std::string Harness::first_difference(const Case& c, size_t choice,
                                      const std::vector<Answer>& expected) {
  const auto requests = requests_of(c);
  std::vector<TokenId> tokens = requests[choice].tokens;
  for (const Answer::Token& t : expected[choice].tokens) tokens.push_back(t.id);
  const auto watch = [&](const Case& which, const std::vector<GenerationRequest>& run) {
    RowTraces traces(tokens);
    for (const auto& model : tapped_) model->record(&traces);
    Seen ignored;
    (void)Run(subject_, tapped_, which, ignored).answers(run);
    for (const auto& model : tapped_) model->record(nullptr);
    return traces;
  };
  Case alone;
  alone.prompt = c.prompt;
  alone.sampling = c.sampling;
  alone.tail = c.tail;
  const RowTraces right = watch(alone, {requests[choice]});
  const std::string where = watch(c, requests).first_difference_from(right);
  return where.empty() ? "no row that the model ran: look at sampling and delivery" : where;
}

}  // namespace deepmint::one_answer
