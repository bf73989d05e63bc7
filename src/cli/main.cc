#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "cli/app.h"
#include "core/cpu_isa.h"
#include "core/mapped_file.h"

namespace {

// A caller may have closed a standard stream (`>&-`). The next file opened would take its number,
// and an answer would be written into it.
void hold_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_streams();
  ::signal(SIGPIPE, SIG_IGN);  // writes report a reader that went away
  ::signal(SIGXFSZ, SIG_IGN);  // and a file that may not grow
  deepmint::report_lost_mappings();
  if (auto ok = deepmint::init_active_isa(); !ok) return deepmint::cli::report(ok.error());
  return deepmint::cli::run_program(std::vector<std::string>(argv + (argc > 0), argv + argc));
}
