// SPDX-License-Identifier: Apache-2.0
// Runs a job in a process of its own and shows the test what became of it: what was said and reported, which
// processes of the job exist (each is `sleep` with an argument nobody else uses), and how it ended.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "spawn/ranks/supervisor.hpp"
#include "tests/support/until.hpp"

namespace shmb::test {

using support::eventually;

class Runner {
 public:
  // `script` goes to sh; $N in it is the argument of `sleep` that marks a process.
  explicit Runner(const std::string& script) : Runner(std::vector<std::string>{"sh", "-c", script}) {}
  explicit Runner(std::vector<std::string> command);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  spawn::Plan job;
  std::vector<pid_t> bystanders;     // what the reporter names
  std::function<void()> before_job;  // in the guard, before run_job

  void start();
  pid_t guard() const { return guard_; }
  pid_t supervisor();                 // waits until it exists
  std::vector<pid_t> marked() const;  // live processes of the job
  bool has_marked(std::size_t count) const;
  bool has_heard(const std::string& text);  // waits for it
  int wait();                               // wait status of the guard
  const std::string& heard();               // everything said and reported until every writer is gone
  std::string mark(int index) const { return marker_ + std::to_string(index); }

 private:
  bool hear();  // waits for more; false: that was all

  std::string marker_;
  pid_t guard_ = -1;
  Fd log_;
  std::string heard_;
};

}  // namespace shmb::test
