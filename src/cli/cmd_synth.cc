// deepmint synth: a random checkpoint of any size in the official layout.
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/setting_value.h"
#include "cli/terminal.h"
#include "model/deepseek_v41/synth.h"

namespace deepmint::cli {
namespace {

class Synth : public Command {
 public:
  std::string_view name() const override { return "synth"; }
  std::string_view summary() const override {
    return "write a random DeepSeek-V4.1 checkpoint, for tests and benchmarks";
  }
  std::string_view description() const override {
    return "tiny is the specification's test model (4.5 MB). bench has the official roles of all "
           "40 layers at smaller widths (2.9 GB). official has the official files and shapes (510 "
           "GB); with --sparse most of it are holes that take no disk space. The same preset and "
           "seed give the same bytes everywhere.";
  }
  void options(Options& o) override {
    o.positional("DIR", folder_, "a folder without a checkpoint; made when it is not there");
    o.group("Checkpoint");
    o.text("--preset", preset_, "NAME", "tiny, bench or official");
    o.text("--seed", seed_, "N", "other weights of the same shapes; 0 = the preset's own");
    o.text("--vocab", vocab_, "N",
           "of tiny or bench: the vocabulary; 129280 fits the official tokenizer");
    o.flag("--sparse", sparse_, "of official: write little, leave the rest as holes");
  }
  Status run(const Config&, const Settings&) override;

 private:
  std::string folder_, preset_ = "tiny", seed_ = "0";
  std::optional<std::string> vocab_;
  bool sparse_ = false;
};

Status Synth::run(const Config&, const Settings&) {
  v41::SynthOptions options;
  v41::SynthPreset preset = v41::SynthPreset::kTiny;
  if (preset_ == "bench") {
    preset = v41::SynthPreset::kBench;
  } else if (preset_ == "official") {
    preset = v41::SynthPreset::kOfficial;
    options.official_files = true;
  } else if (preset_ != "tiny") {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected tiny, bench or official, found \"{}\"", preset_), "--preset");
  }
  if (sparse_ && !options.official_files)
    return fail(ErrorCode::kInvalidArgument, "--sparse goes with --preset official",
                "deepmint synth");
  options.sparse = sparse_;
  if (auto ok = assign(options.seed, ConfigValue::from_text(seed_), Shape{}); !ok)
    return tl::unexpected(std::move(ok).error().at("--seed"));
  v41::Config config = v41::synth_config(preset);
  if (vocab_) {
    if (options.official_files)
      return fail(ErrorCode::kInvalidArgument, "--vocab goes with --preset tiny or bench",
                  "deepmint synth");
    // The start and end tokens and the Engram padding are among the first ids.
    int64_t vocab = 0;
    if (auto ok = assign(vocab, ConfigValue::from_text(*vocab_),
                         Shape{.limits = {.min = 16, .max = 1 << 20}});
        !ok)
      return tl::unexpected(std::move(ok).error().at("--vocab"));
    v41::set_vocab(config, vocab);
  }
  Progress progress("writing " + preset_);
  options.progress = [&](double fraction) { progress.update(fraction); };
  const Status written = v41::synthesize(config, folder_, options);
  progress.clear();
  return written;
}

}  // namespace

std::unique_ptr<Command> make_synth() { return std::make_unique<Synth>(); }

}  // namespace deepmint::cli
