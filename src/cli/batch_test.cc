// The parts of `batch` that need no model: lines, requests, the ledger, OUTPUT after every
// accident, and the run against a scripted engine.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "cli/batch_ledger.h"
#include "cli/batch_output.h"
#include "cli/batch_request.h"
#include "cli/batch_run.h"
#include "cli/line_file.h"
#include "server/testing/test_model.h"
#include "support/scripted_engine.h"

namespace deepmint::cli {
namespace {

using deepmint::testing::kHello;
using deepmint::testing::kImEnd;
using deepmint::testing::kWorld;
using deepmint::testing::ScriptedEngine;
using ::testing::HasSubstr;
using Json = nlohmann::json;
namespace fs = std::filesystem;

class Folder : public ::testing::Test {
 protected:
  Folder() : path_(fs::path(::testing::TempDir()) / ("batch_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directory(path_);
  }
  ~Folder() override { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string put(const std::string& name, std::string_view bytes) const {
    std::ofstream(file(name), std::ios::binary) << bytes;
    return file(name);
  }
  static std::string bytes_of(const std::string& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  }

  const fs::path path_;
};

// --- Lines

class BatchLines : public Folder {
 protected:
  struct Seen {
    size_t number;
    std::string text;
    bool is_too_long, is_ended;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  // What LineFile must say, by splitting the whole text.
  static std::vector<Seen> expected(std::string_view bytes, size_t max) {
    std::vector<Seen> out;
    size_t number = 0;
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t end = std::min(bytes.find('\n', begin), bytes.size());
      std::string_view text = bytes.substr(begin, end - begin);
      ++number;
      if (text.ends_with('\r')) text.remove_suffix(1);
      if (begin == 0 && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
      const bool is_empty =
          bytes.substr(begin, end - begin).find_first_not_of(" \t\r") == std::string_view::npos;
      if (!is_empty)
        out.push_back(
            {number, std::string(text.substr(0, max)), text.size() > max, end < bytes.size()});
      begin = end + 1;
    }
    return out;
  }
  void check(std::string_view bytes, size_t max) {
    auto lines = LineFile::open(put("in", bytes), max);
    ASSERT_TRUE(lines) << lines.error().str();
    std::vector<Hash128> digests[2];
    for (auto& digest : digests) {  // the second time after rewind()
      std::vector<Seen> seen;
      std::vector<FileLine> places;
      for (;;) {
        auto line = lines->next();
        ASSERT_TRUE(line) << line.error().str();
        if (!*line) break;
        seen.push_back(
            {(*line)->number, std::string((*line)->text), (*line)->is_too_long, (*line)->is_ended});
        digest.push_back((*line)->digest);
        places.push_back(**line);
      }
      ASSERT_EQ(seen, expected(bytes, max));
      for (size_t i = 0; i < places.size(); ++i) {
        auto again = lines->again(places[i]);
        ASSERT_TRUE(again) << again.error().str();
        EXPECT_EQ(again->text, seen[i].text);
        EXPECT_EQ(again->is_too_long, seen[i].is_too_long);
      }
      lines->rewind();
    }
    EXPECT_EQ(digests[0], digests[1]);
  }
};

TEST_F(BatchLines, OfEveryKind) {
  for (const std::string_view bytes :
       {"", "\n", "a", "a\n", "a\nb", "a\r\nb\r\n", "\r\n\r\n", "\n\na\n\n", " \t\nx\n", "a\rb\n",
        "\xEF\xBB\xBF{}\n", "\xEF\xBB\xBF", "abcdefgh\n", "abcdefghi\nx\n", "abcdefghi",
        "12345678\r\n", "123456789\r\nab\n", "12345678\r"})
    check(bytes, 8);
  check(std::string("a\0b\n\0\n", 6), 8);
}

TEST_F(BatchLines, OfRandomLengths) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 30; ++round) {
    const size_t max = 1 + random() % (round % 3 == 0 ? 300'000 : 50);
    std::string bytes;
    while (bytes.size() < 700'000 && random() % 40 != 0) {
      const size_t length =
          random() % 4 == 0 ? random() % 20 : max + random() % 12 - std::min<size_t>(max, 6);
      bytes.append(length, static_cast<char>('a' + random() % 26));
      bytes += random() % 3 == 0 ? "\r\n" : "\n";
    }
    if (random() % 2 == 0) bytes += "tail";
    check(bytes, max);
  }
}

TEST_F(BatchLines, AnotherTextOfALongLineIsAnotherDigest) {
  const auto digest = [&](std::string_view bytes) {
    auto lines = LineFile::open(put("in", bytes), 4);
    return (*lines->next())->digest;
  };
  EXPECT_NE(digest("abcdefghijk\n"), digest("abcdefghijkl\n"));
  EXPECT_NE(digest("abcd\n"), digest("abcdefghijk\n"));
}

TEST_F(BatchLines, AFileThatChangesIsNoticed) {
  auto lines = LineFile::open(put("in", "first\nsecond\n"), 100);
  ASSERT_TRUE(lines);
  const FileLine first = **lines->next();
  put("in", "FIRST\nsecond\n");
  EXPECT_FALSE(lines->again(first));
  put("in", "");
  EXPECT_FALSE(lines->again(first));
}

TEST_F(BatchLines, WhatIsNoFile) {
  const auto nothing = LineFile::open(file("nothing"), 10);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code, ErrorCode::kNotFound);
  const auto folder = LineFile::open(path_.string(), 10);
  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().str(), HasSubstr("folder"));
}

// --- Requests

BatchRequest request_of(std::string_view text, size_t number = 3) {
  return read_batch_request({.number = number, .text = text}, 1000);
}

TEST(BatchRequest, ThePublishedFormat) {
  const BatchRequest r = request_of(
      R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"x": 1e3, "y": -0}})");
  EXPECT_FALSE(r.error);
  EXPECT_EQ(r.custom_id, "a");
  EXPECT_EQ(r.path, "/v1/chat/completions");
  EXPECT_EQ(r.body, R"({"x":1e3,"y":-0})");
}

TEST(BatchRequest, WhatALineMayLeaveOut) {
  const BatchRequest bare = request_of(R"({"messages": [], "model": "m"})");
  EXPECT_FALSE(bare.error);
  EXPECT_EQ(bare.custom_id, "3");
  EXPECT_EQ(bare.path, "/v1/chat/completions");
  EXPECT_EQ(bare.body, R"({"messages":[],"model":"m"})");
  const BatchRequest only_body = request_of(R"({"custom_id": null, "body": {"messages": []}})");
  EXPECT_FALSE(only_body.error);
  EXPECT_EQ(only_body.custom_id, "3");
  EXPECT_EQ(only_body.body, R"({"messages":[]})");
  EXPECT_EQ(request_of("{}").body, "{}");  // the API says what it lacks
}

TEST(BatchRequest, WhatIsNone) {
  struct Case {
    std::string_view line, id, code, says;
  };
  const Case cases[] = {
      {"",
       "\xff"
       "3",
       "invalid_json_line", "line 3: "},
      {"nonsense",
       "\xff"
       "3",
       "invalid_json_line", "line 3: byte "},
      {"{\"custom_id\": \"a\"",
       "\xff"
       "3",
       "invalid_json_line", "byte "},
      {"{} {}",
       "\xff"
       "3",
       "invalid_json_line", "byte "},
      {"\xff\xfe{}",
       "\xff"
       "3",
       "invalid_json_line", "byte 0"},
      {std::string_view("{}\0", 3),
       "\xff"
       "3",
       "invalid_json_line", "byte "},
      {"[]",
       "\xff"
       "3",
       "invalid_json_line", "expected a JSON object, found an empty array"},
      {"null",
       "\xff"
       "3",
       "invalid_json_line", "found null"},
      {R"({"custom_id": 7, "body": {}})",
       "\xff"
       "3",
       "invalid_custom_id", "found 7"},
      {R"({"custom_id": "", "body": {}})",
       "\xff"
       "3",
       "invalid_custom_id", "found \"\""},
      {R"({"custom_id": "a", "method": "GET", "body": {}})", "a", "invalid_method",
       "found \"GET\""},
      {R"({"custom_id": "a", "url": "/v1/embeddings", "body": {}})", "a", "invalid_url",
       "expected /v1/chat/completions, found \"/v1/embeddings\""},
      {R"({"custom_id": "a", "url": ["x"], "body": {}})", "a", "invalid_url", "found an array"},
      {R"({"custom_id": "a"})", "a", "invalid_body", "expected an object, found nothing"},
      {R"({"messages": [], "method": "POST"})",
       "\xff"
       "3",
       "invalid_body", "messages belong inside it"},
      {R"({"custom_id": "a", "body": "{}"})", "a", "invalid_body", "found \"{}\""},
      {R"({"custom_id": "a", "messages": []})", "a", "invalid_body", "found nothing"},
      {R"({"custom_id": "a", "body": {"stream": true}})", "a", "invalid_body",
       "stream: expected false in a batch"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.line);
    const BatchRequest r = request_of(c.line);
    ASSERT_TRUE(r.error);
    EXPECT_EQ(r.custom_id, c.id);
    EXPECT_EQ(r.error->code, c.code);
    EXPECT_THAT(r.error->message, HasSubstr(c.says));
    EXPECT_TRUE(r.error->message.starts_with("line 3: "));
    EXPECT_EQ(r.error->message.find('\n'), std::string::npos);
  }
}

TEST(BatchRequest, TooLongADeepOne) {
  const BatchRequest r =
      read_batch_request({.number = 1, .begin = 5, .end = 2005, .is_too_long = true}, 1000);
  ASSERT_TRUE(r.error);
  EXPECT_EQ(r.error->code, "line_too_long");
  EXPECT_THAT(r.error->message, HasSubstr("at most 1000 bytes, found 2000"));
  const std::string deep = "{\"body\":" + std::string(100'000, '[') + "}";
  EXPECT_EQ(request_of(deep).error->code, "invalid_json_line");
  // What serve takes, deepest first, passes with a request around it.
  const std::string body = "{\"messages\":" + std::string(127, '[') + std::string(127, ']') + "}";
  EXPECT_FALSE(request_of("{\"custom_id\":\"a\",\"body\":" + body + "}").error);
}

// --- Ledger

TEST(BatchLedger, FindsWhatWasAdded) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  BatchLedger ledger;
  std::map<std::string, uint64_t> added;
  for (int i = 0; i < 2000; ++i) {
    const std::string name = std::to_string(random());
    if (!added.emplace(name, random()).second) continue;
    ledger.add(name, {.low = added[name], .high = 1});
  }
  ledger.seal();
  EXPECT_EQ(ledger.size(), added.size());
  EXPECT_FALSE(ledger.has_duplicates());
  for (const auto& [name, request] : added) {
    BatchLedger::Entry* entry = ledger.find(name);
    ASSERT_NE(entry, nullptr);
    EXPECT_TRUE(BatchLedger::is_same(*entry, {.low = request}));
    EXPECT_FALSE(BatchLedger::is_same(*entry, {.low = request + 1}));
    EXPECT_FALSE(entry->done);
    entry->done = true;
    EXPECT_FALSE(ledger.is_duplicate(name));
    EXPECT_EQ(ledger.find(name + "x"), nullptr);
  }
}

TEST(BatchLedger, SeesDuplicates) {
  BatchLedger ledger;
  for (const char* name : {"b", "a", "c", "a"}) ledger.add(name, {});
  ledger.seal();
  EXPECT_TRUE(ledger.has_duplicates());
  EXPECT_TRUE(ledger.is_duplicate("a"));
  EXPECT_FALSE(ledger.is_duplicate("b"));
  EXPECT_FALSE(ledger.is_duplicate("x"));
}

// --- Results

class BatchOutputFile : public Folder {
 protected:
  // A batch of `n` requests, named by number.
  static Hash128 digest(int i, uint64_t options = 0) {
    return request_digest({.text = "", .digest = {.low = static_cast<uint64_t>(i)}},
                          std::to_string(i), {.low = options});
  }
  static BatchLedger ledger(int n) {
    BatchLedger out;
    for (int i = 0; i < n; ++i) out.add(std::to_string(i), digest(i));
    out.seal();
    return out;
  }
  static std::string line(int i, int status = 200, uint64_t options = 0) {
    const std::string name = std::to_string(i);
    return result_line(
        {.request = digest(i, options),
         .custom_id = name,
         .status = status,
         .body = R"({"text":")" + std::string(static_cast<size_t>(i * 3), 'x') + "\"}"});
  }
  // What a run finds in OUTPUT; the file afterwards is ready for more.
  Result<BatchOutput::Earlier> resume(BatchLedger& of, bool overwrite = false) {
    DEEPMINT_TRY(output, BatchOutput::open(file("out"), overwrite));
    DEEPMINT_TRY(earlier, output.read(of));
    const std::string before = bytes_of(file("out"));
    EXPECT_EQ(before, bytes_of(file("out")));
    DEEPMINT_CHECK_OK(output.prepare());
    return earlier;
  }
  // Runs what is left, and looks at the whole.
  void complete(int n) {
    BatchLedger of = ledger(n);
    auto output = BatchOutput::open(file("out"), false);
    ASSERT_TRUE(output) << output.error().str();
    ASSERT_TRUE(output->read(of));
    ASSERT_TRUE(output->prepare());
    for (int i = 0; i < n; ++i)
      if (!of.find(std::to_string(i))->done) {
        ASSERT_TRUE(output->write(line(i)));
      }
    ASSERT_TRUE(output->finish());
    std::multiset<std::string> got, want;
    std::istringstream lines(bytes_of(file("out")));
    for (std::string text; std::getline(lines, text);) got.insert(text + "\n");
    for (int i = 0; i < n; ++i) want.insert(line(i));
    EXPECT_EQ(got, want);
  }
  void refused(int n, std::string_view says) {
    const std::string before = bytes_of(file("out"));
    BatchLedger of = ledger(n);
    const auto earlier = resume(of);
    ASSERT_FALSE(earlier);
    EXPECT_EQ(earlier.error().code, ErrorCode::kInvalidFile);
    EXPECT_THAT(earlier.error().str(), HasSubstr(std::string(says)));
    EXPECT_EQ(bytes_of(file("out")), before);
  }
};

TEST_F(BatchOutputFile, HasThePublishedFormat) {
  const Json good = Json::parse(result_line({.request = {.low = 0xab, .high = 1},
                                             .custom_id = "a \"quoted\" one",
                                             .status = 200,
                                             .body = R"({"id":"x"})"}));
  EXPECT_EQ(good, Json::parse(R"({"id": "batch_req_000000000000000100000000000000ab",
    "custom_id": "a \"quoted\" one",
    "response": {"status_code": 200, "request_id": "req_000000000000000100000000000000ab",
                 "body": {"id": "x"}}, "error": null})"));
  const BatchLineError error{"invalid_json_line", "line 3: no"};
  const std::string line = result_line({.request = {}, .custom_id = "3", .error = &error});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(Json::parse(line)["response"], nullptr);
  EXPECT_EQ(Json::parse(line)["error"],
            (Json{{"code", "invalid_json_line"}, {"message", "line 3: no"}}));
}

TEST_F(BatchOutputFile, AfterEveryCut) {
  constexpr int kRequests = 5;
  std::string whole;
  std::vector<size_t> ends;
  for (int i = 0; i < kRequests - 1; ++i) {
    whole += line(i);
    ends.push_back(whole.size());
  }
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    SCOPED_TRACE(cut);
    put("out", whole.substr(0, cut));
    BatchLedger of = ledger(kRequests);
    const auto earlier = resume(of);
    ASSERT_TRUE(earlier) << earlier.error().str();
    const auto lines =
        static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), cut) - ends.begin());
    const size_t kept = lines == 0 ? 0 : ends[lines - 1];
    EXPECT_EQ(earlier->done, lines);
    EXPECT_EQ(earlier->failed, 0);
    EXPECT_EQ(earlier->torn, kept != cut);
    EXPECT_EQ(bytes_of(file("out")), whole.substr(0, kept));
    const bool is_near_end = std::any_of(
        ends.begin(), ends.end(), [&](size_t end) { return cut + 2 >= end && cut <= end + 2; });
    if (!is_near_end && cut % 32 != 0) continue;  // each waits for the disk
    put("out", whole.substr(0, cut));
    complete(kRequests);
  }
}

TEST_F(BatchOutputFile, WhatFailedIsRunAgain) {
  for (unsigned failed = 0; failed < 16; ++failed) {
    for (const std::string tail : {"", "{\"id\":\"batch_req_12"}) {
      std::string whole;
      for (int i = 0; i < 4; ++i) {
        const std::string name = std::to_string(i);
        const BatchLineError error{"invalid_body", "line 1"};
        if ((failed >> i & 1) == 0) {
          whole += line(i);
        } else if (i % 2 == 0) {
          whole += line(i, 429 + i);
        } else {
          whole += result_line({.request = digest(i), .custom_id = name, .error = &error});
        }
      }
      put("out", whole + tail);
      ::chmod(file("out").c_str(), 0640);
      complete(4);
      struct stat info = {};
      ASSERT_EQ(::stat(file("out").c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 0777, 0640);
      EXPECT_FALSE(fs::exists(file("out.tmp")));
    }
  }
}

TEST_F(BatchOutputFile, AFailedResultMayBeOfALineThatWasMendedSince) {
  put("out", line(0, 400, /*options=*/9) + line(77, 400) + line(1));
  complete(3);
}

TEST_F(BatchOutputFile, OfAnotherBatch) {
  put("out", line(0) + line(7));
  refused(3, "out, line 2: expected results of this batch, found custom_id \"7\"");
  put("out", line(0) + line(1, 200, /*options=*/1));
  refused(3, "out, line 2: expected the answer to custom_id \"1\" as it is now");
  put("out", line(0) + line(0));
  refused(3, "line 2: expected one result for each request");
}

TEST_F(BatchOutputFile, WhatIsNoneIsNeverTouched) {
  for (const std::string_view bytes : {"my notes", "my notes\n", "{\"id\":\"x\"}\n",
                                       "{\"id\":\"batch_req_1\"}\n", "{", "{\"i\n", "\xff\n"}) {
    SCOPED_TRACE(bytes);
    put("out", bytes);
    if (bytes == "{") {  // the beginning of a result
      BatchLedger of = ledger(3);
      EXPECT_TRUE(resume(of));
      continue;
    }
    refused(3, "expected a result of deepmint batch, found");
    BatchLedger of = ledger(3);
    EXPECT_FALSE(resume(of, /*overwrite=*/true));
    EXPECT_EQ(bytes_of(file("out")), bytes);
  }
  put("out", line(0) + "my notes");
  refused(3, "out, line 2: expected a result");
}

TEST_F(BatchOutputFile, AfterThePowerFailed) {
  put("out", line(0) + std::string(5000, '\0'));
  complete(2);
}

TEST_F(BatchOutputFile, Anew) {
  put("out", line(0) + line(7) + "{\"id\":\"batch");
  BatchLedger of = ledger(3);
  const auto earlier = resume(of, /*overwrite=*/true);
  ASSERT_TRUE(earlier) << earlier.error().str();
  EXPECT_EQ(earlier->done, 0);
  EXPECT_EQ(bytes_of(file("out")), "");
  complete(3);
}

TEST_F(BatchOutputFile, HasOneWriter) {
  for (const bool rewrites : {false, true}) {
    put("out", (rewrites ? line(0, 500) : std::string()) + line(1));
    BatchLedger of = ledger(2);
    {
      auto first = BatchOutput::open(file("out"), false);
      ASSERT_TRUE(first);
      ASSERT_TRUE(first->read(of));
      // Opened before the first one puts a new file in its place.
      const int early = ::open(file("out").c_str(), O_RDWR);
      ASSERT_TRUE(first->prepare());
      EXPECT_NE(::flock(early, LOCK_EX | LOCK_NB), 0);
      ::close(early);
      const auto second = BatchOutput::open(file("out"), false);
      ASSERT_FALSE(second);
      EXPECT_THAT(second.error().str(), HasSubstr("another process"));
    }
    EXPECT_TRUE(BatchOutput::open(file("out"), false));
  }
}

TEST_F(BatchOutputFile, ALinkStaysOne) {
  put("real", line(0, 500) + line(1));
  fs::create_symlink("real", file("out"));
  complete(2);
  EXPECT_TRUE(fs::is_symlink(file("out")));
  EXPECT_EQ(bytes_of(file("real")), line(1) + line(0));
}

TEST_F(BatchOutputFile, ARunThatDoesNotBeginLeavesNoFile) {
  {
    ASSERT_TRUE(BatchOutput::open(file("out"), false));
  }
  EXPECT_FALSE(fs::exists(file("out")));
  put("out", "");
  {
    ASSERT_TRUE(BatchOutput::open(file("out"), false));
  }
  EXPECT_TRUE(fs::exists(file("out")));  // it was there
}

TEST_F(BatchOutputFile, AFullDisk) {
  auto output = BatchOutput::open("/dev/full", false);
  ASSERT_TRUE(output);
  EXPECT_FALSE(output->is_resumable());
  const Status written = output->write(line(0));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().str(), "/dev/full: cannot write: No space left on device");
}

TEST_F(BatchOutputFile, CannotBeOpened) {
  EXPECT_THAT(BatchOutput::open(path_.string(), false).error().str(), HasSubstr("folder"));
  EXPECT_THAT(BatchOutput::open(file("no/such"), false).error().str(), HasSubstr("can be written"));
}

// --- The run

class BatchRunning : public Folder {
 protected:
  struct Outcome {
    BatchTotals totals;
    std::map<std::string, Json> results;  // by custom_id
    int64_t most_running = 0;
  };
  static std::string request(const std::string& id, const Json& fields = Json::object()) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "to " + id}}}}};
    body.update(fields);
    return Json{{"custom_id", id}, {"body", body}}.dump() + "\n";
  }
  static Result<ScriptedEngine::Play> hello(const GenerationRequest&) {
    ScriptedEngine::Play play;
    play.tokens = {kHello, kWorld, kImEnd};
    return play;
  }
  void run(const std::string& input, const ScriptedEngine::Script& script, int32_t room,
           Outcome& out, size_t max_line = 10'000) {
    std::mutex mutex;  // workers submit
    ScriptedEngine engine([&](const GenerationRequest& r) {
      const std::lock_guard lock(mutex);
      return script(r);
    });
    engine_ = &engine;
    auto lines = LineFile::open(put("in", input), max_line);
    ASSERT_TRUE(lines);
    BatchLedger ledger;
    const Hash128 options = {};
    for (;;) {
      auto line = lines->next();
      ASSERT_TRUE(line);
      if (!*line) break;
      const BatchRequest r = read_batch_request(**line, max_line);
      ledger.add(r.custom_id, request_digest(**line, r.custom_id, options));
    }
    ledger.seal();
    ASSERT_FALSE(ledger.has_duplicates());
    auto output = BatchOutput::open(file("out"), false);
    ASSERT_TRUE(output);
    ASSERT_TRUE(output->read(ledger));
    ASSERT_TRUE(output->prepare());
    auto api = LocalApi::create(ServerConfig{}, deepmint::testing::test_model(engine));
    ASSERT_TRUE(api);
    BatchRun batch(*lines, ledger, *output, options, max_line);
    const Status done = batch.run(**api, room, nullptr, [&](const BatchTotals&) {
      out.most_running = std::max(out.most_running, (*api)->running());
    });
    ASSERT_TRUE(done) << done.error().str();
    ASSERT_TRUE(output->finish());
    out.totals = batch.totals();
    std::istringstream results(bytes_of(file("out")));
    for (std::string text; std::getline(results, text);) {
      const Json result = Json::parse(text);
      // A line without a custom_id by what its error begins with: "line 3".
      std::string name;
      if (result["custom_id"].is_null()) {
        name = result["error"]["message"];
        name.resize(name.find(':'));
      } else {
        name = result["custom_id"];
      }
      EXPECT_TRUE(out.results.emplace(name, result).second) << text;
    }
    EXPECT_EQ(out.results.size(), ledger.size());
  }

  ScriptedEngine* engine_ = nullptr;
};

TEST_F(BatchRunning, EveryLineGetsOneResult) {
  std::string input;
  for (int i = 0; i < 100; ++i) input += request("r" + std::to_string(i));
  input += "nonsense\n\n" + std::string(20'000, 'x') + "\r\n" +
           request("last", {{"temperature", "hot"}});
  Outcome out;
  run(input, hello, 8, out);
  EXPECT_EQ(out.totals.succeeded, 100);
  EXPECT_EQ(out.totals.failed, 3);
  EXPECT_EQ(out.totals.completion_tokens, 300);
  EXPECT_LE(out.most_running, 8);
  EXPECT_GE(out.most_running, 4);
  EXPECT_EQ(out.results.at("r7")["response"]["body"]["choices"][0]["message"]["content"],
            "Hello world");
  EXPECT_EQ(out.results.at("line 101")["error"]["code"], "invalid_json_line");
  EXPECT_EQ(out.results.at("line 103")["error"]["code"], "line_too_long");
  EXPECT_EQ(out.results.at("last")["response"]["status_code"], 400);
}

TEST_F(BatchRunning, ThousandsOfBadLinesKeepNobodyWaiting) {
  std::string input = request("first");
  for (int i = 0; i < 3000; ++i) input += "[]\n";
  input += request("last");
  Outcome out;
  run(input, hello, 8, out);
  EXPECT_EQ(out.totals.succeeded, 2);
  EXPECT_EQ(out.totals.failed, 3000);
}

TEST_F(BatchRunning, AnEngineThatIsFullIsAskedAgainLater) {
  std::string input;
  for (int i = 0; i < 60; ++i) input += request(std::to_string(i), {{"n", 1 + i % 3}});
  Outcome out;
  int refused = 0;
  run(
      input,
      [&](const GenerationRequest& r) -> Result<ScriptedEngine::Play> {
        if (engine_->live() < 5) return hello(r);
        ++refused;
        return fail(ErrorCode::kResourceExhausted, "the queue is full");
      },
      32, out);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(out.totals.succeeded, 60);
}

TEST_F(BatchRunning, AnEngineThatIsAlwaysFullIsBelievedAtLast) {
  std::string input;
  for (int i = 0; i < 20; ++i) input += request(std::to_string(i));
  Outcome out;
  run(
      input,
      [](const GenerationRequest&) -> Result<ScriptedEngine::Play> {
        return fail(ErrorCode::kResourceExhausted, "the queue is full");
      },
      8, out);
  EXPECT_EQ(out.totals.failed, 20);
  EXPECT_EQ(out.results.at("0")["response"]["status_code"], 429);
}

TEST_F(BatchRunning, WhatFailedInTheEngineIsAResult) {
  Outcome out;
  run(
      request("a") + request("b"),
      [](const GenerationRequest&) {
        return ScriptedEngine::Play{.tokens = {kHello},
                                    .reason = FinishReason::kError,
                                    .error = Error{ErrorCode::kInternal, "no number", "", 0}};
      },
      8, out);
  EXPECT_EQ(out.totals.failed, 2);
  EXPECT_EQ(out.results.at("a")["response"]["status_code"], 500);
}

}  // namespace
}  // namespace deepmint::cli
