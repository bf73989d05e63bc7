#include "cli/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "core/check.h"

namespace deepmint::cli {
namespace {

std::atomic<int> g_write_end{-1};
std::atomic<bool> g_second_ends{false}, g_one_waits{false};

extern "C" void forward_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  if (g_second_ends && g_one_waits.exchange(true)) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);  // ends the process when this returns
  }
  // A full pipe already holds more signals than anyone will read.
  if (const int fd = g_write_end.load(); fd >= 0) (void)!::write(fd, &byte, 1);
  errno = saved;
}

void set_action(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

SignalPipe::SignalPipe(std::initializer_list<int> signals, Second second) : signals_(signals) {
  DEEPMINT_CHECK(g_write_end < 0);
  g_second_ends = second == Second::kEndsAtOnce;
  g_one_waits = false;
  int ends[2];
  DEEPMINT_CHECK(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  read_end_ = ends[0];
  g_write_end = ends[1];
  for (const int signal : signals_) set_action(signal, forward_signal);
}

SignalPipe::~SignalPipe() {
  restore_defaults();
  ::close(g_write_end.exchange(-1));
  ::close(read_end_);
}

int SignalPipe::take() {
  unsigned char byte = 0;
  if (::read(read_end_, &byte, 1) != 1) return 0;
  g_one_waits = false;
  return byte;
}

void SignalPipe::restore_defaults() {
  for (const int signal : signals_) set_action(signal, SIG_DFL);
}

void die_of(int signal) {
  set_action(signal, SIG_DFL);
  ::raise(signal);
  std::_Exit(1);
}

}  // namespace deepmint::cli
