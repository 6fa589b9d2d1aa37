// SPDX-License-Identifier: Apache-2.0
// The messages between guard and supervisor over their socket, and the signals that both read. Internal to spawn.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "spawn/ranks/plan.hpp"

namespace shmb::spawn {

// Guard to supervisor, and parent to supervisor: a signal for the tree. A signal that ends trees begins the end.
struct Order {
  int signal = 0;
  int at_once = 0;              // SIGKILL, no grace
  std::int64_t voluntary = -1;  // from now on, the time for the others after a first failure, before the signal
};

// Supervisor to guard.
struct Note {
  enum Kind : int { ranks_ended, failed, tree_gone } kind = failed;
  int value = 0;  // the exit status of all, or 125 to 127
  std::array<char, 504> sentence{};
};

// Supervisor or guard to parent. A verdict comes with a memory file that holds it.
struct Told {
  enum Kind : int { ranks_started, verdict } kind = verdict;
  int count = 0;
  std::array<std::int32_t, kMostRanks> pids{};
};

// Bytes of any length in one descriptor: makes a sealed memory file, and reads one.
Sys<Fd> memory_file(const char* name, const std::string& bytes);
Sys<std::string> contents(int memory_file);

template <class T>
bool tell(int socket, const T& message);
// nullopt: no message is there yet; `closed` says whether the other end is gone.
template <class T>
std::optional<T> hear(int socket, bool& closed);

// Blocks the signals and returns them as a descriptor. The destructor restores the mask. Signals that were ignored at
// the start stay ignored (nohup, background jobs of shells without job control).
class Signals {
 public:
  // `all`: blocks all other signals too, because the handlers of a forked parent must not run here.
  explicit Signals(bool all = false);
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();
  int fd() const { return fd_.get(); }
  const sigset_t& former_mask() const { return former_mask_; }
  struct Arrived {
    int number = 0;
    bool from_terminal = false;  // the kernel sent it to the foreground process group
  };
  std::optional<Arrived> next();

 private:
  sigset_t former_mask_{};
  struct sigaction former_child_action_{};
  Fd fd_;
};

bool ends_the_tree(int signal);

}  // namespace shmb::spawn
