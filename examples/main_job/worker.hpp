// SPDX-License-Identifier: Apache-2.0
// A forked process that does one part of the job and talks to its parent over a socket. It dies with its parent.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace main_job {

// One end of the socket between parent and worker.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  void say(std::uint64_t value) const;
  std::uint64_t hear() const;  // throws when the other end is gone

 private:
  int fd_;
};

class Worker {
 public:
  // What `body` throws is printed, and ends the worker with 1.
  static Worker start(const std::string& name, const std::function<void(Line)>& body);
  Worker(Worker&& other) noexcept;
  Worker& operator=(Worker&&) = delete;
  ~Worker();

  pid_t pid() const { return pid_; }
  Line line() const { return Line(fd_); }
  std::uint64_t ask(std::uint64_t value) const;  // say, then hear
  void kill();                                   // SIGKILL, and waits
  bool finish();                                 // waits; whether it ended with 0

 private:
  Worker(std::string name, pid_t pid, int fd) : name_(std::move(name)), pid_(pid), fd_(fd) {}
  std::string name_;
  pid_t pid_;
  int fd_;
};

// Throws with `what` unless it holds: the promise that was not kept.
void require(bool holds, const std::string& what);
std::string mebibytes(std::uint64_t bytes);

}  // namespace main_job
