// deepmint grammar: compiles a schema, a regular expression or an EBNF, tests texts against it and
// times it.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <random>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/grammar_case.h"
#include "cli/open_model.h"
#include "cli/stdin_lines.h"
#include "cli/terminal.h"

namespace deepmint::cli {
namespace {

constexpr size_t kMaxLineBytes = size_t{256} << 20;  // a schema with all its instances
constexpr size_t kMaxInstanceBytes = size_t{64} << 20;
constexpr size_t kMaxSampleBytes = 4000;

Result<std::string> read_text(const std::string& path, size_t max_bytes) {
  if (path == "-") return read_stdin(max_bytes);
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(ErrorCode::kNotFound, "cannot be read", path);
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) return fail(ErrorCode::kNotFound, "cannot be read", path);
  if (text.size() > max_bytes)
    return fail(ErrorCode::kTooLarge,
                fmt::format("expected at most {} bytes, found {}", max_bytes, text.size()), path);
  return text;
}

// As Python's json.dumps writes by default: ", " and ": ".
void spaced(std::string& out, const json::Value& v) {
  if (v.is_array()) {
    out += '[';
    for (size_t i = 0; i < v.items().size(); ++i) {
      if (i > 0) out += ", ";
      spaced(out, v.items()[i]);
    }
    out += ']';
  } else if (v.is_object()) {
    out += '{';
    for (size_t i = 0; i < v.members().size(); ++i) {
      if (i > 0) out += ", ";
      json::append_escaped(out, v.members()[i].key);
      out += ": ";
      spaced(out, v.members()[i].value);
    }
    out += '}';
  } else {
    out += json::dump(v);
  }
}

void write_summary(json::Writer& w, const TimeSummary& s, double unit) {
  w.begin_object();
  const auto rounded = [&](double v) { return std::round(v / unit * 1000) / 1000; };
  w.key("mean").value(rounded(s.mean)).key("p50").value(rounded(s.p50));
  w.key("p99").value(rounded(s.p99)).key("max").value(rounded(s.max));
  w.end_object();
}

class GrammarCommand : public Command {
 public:
  std::string_view name() const override { return "grammar"; }
  std::string_view summary() const override {
    return "compile a schema, regex, EBNF or tags; test texts against it";
  }
  std::string_view description() const override {
    return "compile  prints what the grammar is made of, or why it cannot be compiled\n"
           "test     whether a text is accepted: exit code 0 yes, 1 no, 2 the grammar does not "
           "compile\n"
           "bench    times compiling, masks and steps along a text\n"
           "sample   prints random texts that the grammar accepts\n\n"
           "With --jsonl, lines {\"name\", \"schema\" (or \"regex\", \"ebnf\", "
           "\"structural_tag\"), \"tests\": [{\"valid\", \"data\" or \"text\"}]} are read from "
           "standard input and answered one line each.";
  }
  void options(Options& o) override {
    o.positional("ACTION", action_, "compile, test, bench or sample");
    o.group("Grammar");
    o.text("--schema", schema_, "FILE", "a JSON Schema; - reads standard input");
    o.text("--regex", regex_, "REGEX", "a regular expression, RE2-like, for the whole text");
    o.text("--ebnf", ebnf_, "FILE", "a grammar in GBNF; - reads standard input");
    o.text("--structural-tag", tags_, "FILE",
           "text with tags, as JSON: {\"triggers\", \"structures\"}; - reads standard input");
    o.text("--formats", formats_, "HOW",
           "what `format` in a schema does: assert, or annotate (nothing)");
    o.group("Texts");
    o.text("--instance", instance_, "FILE",
           "the text to test; one line end at its end is left out; - reads standard input");
    o.flag("--jsonl", jsonl_, "cases from standard input, one a line, one answer a line");
    o.text("--tokenizer", tokenizer_path_, "PATH",
           "walk texts by this tokenizer's tokens (else byte by byte): a tokenizer.json, a folder "
           "with one, or a .gguf file");
    o.text("--count", count_, "N", "how many texts sample draws of each grammar");
    o.text("--seed", seed_, "N", "where the draws of sample begin");
    o.text("--width", width_, "N", "width of the logits; 0: as many as the tokenizer has ids");
  }

  Status run(const Config&, const Settings&) override {
    if (action_ != "compile" && action_ != "test" && action_ != "bench" && action_ != "sample")
      return wrong(fmt::format("expected compile, test, bench or sample, found \"{}\"", action_));
    if (formats_ != "assert" && formats_ != "annotate")
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected assert or annotate, found \"{}\"", formats_), "--formats");
    const int sources =
        (schema_ ? 1 : 0) + (regex_ ? 1 : 0) + (ebnf_ ? 1 : 0) + (tags_ ? 1 : 0) + (jsonl_ ? 1 : 0);
    if (sources != 1)
      return wrong(
          fmt::format("expected one of --schema, --regex, --ebnf, --structural-tag and "
                      "--jsonl, found {}",
                      sources == 0 ? "none" : "several"));
    DEEPMINT_TRY(width, number("--width", width_, 10'000'000));
    DEEPMINT_TRY(count, number("--count", count_, 100'000));
    n_samples_ = count;
    DEEPMINT_TRY(seed, number("--seed", seed_, UINT64_MAX));
    rng_.seed(seed);
    if (action_ == "sample") tokenizer_path_.reset();  // texts are drawn byte by byte
    if (tokenizer_path_) {
      DEEPMINT_TRY(opened, open_tokenizer(*tokenizer_path_));
      tokenizer_ = std::move(opened);
      Result<std::shared_ptr<const grammar::Vocabulary>> made = vocabulary_of(*tokenizer_, width);
      if (!made) return tl::unexpected(std::move(made).error().at(*tokenizer_path_));
      vocabulary_ = std::move(*made);
    } else {
      DEEPMINT_TRY(made, byte_vocabulary());
      vocabulary_ = std::move(made);
    }
    if (jsonl_) return lines();
    DEEPMINT_TRY(source, source_of_flags());
    GrammarCase one(vocabulary_, tokenizer_.get());
    if (Status done = one.compile(source); !done) {
      Error error = std::move(done).error();
      error.code =
          ErrorCode::kInvalidArgument;  // whatever it was, what the user gave cannot be used
      return tl::unexpected(std::move(error).at(place_));
    }
    if (action_ == "compile") return print_compiled(one);
    if (action_ == "sample") {
      for (uint64_t i = 0; i < n_samples_; ++i) {
        DEEPMINT_TRY(text, sample(one, rng_, kMaxSampleBytes));
        DEEPMINT_CHECK_OK(write_stdout(text + "\n"));
      }
      return {};
    }
    if (!instance_) return wrong("expected --instance FILE, found none");
    DEEPMINT_TRY(text, read_text(*instance_, kMaxInstanceBytes));
    if (text.ends_with('\n')) text.pop_back();
    if (text.ends_with('\r')) text.pop_back();
    return action_ == "test" ? test(one, source, text) : bench(one, source, text);
  }

 private:
  static tl::unexpected<Error> wrong(std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), "deepmint grammar");
  }

  static Result<uint64_t> number(std::string_view flag, const std::string& text, uint64_t most) {
    uint64_t out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error != std::errc() || end != text.data() + text.size() || out > most)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected a number up to {}, found \"{}\"", most, text),
                  std::string(flag));
    return out;
  }

  Result<GrammarSource> source_of_flags() {
    GrammarSource out;
    out.options.assert_formats = formats_ == "assert";
    if (regex_) {
      out.kind = grammar::SpecKind::kRegex;
      out.text = *regex_;
      place_ = "--regex";
      return out;
    }
    out.kind = schema_ ? grammar::SpecKind::kJsonSchema
               : tags_ ? grammar::SpecKind::kStructuralTag
                       : grammar::SpecKind::kEbnf;
    place_ = schema_ ? *schema_ : tags_ ? *tags_ : *ebnf_;
    DEEPMINT_TRY(text, read_text(place_, grammar::kMaxSpecBytes));
    out.text = std::move(text);
    return out;
  }

  Status print_compiled(const GrammarCase& one) {
    const grammar::Compiled& c = one.compiled();
    json::Writer w;
    w.begin_object();
    w.key("nonterminals").value(static_cast<uint64_t>(c.grammar().nonterminals()));
    w.key("productions").value(static_cast<uint64_t>(c.grammar().first_dot.size()));
    w.key("terminals").value(static_cast<uint64_t>(c.grammar().terminals.size()));
    w.key("memory_bytes").value(static_cast<uint64_t>(c.memory_bytes()));
    w.key("compile_us").value(std::round(one.compile_us()));
    w.end_object();
    return write_stdout(w.take() + "\n");
  }

  // The verdict comes from the tokens; where and why from the bytes.
  Status test(const GrammarCase& by_token, const GrammarSource& source, const std::string& text) {
    DEEPMINT_TRY(walk, by_token.walk(text, nullptr));
    if (walk.accepted) return write_stdout("accepted\n");
    DEEPMINT_TRY(reason, why(source, text, walk));
    // Not a wrong command line: the work was done, and its answer is no.
    return fail(ErrorCode::kUnavailable, fmt::format("rejected at {}", reason), *instance_);
  }

  // `byte 12 of 40: expected '"', found ' '`, for a walk that was refused.
  static Result<std::string> why(const GrammarSource& source, const std::string& text,
                                 const Walk& walk) {
    DEEPMINT_TRY(bytes, byte_vocabulary());
    GrammarCase by_byte(bytes, nullptr);
    DEEPMINT_CHECK_OK(by_byte.compile(source));
    grammar::Matcher matcher(by_byte.shared());
    const std::string good = text.substr(0, walk.bytes);
    for (const char c : good) matcher.accept(static_cast<uint8_t>(c));
    const std::string allowed = describe(matcher.next_bytes(), matcher.may_stop());
    const std::string found =
        walk.bytes < text.size()
            ? describe(grammar::ByteSet::one(static_cast<uint8_t>(text[walk.bytes])), false)
            : "the end of the text";
    std::string out = fmt::format("byte {} of {}: expected {}, found {}", walk.bytes, text.size(),
                                  allowed, found);
    // The one rule of ours that a JSON text can break.
    constexpr std::string_view kBlanks = " \t\n\r";
    if (source.kind == grammar::SpecKind::kJsonSchema && walk.bytes < text.size() &&
        kBlanks.find(text[walk.bytes]) != std::string_view::npos) {
      const size_t before = std::string_view(good).find_last_not_of(kBlanks);
      if (good.empty() || (matcher.may_stop() && before + 1 == good.size()))
        out += " (no white space stands around the value)";
      else if (good.size() - before - 1 == source.options.max_whitespace)
        out += fmt::format(" (white space comes in runs of at most {})",
                           source.options.max_whitespace);
    }
    return out;
  }

  Status bench(const GrammarCase& first, const GrammarSource& source, const std::string& text) {
    std::vector<float> compile_us{static_cast<float>(first.compile_us())};
    GrammarCase one(vocabulary_, tokenizer_.get());
    for (int i = 0; i < 20; ++i) {
      DEEPMINT_CHECK_OK(one.compile(source));
      compile_us.push_back(static_cast<float>(one.compile_us()));
    }
    GrammarTimes times;
    DEEPMINT_TRY(walk, one.walk(text, &times));
    json::Writer w;
    w.begin_object();
    w.key("accepted").value(walk.accepted);
    if (!walk.accepted) {
      DEEPMINT_TRY(reason, why(source, text, walk));
      w.key("rejected_at").value(reason);
    }
    w.key("tokens").value(static_cast<uint64_t>(walk.tokens));
    w.key("compile_us");
    write_summary(w, summarize(compile_us), 1);
    w.key("mask_us");
    write_summary(w, summarize(times.mask_ns), 1000);
    w.key("accept_us");
    write_summary(w, summarize(times.accept_ns), 1000);
    w.key("memory_bytes").value(static_cast<uint64_t>(one.compiled().memory_bytes()));
    w.end_object();
    return write_stdout(w.take() + "\n");
  }

  // --- lines ---

  Status lines() {
    StdinLines in(kMaxLineBytes);
    for (;;) {
      DEEPMINT_TRY(line, in.next());
      if (!line) break;
      if (line->find_first_not_of(" \t") == std::string_view::npos) continue;
      json::Writer w;
      DEEPMINT_CHECK_OK(answer(*line, in, w));
      if (action_ != "bench") DEEPMINT_CHECK_OK(write_stdout(w.take() + "\n"));
    }
    if (action_ != "bench") return {};
    json::Writer w;
    w.begin_object();
    w.key("cases").value(static_cast<uint64_t>(cases_));
    w.key("compiled").value(static_cast<uint64_t>(compile_us_.size()));
    w.key("texts").value(static_cast<uint64_t>(texts_));
    w.key("masks").value(static_cast<uint64_t>(times_.mask_ns.size()));
    w.key("mask_us");
    write_summary(w, summarize(times_.mask_ns), 1000);
    w.key("accept_us");
    write_summary(w, summarize(times_.accept_ns), 1000);
    w.key("compile_us");
    write_summary(w, summarize(compile_us_), 1);
    w.key("memory_kb");
    write_summary(w, summarize(memory_kb_), 1);
    w.end_object();
    return write_stdout(w.take() + "\n");
  }

  Status answer(std::string_view line, const StdinLines& in, json::Writer& w) {
    ++cases_;
    w.begin_object();
    const auto refused = [&](const Error& error) {
      w.key("error").begin_object();
      w.key("pointer").value(error.where).key("reason").value(error.message);
      w.key("code").value(to_string(error.code));
      w.end_object();
    };
    Result<json::Value> parsed = json::parse(line, {.max_bytes = kMaxLineBytes});
    if (!parsed || !parsed->is_object()) {
      Error error = parsed ? Error{ErrorCode::kInvalidArgument, "expected a JSON object", ""}
                           : std::move(parsed).error();
      error.where = in.place() + (error.where.empty() ? "" : ", " + error.where);
      refused(error);
      w.key("tests").begin_array().end_array().end_object();
      return {};
    }
    const json::Value* name = parsed->find("name");
    if (name != nullptr && name->is_string()) w.key("name").value(name->as_string());
    GrammarSource source;
    source.options.assert_formats = formats_ == "assert";
    const json::Value* formats = parsed->find("formats");
    if (formats != nullptr && formats->is_string())
      source.options.assert_formats = formats->as_string() != "annotate";
    if (const json::Value* schema = parsed->find("schema")) {
      source.text = json::dump(*schema);
    } else if (const json::Value* regex = parsed->find("regex"); regex && regex->is_string()) {
      source.kind = grammar::SpecKind::kRegex;
      source.text = regex->as_string();
    } else if (const json::Value* ebnf = parsed->find("ebnf"); ebnf && ebnf->is_string()) {
      source.kind = grammar::SpecKind::kEbnf;
      source.text = ebnf->as_string();
    } else if (const json::Value* tags = parsed->find("structural_tag")) {
      source.kind = grammar::SpecKind::kStructuralTag;
      source.text = json::dump(*tags);
    } else {
      refused({ErrorCode::kInvalidArgument,
               "expected \"schema\" or \"structural_tag\", or \"regex\" or \"ebnf\" with a string",
               in.place()});
      w.key("tests").begin_array().end_array().end_object();
      return {};
    }
    GrammarCase one(vocabulary_, tokenizer_.get());
    if (const Status done = one.compile(source); !done) {
      refused(done.error());
      w.key("tests").begin_array().end_array().end_object();
      return {};
    }
    if (action_ == "sample") {
      w.key("samples").begin_array();
      for (uint64_t i = 0; i < n_samples_; ++i) {
        // A text that found no end in time is left out; a dead end is a defect and is shown.
        Result<std::string> text = sample(one, rng_, kMaxSampleBytes);
        if (text)
          w.value(*text);
        else if (text.error().code == ErrorCode::kInternal)
          return tl::unexpected(std::move(text).error().at(in.place()));
      }
      w.end_array().end_object();
      return {};
    }
    GrammarTimes times;
    GrammarTimes* timed = tokenizer_ ? &times : nullptr;
    w.key("tests").begin_array();
    const json::Value* tests = parsed->find("tests");
    std::optional<Error> trouble;
    for (size_t i = 0;
         action_ != "compile" && tests != nullptr && tests->is_array() && i < tests->items().size();
         ++i) {
      const json::Value& test = tests->items()[i];
      const json::Value* valid = test.find("valid");
      const json::Value* text = test.find("text");
      const json::Value* data = test.find("data");
      const bool expected = valid != nullptr && valid->is_bool() && valid->as_bool();
      std::vector<std::string> spellings;
      if (text != nullptr && text->is_string()) {
        spellings.push_back(text->as_string());
      } else if (data != nullptr) {
        spaced(spellings.emplace_back(), *data);
        std::string compact = json::dump(*data);
        if (compact != spellings[0]) spellings.push_back(std::move(compact));
      }
      std::optional<Walk> verdict;
      for (size_t k = 0; k < spellings.size(); ++k) {
        ++texts_;
        // Times are of the first spelling alone; the second is another text with the same meaning.
        Result<Walk> walk = one.walk(spellings[k], k == 0 ? timed : nullptr);
        if (!walk) {
          trouble = std::move(walk).error();
          break;
        }
        // A verdict holds when every spelling agrees; else the wrong one is shown.
        if (!verdict || (walk->accepted != verdict->accepted && walk->accepted != expected))
          verdict = *walk;
      }
      if (trouble) break;
      if (!verdict) continue;
      w.begin_object();
      w.key("valid").value(expected).key("accepted").value(verdict->accepted);
      w.key("byte").value(static_cast<uint64_t>(verdict->bytes));
      w.end_object();
    }
    w.end_array();
    if (trouble) refused(*trouble);
    w.key("compile_us").value(std::round(one.compile_us()));
    if (timed != nullptr) {
      w.key("mask_us");
      write_summary(w, summarize(times.mask_ns), 1000);
    }
    const uint64_t memory = one.compiled().memory_bytes();
    w.key("memory_bytes").value(memory);
    w.end_object();
    if (action_ == "bench") {
      compile_us_.push_back(static_cast<float>(one.compile_us()));
      memory_kb_.push_back(static_cast<float>(memory) / 1024);
      times_.mask_ns.insert(times_.mask_ns.end(), times.mask_ns.begin(), times.mask_ns.end());
      times_.accept_ns.insert(times_.accept_ns.end(), times.accept_ns.begin(),
                              times.accept_ns.end());
    }
    return {};
  }

  std::string action_;
  std::optional<std::string> schema_, regex_, ebnf_, tags_, instance_, tokenizer_path_;
  std::string formats_ = "assert", width_ = "0", count_ = "10", seed_ = "1";
  uint64_t n_samples_ = 10;
  std::mt19937_64 rng_;
  bool jsonl_ = false;
  std::string place_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  // bench over lines
  size_t cases_ = 0, texts_ = 0;
  GrammarTimes times_;
  std::vector<float> compile_us_, memory_kb_;
};

}  // namespace

std::unique_ptr<Command> make_grammar() { return std::make_unique<GrammarCommand>(); }

}  // namespace deepmint::cli
