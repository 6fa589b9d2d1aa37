// SPDX-License-Identifier: Apache-2.0
// See programs.hpp.
#include "tests/e2e/programs.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>

namespace e2e {

std::string c_peer() { return E2E_C_PEER; }
std::string tool() { return E2E_TOOL; }

harness::Child program(const std::vector<std::string>& words, const std::map<std::string, std::string>& variables,
                       int in, int out) {
  return harness::Child::run([&] {
    ::clearenv();
    ::setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    if (in >= 0) ::dup2(in, 0);
    if (out >= 0) ::dup2(out, 1);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    ::execv(arguments[0], arguments.data());
    return 127;
  });
}

Talker::Talker(const std::vector<std::string>& words, const std::map<std::string, std::string>& variables) {
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) std::abort();
  in_ = to[1];
  out_ = from[0];
  owner_.push_back(program(words, variables, to[0], from[1]));
  process_ = &owner_.front();
  ::close(to[0]);
  ::close(from[1]);
}

Talker::~Talker() {
  end_input();
  ::close(out_);
}

void Talker::end_input() {
  if (in_ >= 0) ::close(in_);
  in_ = -1;
}

std::string Talker::line(int milliseconds) {
  for (;;) {
    if (const auto end = heard_.find('\n'); end != heard_.npos) {
      std::string first = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return first;
    }
    pollfd entry{out_, POLLIN, 0};
    char buffer[512];
    if (::poll(&entry, 1, milliseconds) <= 0) return {};
    const ssize_t size = ::read(out_, buffer, sizeof buffer);
    if (size <= 0) return {};
    heard_.append(buffer, static_cast<std::size_t>(size));
  }
}

}  // namespace e2e
