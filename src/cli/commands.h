// One maker per command, each in its own file; all_commands() lists them.
#pragma once

#include <memory>

#include "cli/command.h"

namespace deepmint::cli {

std::unique_ptr<Command> make_run();
std::unique_ptr<Command> make_chat();
std::unique_ptr<Command> make_serve();
std::unique_ptr<Command> make_batch();
std::unique_ptr<Command> make_score();
std::unique_ptr<Command> make_bench();
std::unique_ptr<Command> make_inspect();
std::unique_ptr<Command> make_synth();
std::unique_ptr<Command> make_tokenize();
std::unique_ptr<Command> make_detokenize();
std::unique_ptr<Command> make_encode();
std::unique_ptr<Command> make_decode();
std::unique_ptr<Command> make_grammar();
std::unique_ptr<Command> make_config();

}  // namespace deepmint::cli
