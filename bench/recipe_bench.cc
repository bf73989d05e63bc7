// Speed of the recipe on one core: a 1 MB chat request to token ids, and model output to events.
//
//   bench/recipe_bench TOKENIZER.json [REQUEST.json]      prints one JSON object;
//   bench/recipe_vs_package.py runs it beside the original
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <new>
#include <sstream>

#include "recipe/convert.h"
#include "recipe/prompt.h"
#include "recipe/reply_stream.h"
#include "tokenizer/tokenizer.h"

namespace {

size_t g_allocations = 0;

}  // namespace

void* operator new(size_t n) {
  ++g_allocations;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace {

using namespace deepmint;
using Clock = std::chrono::steady_clock;

// Best of `rounds`, in seconds.
template <class F>
double best(int rounds, F&& f) {
  double out = 1e9;
  for (int i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    f();
    out = std::min(out, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return out;
}

constexpr std::string_view kProse =
    "The quick brown fox jumps over the lazy dog; afterwards it rests in the shade, counts to 12, "
    "and writes a short report about it.\n"
    "for (size_t i = 0; i < items.size(); ++i) { total += items[i].price * 1.19; }  // gross < "
    "net\n";

std::string sample(size_t bytes) {
  std::string s;
  while (s.size() < bytes) s.append(kProse);
  return s;
}

std::string default_request() {
  json::Writer w;
  w.begin_object().key("model").value("m").key("messages").begin_array();
  for (int i = 0; i < 20; ++i)
    w.begin_object()
        .key("role")
        .value(i % 2 == 0 ? "user" : "assistant")
        .key("content")
        .value(sample(50'000))
        .end_object();
  w.begin_object()
      .key("role")
      .value("user")
      .key("content")
      .value("Go on.")
      .end_object()
      .end_array()
      .end_object();
  return w.take();
}

recipe::ConversationRequest small(recipe::Protocol protocol) {
  const auto body = json::parse(
      protocol == recipe::Protocol::kResponses
          ? R"({"model":"m","input":"x","stream":true,"reasoning":{"effort":"none"}})"
          : R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"stream":true,"thinking":{"type":"disabled"},)"
            R"("tools":[{"type":"function","name":"f","function":{"name":"f"}}],"tool_choice":null})");
  json::Value plain = *body;
  if (protocol == recipe::Protocol::kMessages)
    std::erase_if(plain.members(), [](const json::Member& m) { return m.key == "tools"; });
  return *recipe::convert(protocol, plain, {});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "expected: recipe_bench TOKENIZER.json [REQUEST.json]\n";
    return 2;
  }
  const auto tokenizer = Tokenizer::from_file(argv[1]);
  if (!tokenizer) {
    std::cerr << tokenizer.error().str() << '\n';
    return 2;
  }
  std::string request = default_request();
  if (argc > 2) {
    std::ifstream in(argv[2]);
    std::stringstream text;
    text << in.rdbuf();
    request = text.str();
  }
  json::Writer w;
  w.begin_object().key("request_bytes").value(static_cast<uint64_t>(request.size()));
  size_t n_ids = 0;
  double parse = 0, convert = 0, render = 0, encode = 0;
  const double whole = best(5, [&] {
    const auto t0 = Clock::now();
    const auto body = json::parse(request);
    const auto t1 = Clock::now();
    const auto converted = recipe::convert(recipe::Protocol::kChat, *body, {});
    const auto t2 = Clock::now();
    const auto segments = recipe::render_prompt(converted->conversation, {}).segments();
    const auto t3 = Clock::now();
    n_ids = (*tokenizer)->encode(segments).size();
    const auto t4 = Clock::now();
    const auto ms = [](auto d) { return std::chrono::duration<double, std::milli>(d).count(); };
    parse = ms(t1 - t0), convert = ms(t2 - t1), render = ms(t3 - t2), encode = ms(t4 - t3);
  });
  w.key("tokens").value(static_cast<uint64_t>(n_ids)).key("request_to_ids_ms").value(whole * 1e3);
  w.key("parse_ms")
      .value(parse)
      .key("convert_ms")
      .value(convert)
      .key("render_ms")
      .value(render)
      .key("encode_ms")
      .value(encode);

  const std::string output = sample(8 << 20);
  for (const auto& [protocol, name] : {std::pair{recipe::Protocol::kChat, "chat"},
                                       {recipe::Protocol::kResponses, "responses"},
                                       {recipe::Protocol::kMessages, "messages"}}) {
    const recipe::ConversationRequest r = small(protocol);
    const double seconds = best(3, [&] {
      recipe::ReplyStream reply(
          r, {.id = "chatcmpl-0123456789", .model = "deepseek-flash", .created = 1700000000});
      for (size_t i = 0; i < output.size(); i += 64 * 1024) {
        reply.push_text(std::string_view(output).substr(i, 64 * 1024), 16 * 1024);
        reply.events().clear();
      }
      reply.finish(recipe::BackendFinish::kStop);
    });
    w.key(fmt::format("{}_whole_mb_per_s", name))
        .value(static_cast<double>(output.size()) / 1e6 / seconds);
    constexpr size_t kPieces = 400'000;
    size_t events = 0, allocations = 0;
    const double by_token = best(3, [&] {
      recipe::ReplyStream reply(
          r, {.id = "chatcmpl-0123456789", .model = "deepseek-flash", .created = 1700000000});
      std::string sse;
      events = 0;
      for (size_t i = 0; i < kPieces; ++i) {
        if (i == kPieces / 2) allocations = g_allocations;
        reply.push_text(std::string_view(output).substr(i * 4 % (1 << 20), 4), 1);
        reply.events().append_sse(sse);
        events += reply.events().size();
        reply.events().clear();
        sse.clear();
      }
      allocations = g_allocations - allocations;
      reply.finish(recipe::BackendFinish::kStop);
    });
    w.key(fmt::format("{}_events_per_s", name)).value(static_cast<double>(events) / by_token);
    w.key(fmt::format("{}_allocations_per_token", name))
        .value(static_cast<double>(allocations) / (kPieces / 2.0));
  }
  w.end_object();
  std::cout << w.str() << '\n';
  return 0;
}
