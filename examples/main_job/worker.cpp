// SPDX-License-Identifier: Apache-2.0
// See worker.hpp.
#include "worker.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace main_job {

void Line::say(std::uint64_t value) const {
  if (::send(fd_, &value, sizeof value, MSG_NOSIGNAL) != sizeof value)
    throw std::runtime_error("the other process is gone");
}

std::uint64_t Line::hear() const {
  std::uint64_t value = 0;
  if (::recv(fd_, &value, sizeof value, 0) != sizeof value) throw std::runtime_error("the other process is gone");
  return value;
}

Worker Worker::start(const std::string& name, const std::function<void(Line)>& body) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::system_error(errno, std::generic_category(), "socketpair");
  std::fflush(stdout);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid > 0) {
    ::close(ends[1]);
    return Worker(name, pid, ends[0]);
  }
  ::close(ends[0]);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  int status = 0;
  try {
    body(Line(ends[1]));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), failure.what());
    status = 1;
  }
  std::fflush(stdout);
  ::_exit(status);
}

Worker::Worker(Worker&& other) noexcept
    : name_(std::move(other.name_)), pid_(std::exchange(other.pid_, -1)), fd_(std::exchange(other.fd_, -1)) {}

Worker::~Worker() {
  if (pid_ > 0) kill();
}

std::uint64_t Worker::ask(std::uint64_t value) const {
  line().say(value);
  return line().hear();
}

void Worker::kill() {
  ::kill(pid_, SIGKILL);
  (void)finish();
}

bool Worker::finish() {
  ::close(std::exchange(fd_, -1));
  int status = -1;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

std::string mebibytes(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

}  // namespace main_job
