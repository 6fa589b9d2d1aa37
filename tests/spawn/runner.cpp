// SPDX-License-Identifier: Apache-2.0
// See runner.hpp.
#include "tests/spawn/runner.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "base/sys_process.hpp"
#include "spawn/ranks/tree.hpp"

namespace shmb::test {
namespace {

class LoggingReporter final : public spawn::Reporter {
 public:
  LoggingReporter(int log, std::vector<pid_t> bystanders) : log_(log), bystanders_(std::move(bystanders)) {}
  Result<void> enter_supervisor() override {
    write("enter\n");
    return {};
  }
  void tree_gone() override { write("gone " + std::to_string(::getpid()) + "\n"); }
  std::vector<pid_t> bystanders() override { return bystanders_; }
  std::string line(const std::string& sentence) override {
    write("say " + sentence + "\n");
    return {};
  }
  void write(const std::string& text) const { (void)!::write(log_, text.data(), text.size()); }

 private:
  int log_;
  std::vector<pid_t> bystanders_;
};

int runners = 0;

}  // namespace

Runner::Runner(std::vector<std::string> command)
    : marker_("9000." + std::to_string(::getpid()) + std::to_string(1000 + runners++)) {
  job.command = std::move(command);
  job.environment = {{"N", marker_}};
}

Runner::~Runner() {
  for (pid_t pid : marked()) ::kill(pid, SIGKILL);
  if (guard_ > 0) {
    ::kill(guard_, SIGKILL);
    (void)wait();
  }
}

void Runner::start() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  log_ = Fd::adopt(ends[0]);
  Fd writer = Fd::adopt(ends[1]);
  guard_ = ::fork();
  if (guard_ != 0) return;
  log_.reset();
  if (before_job) before_job();
  LoggingReporter reporter(writer.get(), bystanders);
  const spawn::Outcome outcome = spawn::run_job(job, reporter);
  reporter.write("outcome " + std::to_string(outcome.exit_status) + " " + outcome.sentence + "\n");
  ::_exit(outcome.exit_status);
}

pid_t Runner::supervisor() {
  pid_t found = -1;
  (void)eventually([&] {
    // The one child of the guard that leads a process group of its own and is not the job.
    auto below = spawn::children(guard_, {});
    if (below)
      for (const auto& one : *below)
        if (::getpgid(one.pid) == one.pid) found = one.pid;
    return found > 0;
  });
  return found;
}

std::vector<pid_t> Runner::marked() const {
  std::vector<pid_t> found;
  std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc"), ::closedir);
  while (const dirent* entry = ::readdir(directory.get())) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    auto line = sys::read_file(("/proc/" + std::to_string(pid) + "/cmdline").c_str());
    if (line && line->starts_with(std::string("sleep\0", 6)) && line->find(marker_) != std::string::npos)
      found.push_back(pid);
  }
  return found;
}

bool Runner::has_marked(std::size_t count) const {
  return eventually([&] { return marked().size() == count; });
}

int Runner::wait() {
  int status = -1;
  while (::waitpid(guard_, &status, 0) < 0 && errno == EINTR) {
  }
  guard_ = -1;
  return status;
}

bool Runner::hear() {
  char buffer[4096];
  const ssize_t size = ::read(log_.get(), buffer, sizeof buffer);
  if (size > 0) heard_.append(buffer, static_cast<std::size_t>(size));
  return size > 0;
}

bool Runner::has_heard(const std::string& text) {
  return eventually([&] {
    auto more = sys::poll_readable(log_.get(), 0);
    if (more && *more) (void)hear();
    return heard_.find(text) != std::string::npos;
  });
}

const std::string& Runner::heard() {
  while (hear()) {
  }
  return heard_;
}

}  // namespace shmb::test
