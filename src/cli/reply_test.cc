#include "cli/reply.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <set>

#include "cli/bench_measure.h"
#include "cli/prompt.h"
#include "support/fake_model.h"
#include "support/scripted_engine.h"

namespace deepmint::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ScriptedEngine;
using ::testing::StartsWith;
using Play = ScriptedEngine::Play;

// One token per byte, and one that ends a reply.
constexpr TokenId kEnd = 256;
std::shared_ptr<const Tokenizer> byte_tokenizer() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.vocab.emplace_back(1, static_cast<char>(byte));
  spec.vocab.emplace_back("<end>");
  TokenizerSpec::Added end;
  end.id = kEnd;
  end.text = "<end>";
  end.special = true;
  spec.added.push_back(end);
  auto tokenizer = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(tokenizer) << tokenizer.error().str();
  return *tokenizer;
}

std::vector<TokenId> bytes_of(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

ScriptedEngine::Script plays(Play play) {
  return [play](const GenerationRequest&) -> Result<Play> { return play; };
}

Play text_play(std::string_view text, bool ends = true) {
  Play play;
  play.tokens = bytes_of(text);
  if (ends) play.tokens.push_back(kEnd);
  return play;
}

GenerationRequest request() {
  GenerationRequest r;
  r.tokens = {1, 2, 3};
  r.stop_ids = {kEnd};
  return r;
}

TEST(Generate, CollectsTextIdsAndUsage) {
  Play play = text_play("naïve");
  play.prefill_chunks = 2;
  ScriptedEngine engine(plays(play));
  const auto tokenizer = byte_tokenizer();
  std::string streamed;
  std::vector<TokenId> ids;
  int prefills = 0;
  ReplyOptions options;
  options.on_text = [&](std::string_view text) { return streamed += text, Status{}; };
  options.on_id = [&](TokenId id) { return ids.push_back(id), Status{}; };
  options.on_prefill = [&](int32_t, int32_t) { ++prefills; };
  const auto reply = generate(engine, tokenizer.get(), request(), options);
  ASSERT_TRUE(reply) << reply.error().str();
  EXPECT_EQ(reply->text, "naïve");
  EXPECT_EQ(streamed, reply->text);
  EXPECT_EQ(reply->ids, play.tokens);
  EXPECT_EQ(ids, reply->ids);
  EXPECT_EQ(prefills, 2);
  EXPECT_EQ(reply->finish_reason, "stop");
  EXPECT_EQ(reply->finish.usage.output_tokens, static_cast<int32_t>(reply->ids.size()));
  EXPECT_TRUE(reply->logprobs.empty());
  EXPECT_GE(reply->decode_s, 0);
}

TEST(Generate, StopStringCancelsAndWhatFollowsIsNotPartOfTheReply) {
  Play play = text_play("one STOP two", /*ends=*/false);
  play.hang = true;
  ScriptedEngine engine(plays(play));
  const auto tokenizer = byte_tokenizer();
  std::string streamed;
  ReplyOptions options;
  options.stop = {"STOP", "never"};
  options.on_text = [&](std::string_view text) { return streamed += text, Status{}; };
  const auto reply = generate(engine, tokenizer.get(), request(), options);
  ASSERT_TRUE(reply) << reply.error().str();
  EXPECT_EQ(reply->text, "one ");
  EXPECT_EQ(streamed, "one ");
  EXPECT_EQ(reply->ids, bytes_of("one STOP"));
  EXPECT_EQ(reply->finish_reason, "stop");
  EXPECT_EQ(reply->matched_stop, "STOP");
  EXPECT_EQ(reply->finish.usage.output_tokens, 8);
  engine.wait_idle();
}

TEST(Generate, ReportsTheEnginesErrors) {
  Play play = text_play("half", /*ends=*/false);
  play.reason = FinishReason::kError;
  play.error = Error{ErrorCode::kInternal, "the row has NaN", "sampling"};
  ScriptedEngine failing(plays(play));
  const auto tokenizer = byte_tokenizer();
  const auto reply = generate(failing, tokenizer.get(), request(), {});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().str(), "sampling: the row has NaN");

  ScriptedEngine refusing([](const GenerationRequest&) -> Result<Play> {
    return fail(ErrorCode::kTooLarge, "too long", "prompt");
  });
  const auto refused = generate(refusing, tokenizer.get(), request(), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
}

TEST(Generate, AFailedCallbackCancelsTheRequest) {
  Play play = text_play("endless", /*ends=*/false);
  play.hang = true;
  ScriptedEngine engine(plays(play));
  const auto tokenizer = byte_tokenizer();
  ReplyOptions options;
  int calls = 0;
  options.on_text = [&](std::string_view) -> Status {
    return ++calls, fail(ErrorCode::kUnavailable, "disk full");
  };
  const auto reply = generate(engine, tokenizer.get(), request(), options);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().message, "disk full");
  EXPECT_EQ(calls, 1);
  engine.wait_idle();
  EXPECT_EQ(engine.cancelled(), 1);
}

TEST(Generate, ASignalStopsTheReplyAndKeepsWhatCame) {
  Play play = text_play("so far", /*ends=*/false);
  play.hang = true;
  ScriptedEngine engine(plays(play));
  const auto tokenizer = byte_tokenizer();
  SignalPipe signals({SIGUSR1});
  ReplyOptions options;
  options.signals = &signals;
  size_t seen = 0;
  options.on_text = [&](std::string_view text) -> Status {
    seen += text.size();
    if (seen == 6) ::raise(SIGUSR1);
    return {};
  };
  const auto reply = generate(engine, tokenizer.get(), request(), options);
  ASSERT_TRUE(reply) << reply.error().str();
  EXPECT_EQ(reply->text, "so far");
  EXPECT_EQ(reply->signal, SIGUSR1);
  EXPECT_EQ(reply->finish_reason, "cancelled");
}

TEST(Generate, WorksOnIdsWithoutATokenizer) {
  ScriptedEngine engine(plays(text_play("ab")));
  const auto reply = generate(engine, nullptr, request(), {});
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->text, "");
  EXPECT_THAT(reply->ids, ElementsAre('a', 'b', kEnd));
  ReplyOptions options;
  options.stop = {"x"};
  EXPECT_FALSE(generate(engine, nullptr, request(), options));
}

TEST(Generate, LogprobsComeWithTheIds) {
  Play play = text_play("ab");
  play.logprobs = {-0.5f, -1.5f, -2.5f};
  play.top = {{{'a', -0.5f}, {'x', -3.0f}}, {{'b', -1.5f}}, {{kEnd, -2.5f}}};
  ScriptedEngine engine(plays(play));
  const auto tokenizer = byte_tokenizer();
  GenerationRequest r = request();
  r.sampling.top_logprobs = 2;
  const auto reply = generate(engine, tokenizer.get(), r, {});
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->logprobs.size(), 3u);
  EXPECT_EQ(reply->logprobs[1].logprob, -1.5f);
  ASSERT_EQ(reply->logprobs[0].top.size(), 2u);
  EXPECT_EQ(reply->logprobs[0].top[1].id, 'x');
}

TEST(ParseIds, TakesCommasAndWhiteSpaceAndNamesTheEntry) {
  for (const char* good : {"1,2,3,4,5", "1 2 3 4 5", "1,2 3\n4 ,5\r\n", " 1\t,\t2, 3 ,4\n5 "}) {
    const auto ids = parse_ids(good, "--ids");
    ASSERT_TRUE(ids) << ids.error().str();
    EXPECT_THAT(*ids, ElementsAre(1, 2, 3, 4, 5));
  }
  const std::vector<std::pair<const char*, int>> slips = {{"1,,2", 2}, {"1, ,2", 2}, {",1", 1},
                                                          {"1,", 2},   {" , ", 1},   {"1,2,\n", 3}};
  for (const auto& [slip, entry] : slips) {
    const auto ids = parse_ids(slip, "--ids");
    ASSERT_FALSE(ids) << slip;
    EXPECT_EQ(
        ids.error().str(),
        fmt::format("--ids: expected token ids such as 1,2,3, found nothing at entry {}", entry));
  }
  EXPECT_THAT(parse_ids("1,,2", "--rows", "numbers").error().str(),
              HasSubstr("--rows: expected numbers such as 1,2,3"));
  EXPECT_EQ(parse_ids("", "--ids").error().str(),
            "--ids: expected at least one token id, found none");
  EXPECT_THAT(parse_ids("1,x2", "--ids").error().str(), HasSubstr("found \"x2\" at entry 2"));
  for (const char* wrong : {"-1", "2147483648", "1.5", "0x1", "1;2", "\xff"})
    EXPECT_FALSE(parse_ids(wrong, "--ids")) << wrong;
}

TEST(InOption, NamesWhatTheUserGave) {
  const auto where = [](std::string place) {
    return in_option({ErrorCode::kTooLarge, "too long", std::move(place)}, "--prompt").where;
  };
  EXPECT_EQ(where("tokens"), "--prompt");
  EXPECT_EQ(where("tokens[3]"), "--prompt[3]");
  EXPECT_EQ(where("tokenizer"), "tokenizer");
  EXPECT_EQ(where(""), "");
}

TEST(PlainIds, FramesAsTheTokenizerAsks) {
  const auto plain = byte_tokenizer();
  EXPECT_EQ(plain_ids(*plain, "a<end>", false), bytes_of("a<end>"));
  EXPECT_THAT(plain_ids(*plain, "a<end>", true), ElementsAre('a', kEnd));
  TokenizerSpec spec = plain->spec();
  spec.bos = kEnd;
  spec.add_bos = true;
  const auto framed = Tokenizer::create(spec);
  ASSERT_TRUE(framed) << framed.error().str();
  EXPECT_THAT(plain_ids(**framed, "a", false), ElementsAre(kEnd, 'a'));
}

// The whole of `bench` on a model that costs nothing: what is measured, what is left out, what is
// counted.
TEST(Measure, CountsRowsOfThePlanThatFit) {
  OpenModel open;
  open.loaded.model = std::make_shared<testing::FakeModel>();
  EngineInfo info = ScriptedEngine::default_info();
  info.context_tokens = 300;
  info.max_running = 4;
  auto engine = std::make_unique<ScriptedEngine>(
      [](const GenerationRequest& r) -> Result<Play> {
        Play play;
        play.tokens.assign(static_cast<size_t>(r.max_tokens), 5);
        play.reason = FinishReason::kLength;
        play.pace = std::chrono::microseconds(50);
        return play;
      },
      ScriptedEngine::Mode::kFree, info);
  const ScriptedEngine* scripted = engine.get();
  open.engine = std::move(engine);

  BenchPlan plan;
  plan.rows = {1, 2, 8};             // 8 rows are more than the engine steps together
  plan.contexts = {100, 296, 1000};  // only the first leaves room for the decoded tokens
  plan.prefill = 128;
  plan.tokens = 8;
  plan.runs = 3;
  std::vector<double> fractions;
  int roof_calls = 0, dram_calls = 0;
  kernels::Roofs some_roofs;
  some_roofs.dram_read_gb_per_s = 2;
  const auto report = measure(
      open, plan, [&] { return ++roof_calls, some_roofs; },
      [&] { return ++dram_calls % 2 == 0 ? 2.0 : 4.0; }, [&](double f) { fractions.push_back(f); });
  ASSERT_TRUE(report) << report.error().str();
  ASSERT_EQ(report->rows.size(), 4u);
  EXPECT_EQ(report->rows[1].rows, 2);
  EXPECT_EQ(report->rows[2].context, 100);
  EXPECT_EQ(report->rows[3].kind, BenchRow::Kind::kPrefill);
  for (const BenchRow& row : report->rows) {
    EXPECT_GT(row.tokens_per_s.low, 0);
    EXPECT_LE(row.tokens_per_s.low, row.tokens_per_s.median);
    EXPECT_LE(row.tokens_per_s.median, row.tokens_per_s.high);
  }
  EXPECT_EQ(roof_calls, 3);
  EXPECT_EQ(dram_calls, 12);                       // after each of 4 rows
  EXPECT_EQ(report->roofs.dram_read_gb_per_s, 2);  // the median of 2, 4, 2, 4, 2 in each round
  for (const BenchRow& row : report->rows)  // between 2 and 4 before and after: the mean is 3
    EXPECT_NEAR(row.dram_share, row.gb_per_s / 3, 1e-9);
  EXPECT_EQ(fractions.size(), 12u);
  EXPECT_DOUBLE_EQ(fractions.back(), 1.0);
  // One warm-up; 3 runs each of 1 row, 2 rows, 1 context, 1 prefill. No two prompts are alike.
  const std::vector<GenerationRequest> requests = scripted->requests();
  EXPECT_EQ(requests.size(), 1u + 3 * (1 + 2 + 1 + 1));
  std::set<std::vector<TokenId>> prompts;
  for (const GenerationRequest& r : requests) EXPECT_TRUE(prompts.insert(r.tokens).second);
}

}  // namespace
}  // namespace deepmint::cli
