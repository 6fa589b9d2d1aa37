// SPDX-License-Identifier: Apache-2.0
// What guard and supervisor tell each other over the socket between them, and the signals both listen to. Inside of
// spawn only.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace shmb::spawn {

// Guard to supervisor: end the tree.
struct Order {
  int signal = 0;
  int at_once = 0;  // SIGKILL, no grace
};

// Supervisor to guard.
struct Note {
  enum Kind : int { command_started, command_ended, failed, tree_gone } kind = failed;
  int value = 0;  // pid of the command, its exit status, or 125 to 127
  std::array<char, 504> sentence{};
};

template <class T>
bool tell(int socket, const T& message);
// Nothing is there yet: nullopt, `closed` tells whether the other end is gone.
template <class T>
std::optional<T> hear(int socket, bool& closed);

// Blocks the signals and gives them as a descriptor; the destructor restores the mask. Signals that were ignored when
// we came stay so (nohup, background jobs of shells without job control).
class Signals {
 public:
  Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();
  int fd() const { return fd_.get(); }
  const sigset_t& former_mask() const { return former_mask_; }
  struct Arrived {
    int number = 0;
    bool from_terminal = false;  // the kernel sent it, to the foreground process group
  };
  std::optional<Arrived> next();

 private:
  sigset_t former_mask_{};
  struct sigaction former_child_action_{};
  Fd fd_;
};

bool ends_the_tree(int signal);

}  // namespace shmb::spawn
