// The HTTP server in front of a scripted engine, as a program: for measurements and tests of the
// server alone.
//
//   scripted_server hang            one token per reply, then silence until the client leaves
//   scripted_server pace N US       N tokens per reply, one each US microseconds
//   scripted_server say FILE TEXT   TEXT, a token per byte, behind the chat template in FILE
//   scripted_server deepseek TEXT   TEXT from a DeepSeek V4.1 model: control tokens, else bytes
//
// Prints "listening on URL"; ends when standard input does.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "server/testing/test_model.h"
#include "support/scripted_engine.h"

using namespace deepmint;

int main(int argc, char** argv) {
  const std::string_view kind = argc > 1 ? argv[1] : "";
  testing::ScriptedEngine::Play play;
  if (kind == "hang" && argc == 2) {
    play.tokens = {testing::kHello};
    play.hang = true;
  } else if (kind == "pace" && argc == 4) {
    play.tokens.assign(static_cast<size_t>(std::atoi(argv[2])), testing::kHello);
    play.pace = std::chrono::microseconds(std::atoi(argv[3]));
  } else if (kind == "say" && argc == 4) {
    play.tokens = testing::bytes_of(argv[3]);
    play.tokens.push_back(testing::kImEnd);
  } else if (kind == "deepseek" && argc == 3) {
    play.tokens = testing::deepseek_ids(argv[2]);
    play.tokens.push_back(testing::kDeepSeekEnd);
  } else {
    std::fprintf(stderr,
                 "usage: scripted_server hang | pace N US | say FILE TEXT | deepseek TEXT\n");
    return 2;
  }
  testing::ScriptedEngine engine([&](const GenerationRequest&) { return play; });
  ServerConfig config;
  config.port = 0;
  ServedModel model =
      kind == "deepseek" ? testing::deepseek_model(engine) : testing::test_model(engine);
  if (kind == "say") {
    std::ifstream file(argv[2]);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    model.chat = recipe::load_chat_template(text, "test", *model.tokenizer);
  }
  auto server = HttpServer::start(config, std::move(model));
  if (!server) {
    std::fprintf(stderr, "%s\n", server.error().str().c_str());
    return 1;
  }
  std::printf("listening on %s\n", (*server)->url().c_str());
  std::fflush(stdout);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  (*server)->stop(std::chrono::milliseconds(0));
  return 0;
}
