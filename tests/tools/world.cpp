// SPDX-License-Identifier: Apache-2.0
// See world.hpp.
#include "tests/tools/world.hpp"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/sys_process.hpp"
#include "tests/harness/leak_guard.hpp"

namespace shmb::test {
namespace {

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

int status_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

int wait_for(pid_t pid) {
  int status = -1;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status_of(status);
}

nlohmann::json status_document(World& world) {
  const Ended ended = world.tool({"status", "--json"});
  return ended.status == 0 ? nlohmann::json::parse(ended.out) : nlohmann::json();
}

}  // namespace

World::~World() {
  const pid_t pid = broker();
  if (pid == 0) return;
  const Ended left = tool({"list", "-q"});
  if (!left.out.empty()) harness::report_leak("regions left with the broker of a test's world: " + left.out);
  const Ended pools = tool({"list", "--pools", "-q"});
  if (!pools.out.empty()) harness::report_leak("pools left with the broker of a test's world: " + pools.out);
  // By pidfd: its new parent may let a dead broker wait for a while before it is reaped.
  const auto process = sys::pidfd_open(pid);
  ::kill(pid, SIGTERM);
  if (process) (void)sys::poll_readable(process->get(), 10'000'000'000);
}

void World::become(const std::string& program, const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& environment) const {
  ::clearenv();
  ::setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1);
  ::setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1);
  ::setenv("SHMBROKER_DAEMON", SHMB_TEST_DAEMON, 1);
  ::setenv("TERM", "xterm", 1);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(program.c_str(), words.data());
  ::_exit(99);
}

Ended World::tool(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment) {
  return collect(SHMB_TEST_TOOL, arguments, environment);
}

Ended World::run(const std::string& program, const std::vector<std::string>& arguments) {
  return collect(program, arguments, {});
}

Ended World::collect(const std::string& program, const std::vector<std::string>& arguments,
                     const std::map<std::string, std::string>& environment) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int out = ::open(dir_.file("out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err = ::open(dir_.file("err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int in = ::open("/dev/null", O_RDONLY);
    ::dup2(in, 0);
    ::dup2(out, 1);
    ::dup2(err, 2);
    become(program, arguments, environment);
  }
  Ended ended;
  ended.status = wait_for(pid);
  ended.out = content(dir_.file("out"));
  ended.err = content(dir_.file("err"));
  return ended;
}

Ended World::tool_on_terminal(const std::vector<std::string>& arguments,
                              const std::map<std::string, std::string>& environment, unsigned short columns) {
  int terminal = -1;
  const winsize size_of_it{24, columns, 0, 0};
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, &size_of_it);
  if (pid == 0) become(SHMB_TEST_TOOL, arguments, environment);
  Ended ended;
  char buffer[4096];
  ssize_t size;
  while ((size = ::read(terminal, buffer, sizeof buffer)) > 0) ended.out.append(buffer, static_cast<std::size_t>(size));
  ::close(terminal);
  ended.status = wait_for(pid);
  return ended;
}

pid_t World::start_tool(const std::vector<std::string>& arguments, const std::string& out) {
  const pid_t pid = ::fork();
  if (pid == 0 && !out.empty()) ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
  if (pid == 0) become(SHMB_TEST_TOOL, arguments, {});
  return pid;
}

std::string World::file(const std::string& name, const std::string& text) const {
  std::ofstream(dir_.file(name), std::ios::binary) << text;
  return dir_.file(name);
}

pid_t World::broker() {
  const nlohmann::json document = status_document(*this);
  return document.is_null() ? 0 : document["broker"]["pid"].get<pid_t>();
}

std::uint64_t World::bytes() {
  const nlohmann::json document = status_document(*this);
  return document.is_null() ? 0 : document["broker"]["bytes"].get<std::uint64_t>();
}

bool World::empties() {
  return eventually([this] { return bytes() == 0; });
}

}  // namespace shmb::test
