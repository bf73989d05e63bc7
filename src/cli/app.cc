#include "cli/app.h"

#include <fmt/format.h>

#include <exception>
#include <new>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "core/cpu_isa.h"
#include "core/env.h"
#include "core/log.h"
#include "format/names.h"

namespace deepmint::cli {
namespace {

Status apply_settings(const CommandLine& line, const Config& config, Settings& settings) {
  if (line.config_file) DEEPMINT_CHECK_OK(settings.load_file(*line.config_file));
  DEEPMINT_CHECK_OK(settings.load_environment(env_with_prefix("DEEPMINT_")));
  for (const Options::GivenFlag& flag : line.flags)
    DEEPMINT_CHECK_OK(settings.set(flag.key, ConfigValue::from_text(flag.value),
                                   {Origin::Kind::kFlag, flag.flag}));

  const bool serves = line.command->name() == "serve";
  DEEPMINT_CHECK_OK(set_log_level(config.log.level.value_or(serves ? "info" : "warn")));
  if (config.cpu.isa) {
    auto isa = resolve_isa(*config.cpu.isa);
    if (!isa) {
      isa.error().where = settings.find("cpu.isa")->origin.str();
      return tl::unexpected(std::move(isa).error());
    }
    set_active_isa(*isa);
  }
  return {};
}

Status run_line(const std::vector<std::string>& args) {
  const CommandList commands = all_commands();
  Config config;
  Settings settings(config);
  DEEPMINT_TRY(line, parse_command_line(args, commands, settings));
  if (!line.page.empty()) return write_stdout(line.page);
  DEEPMINT_CHECK_OK(apply_settings(line, config, settings));
  Status done = line.command->run(config, settings);
  // What a module says about its setting, in the words of whoever set it: "--ctx", "c.toml:3".
  if (!done) {
    const Setting* setting = settings.find(done.error().where);
    if (setting != nullptr && setting->origin.kind != Origin::Kind::kDefault)
      done.error().where = setting->origin.str();
  }
  return done;
}

}  // namespace

CommandList all_commands() {
  CommandList commands;
  commands.push_back(make_run());
  commands.push_back(make_chat());
  commands.push_back(make_serve());
  commands.push_back(make_batch());
  commands.push_back(make_score());
  commands.push_back(make_bench());
  commands.push_back(make_inspect());
  commands.push_back(make_synth());
  commands.push_back(make_tokenize());
  commands.push_back(make_detokenize());
  commands.push_back(make_encode());
  commands.push_back(make_decode());
  commands.push_back(make_grammar());
  commands.push_back(make_config());
  return commands;
}

int report(const Error& error) {
  // Errors of the command line name the program themselves: "deepmint run: …".
  const bool named = error.where == "deepmint" || error.where.starts_with("deepmint ");
  write_stderr((named ? "" : "deepmint: ") + printable(error.str()) + "\n");
  return exit_code(error);
}

int run_program(const std::vector<std::string>& args) noexcept {
  // Results carry every expected failure; what is thrown here is memory running out or a bug.
  try {
    const Status status = run_line(args);
    // `deepmint run … | head -1`: the reader has what it wanted.
    if (stdout_closed() && (status || status.error().code == ErrorCode::kCancelled)) return 0;
    return status ? 0 : report(status.error());
  } catch (const std::bad_alloc&) {
    write_stderr("deepmint: out of memory\n");
  } catch (const std::exception& e) {
    write_stderr("deepmint: internal error: ");
    write_stderr(e.what());
    write_stderr("\n");
  }
  return 1;
}

}  // namespace deepmint::cli
