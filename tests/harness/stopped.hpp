// SPDX-License-Identifier: Apache-2.0
// Stops a process for the tests. kill(2) with SIGSTOP only asks: a thread may still finish a request that it has begun.
#pragma once

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace harness {

// Whether every thread of the process is stopped or dead (the third field of /proc/PID/task/TID/stat).
inline bool is_stopped(pid_t pid) {
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    std::string line;
    std::getline(std::ifstream(thread.path() / "stat"), line);
    const auto name_ends = line.rfind(')');
    if (name_ends == std::string::npos) continue;  // the thread has ended meanwhile
    if (std::string_view("TtZX").find(line.at(name_ends + 2)) == std::string_view::npos) return false;
  }
  return true;
}

// Returns when the process has stopped. Throws std::runtime_error where it has not within a minute.
inline void stop(pid_t pid) {
  if (::kill(pid, SIGSTOP) != 0) throw std::runtime_error("no process " + std::to_string(pid) + " to stop");
  for (int i = 0; i < 60'000; ++i, ::usleep(1000))
    if (is_stopped(pid)) return;
  throw std::runtime_error("process " + std::to_string(pid) + " does not stop");
}

// A process that does nothing until the end of the scope, or until resume() is called.
class Stopped {
 public:
  explicit Stopped(pid_t pid) : pid_(pid) { stop(pid); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  ~Stopped() { resume(); }
  void resume() const { ::kill(pid_, SIGCONT); }

 private:
  const pid_t pid_;
};

}  // namespace harness
