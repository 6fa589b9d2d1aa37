// SPDX-License-Identifier: Apache-2.0
// Programs by exec: the C program on the shared library, the command `shmbroker`, the shell.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/harness/child.hpp"

namespace e2e {

// Executes `words` (the first is a path) with these variables beside PATH and nothing else of the environment.
harness::Child program(const std::vector<std::string>& words, const std::map<std::string, std::string>& variables,
                       int in = -1, int out = -1);

// A program whose first line of output is awaited and whose standard input can be closed.
class Talker {
 public:
  Talker(const std::vector<std::string>& words, const std::map<std::string, std::string>& variables);
  Talker(const Talker&) = delete;
  Talker& operator=(const Talker&) = delete;
  ~Talker();
  std::string line(int milliseconds = 30'000);  // the next one, without its newline; "" when none comes
  void end_input();
  harness::Child& process() { return *process_; }

 private:
  int in_ = -1, out_ = -1;
  std::string heard_;
  std::vector<harness::Child> owner_;
  harness::Child* process_ = nullptr;
};

std::string c_peer();
std::string tool();

}  // namespace e2e
