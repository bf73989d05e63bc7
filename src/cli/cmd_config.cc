// deepmint config: the settings in force, and where each came from.
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/terminal.h"

namespace deepmint::cli {
namespace {

class ShowConfig : public Command {
 public:
  std::string_view name() const override { return "config"; }
  std::string_view summary() const override {
    return "the settings in force, and where each value came from";
  }
  std::string_view description() const override {
    return "Takes the flags of every other command, so that a command line can be tried out.";
  }
  std::span<const std::string_view> sections() const override {
    static constexpr std::string_view kSections[] = {"cpu", "engine", "sampling", "server", "log"};
    return kSections;
  }
  void options(Options& o) override {
    o.group("Output");
    o.flag("--json", json_, "one JSON object");
    o.flag("--markdown", markdown_,
           "every setting with its default and meaning: the page docs/knobs.md");
  }
  Status run(const Config&, const Settings& settings) override {
    if (json_ && markdown_)
      return fail(ErrorCode::kInvalidArgument, "expected --json or --markdown, found both",
                  "deepmint config");
    if (markdown_) return write_stdout(knobs_markdown(settings));
    return write_stdout(json_ ? effective_json(settings) + "\n" : effective_table(settings));
  }

 private:
  bool json_ = false, markdown_ = false;
};

}  // namespace

std::unique_ptr<Command> make_config() { return std::make_unique<ShowConfig>(); }

}  // namespace deepmint::cli
