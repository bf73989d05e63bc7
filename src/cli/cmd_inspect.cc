// deepmint inspect: what is in a checkpoint, and whether it is whole.
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "engine/load.h"
#include "format/inspect.h"
#include "model/deepseek_v41/verify.h"

namespace deepmint::cli {
namespace {

class Inspect : public Command {
 public:
  std::string_view name() const override { return "inspect"; }
  std::string_view summary() const override {
    return "what is in a checkpoint, and whether it is whole";
  }
  std::string_view description() const override {
    return "Exit code 0 when it is whole, 2 when something is damaged or missing.";
  }
  void options(Options& o) override {
    o.positional("MODEL", model_,
                 "a .gguf file, a .safetensors file or a folder in Hugging Face layout");
    o.group("Model");
    o.flag("--verify", verify_,
           "of DeepSeek-V4.1: also read every scale and weight and look for NaN");
    o.group("Output");
    o.flag("--json", json_, "one JSON object");
  }
  Status run(const Config&, const Settings&) override {
    DEEPMINT_TRY(report, inspect_model(model_));
    const bool is_v41 = v41::is_v41_checkpoint(model_);
    if (verify_ && !is_v41)
      return fail(ErrorCode::kUnsupported,
                  fmt::format("expected a DeepSeek-V4.1 checkpoint, found {}",
                              report.architecture.empty() ? "none" : report.architecture),
                  "--verify");
    // A whole checkpoint is one that the other commands take. A lone .safetensors file is no model.
    const bool is_model =
        report.format.starts_with("GGUF") || std::filesystem::is_directory(model_);
    const auto judge = [&report](Status ok) {
      if (ok) return;
      report.problems.push_back(ok.error().str());
      report.problem = std::move(ok).error();
    };
    if (report.whole() && is_model) {
      judge(check_model(model_));
      report.checked_tensors |= is_v41;
    }
    if (report.whole() && verify_) judge(read_numbers());
    DEEPMINT_CHECK_OK(write_stdout(json_ ? to_json(report) + "\n" : to_text(report)));
    if (!report.whole()) return tl::unexpected(*report.problem);
    return {};
  }

 private:
  Status read_numbers() const {
    Progress progress("reading every number");
    Status ok = v41::verify_checkpoint(
        model_, {.numbers = true, .progress = [&](double done) { progress.update(done); }});
    progress.clear();
    return ok;
  }

  std::string model_;
  bool json_ = false, verify_ = false;
};

}  // namespace

std::unique_ptr<Command> make_inspect() { return std::make_unique<Inspect>(); }

}  // namespace deepmint::cli
