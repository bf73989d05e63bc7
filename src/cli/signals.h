// Signals as a file descriptor, so that a loop can wait for them together with events. Outside the
// lifetime of an object the signals keep their default action: Ctrl-C while a model loads ends the
// program at once.
//
//   SignalPipe signals({SIGINT});
//   poll {signals.fd(), …};
//   if (signals.take() == SIGINT) ticket->cancel();
//
// kEndsAtOnce: a signal that comes while an earlier one still waits to be taken ends the process,
// so that a loop that is stuck (in a write that nobody reads) can be ended as others can.
//
// One object at a time. Any thread of the process may run the handler.
#pragma once

#include <initializer_list>
#include <vector>

namespace deepmint::cli {

class SignalPipe {
 public:
  enum class Second { kWaits, kEndsAtOnce };
  explicit SignalPipe(std::initializer_list<int> signals, Second second = Second::kWaits);
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int fd() const { return read_end_; }  // readable when a signal is waiting
  int take();                           // the oldest waiting signal, or 0
  void restore_defaults();              // the next one takes its default action

 private:
  std::vector<int> signals_;
  int read_end_ = -1;
};

// Ends the process as the signal would have, so that a calling shell sees it.
[[noreturn]] void die_of(int signal);

}  // namespace deepmint::cli
