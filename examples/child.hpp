// SPDX-License-Identifier: Apache-2.0
// A process of a demonstration: the program itself, started again with a role as its arguments. So it has nothing from
// its parent but the terminal. It dies with its parent.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <vector>

class Child {
 public:
  explicit Child(std::vector<std::string> role) : role_(std::move(role)) { start(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) kill();
  }

  void start() {
    std::vector<char*> words{const_cast<char*>("example")};
    for (std::string& word : role_) words.push_back(word.data());
    words.push_back(nullptr);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) ::execv("/proc/self/exe", words.data());
    ::_exit(127);
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    (void)wait();
  }
  // Whether it ended with 0.
  bool wait() {
    int status = -1;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  pid_t pid() const { return pid_; }
  // Whether it has ended by itself, which it should not have.
  bool gone() const {
    siginfo_t facts{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &facts, WEXITED | WNOHANG | WNOWAIT) == 0 && facts.si_pid != 0;
  }

 private:
  std::vector<std::string> role_;
  pid_t pid_ = -1;
};
