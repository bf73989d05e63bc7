// deepmint decode: model output to the response or the events of an API.
#include <charconv>

#include "cli/codec_options.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/stdin_lines.h"
#include "cli/terminal.h"
#include "core/mapped_file.h"
#include "core/names.h"

namespace deepmint::cli {
namespace {

constexpr size_t kMaxOutputBytes = size_t{256} << 20;

Result<int64_t> parse_count(const std::string& text, std::string_view option) {
  int64_t n = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || stop != text.data() + text.size() || n < 0)
    return fail(ErrorCode::kInvalidArgument,
                "expected a whole number, 0 or more, found " + quote_name(text),
                std::string(option));
  return n;
}

class Decode : public Command {
 public:
  std::string_view name() const override { return "decode"; }
  std::string_view summary() const override { return "model output to an API's response"; }
  std::string_view description() const override {
    return "Reads what the model wrote from standard input and prints what a client of the API "
           "gets: one response, or with --stream its events.";
  }
  void options(Options& o) override {
    codec_.add(o);
    o.group("Reply");
    o.text("--request", request_, "FILE", "the request that the model answers, as JSON");
    o.flag("--stream", stream_, "server-sent events instead of one response");
    o.text("--id", id_, "TEXT", "id of the response");
    o.text("--created", created_, "SECONDS", "time of the response, seconds since 1970");
    o.text("--finish", finish_, "WHY",
           "why the engine ended: stop, length, content_filter, or none (it just ended)");
    o.text("--cut", cut_, "N", "take the text in pieces of N bytes; 0: at once");
    o.flag("--chunks", chunks_,
           "standard input is chunks as JSON, one a line: text, token_ids, usage, finish");
  }
  Status run(const Config&, const Settings&) override {
    DEEPMINT_TRY(settings, codec_.settings("decode"));
    if (codec_.jsonl) {
      if (chunks_ || request_)
        return fail(ErrorCode::kInvalidArgument,
                    "expected --jsonl without --chunks and --request: a case holds its own",
                    "deepmint decode");
      return run_codec_lines(settings);
    }
    DEEPMINT_TRY(decode, decode_settings());
    if (!request_)
      return fail(ErrorCode::kInvalidArgument, "expected a file, found nothing", "--request");
    DEEPMINT_TRY(file, MappedFile::open(*request_));
    if (file.size() > kMaxCodecBytes)
      return fail(ErrorCode::kTooLarge,
                  "expected at most " + std::to_string(kMaxCodecBytes) + " bytes", *request_);
    const std::string_view request(reinterpret_cast<const char*>(file.bytes().data()), file.size());
    auto decoder = recipe::OutputDecoder::open(request, decode, settings);
    if (!decoder) return tl::unexpected(std::move(decoder).error().at(*request_));
    DEEPMINT_CHECK_OK(chunks_ ? feed_chunks(**decoder) : feed_text(**decoder));
    return write_stdout((*decoder)->finish());
  }

 private:
  Result<recipe::DecodeSettings> decode_settings() const {
    recipe::DecodeSettings d;
    DEEPMINT_TRY(protocol, codec_.need_protocol());
    d.protocol = protocol;
    d.stream = stream_;
    d.id = id_;
    DEEPMINT_TRY(created, parse_count(created_, "--created"));
    d.created = created;
    DEEPMINT_TRY(cut, parse_count(cut_, "--cut"));
    d.cut = static_cast<size_t>(cut);
    auto finish = recipe::finish_from_name(finish_);
    if (!finish) {
      finish.error().where = "--finish";
      return tl::unexpected(std::move(finish).error());
    }
    d.finish = *finish;
    return d;
  }
  static Status feed_text(recipe::OutputDecoder& decoder) {
    DEEPMINT_TRY(text, read_stdin(kMaxOutputBytes));
    return write_stdout(decoder.push_output(text));
  }
  static Status feed_chunks(recipe::OutputDecoder& decoder) {
    StdinLines lines(kMaxCodecBytes);
    for (;;) {
      DEEPMINT_TRY(line, lines.next());
      if (!line) return {};
      if (line->find_first_not_of(" \t") == std::string_view::npos) continue;
      auto events = decoder.push_chunk(*line);
      if (!events) return tl::unexpected(std::move(events).error().at(lines.place()));
      if (!events->empty()) DEEPMINT_CHECK_OK(write_stdout(*events));
    }
  }

  CodecOptions codec_;
  std::optional<std::string> request_;
  std::string id_ = "resp_0", created_ = "0", finish_ = "stop", cut_ = "0";
  bool stream_ = false, chunks_ = false;
};

}  // namespace

std::unique_ptr<Command> make_decode() { return std::make_unique<Decode>(); }

}  // namespace deepmint::cli
