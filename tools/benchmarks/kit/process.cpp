// SPDX-License-Identifier: Apache-2.0
// See process.hpp.
#include "tools/benchmarks/kit/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

namespace shmb::bench {
namespace {

// Cores as they were when the bench began: pin() narrows the mask of this process.
const cpu_set_t& allowed() {
  static const cpu_set_t all = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
  }();
  return all;
}

bool in_child = false;
std::vector<std::string> folders;

void remove_folders() {
  if (in_child) return;
  std::error_code ignored;
  for (const std::string& folder : folders) std::filesystem::remove_all(folder, ignored);
}

void become_child(Core core) {
  in_child = true;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(core);
}

}  // namespace

void give_up(const std::string& what) {
  fmt::print(stderr, "bench: {}{}{}\n", what, errno != 0 ? ": " : "", errno != 0 ? strerror(errno) : "");
  if (in_child) _exit(1);
  exit(1);
}

int must(int result, const char* what) {
  if (result == -1) give_up(what);
  return result;
}

void pin(Core core) {
  cpu_set_t set = allowed();
  if (core != Core::any) {
    int chosen = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed())) {
        chosen = cpu;
        if (core == Core::client) break;
      }
    CPU_ZERO(&set);
    CPU_SET(chosen, &set);
  }
  sched_setaffinity(0, sizeof set, &set);
}

void favour() {
  setpriority(PRIO_PROCESS, 0, -20);
  errno = 0;
}

Child Child::start(Core core, const std::function<int()>& body) {
  allowed();
  std::fflush(nullptr);
  pid_t pid = fork();
  must(pid, "fork");
  if (pid == 0) {
    become_child(core);
    _exit(body());
  }
  return Child(pid);
}

Child Child::execute(Core core, const std::string& program, const std::vector<std::string>& arguments, int log,
                     bool own_session) {
  return start(core, [&]() -> int {
    if (own_session) setsid();
    dup2(log, STDERR_FILENO);
    rlimit table{};
    getrlimit(RLIMIT_NOFILE, &table);
    table.rlim_cur = table.rlim_max;
    setrlimit(RLIMIT_NOFILE, &table);
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    give_up(program);
  });
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  wait();
}

void Child::kill(int signal) const { ::kill(pid_, signal); }

int Child::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) == -1 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Channel Channel::make() {
  int ends[2];
  must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), "socketpair");
  return {Fd::adopt(ends[0]), Fd::adopt(ends[1])};
}

void send_value(int socket, const void* data, std::size_t size) { send_fd(socket, data, size, -1); }

void receive_value(int socket, void* data, std::size_t size) {
  if (receive_fd(socket, data, size)) give_up("a descriptor that nobody asked for");
}

void send_fd(int socket, const void* data, std::size_t size, int fd) {
  iovec part{const_cast<void*>(data), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
  }
  while (sendmsg(socket, &message, MSG_NOSIGNAL) == -1)
    if (errno != EINTR) give_up("sendmsg");
}

Fd receive_fd(int socket, void* data, std::size_t size) {
  iovec part{data, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got;
  while ((got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) == -1)
    if (errno != EINTR) give_up("recvmsg");
  if (got == 0) {
    if (in_child) _exit(0);  // the bench is done with this child
    errno = 0;
    give_up("the other process of a measurement has ended");
  }
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (head == nullptr || head->cmsg_type != SCM_RIGHTS) return {};
  int fd;
  memcpy(&fd, CMSG_DATA(head), sizeof fd);
  return Fd::adopt(fd);
}

double process_cpu_us(pid_t pid) {
  clockid_t clock;
  timespec spent{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &spent) != 0) return 0;
  return static_cast<double>(spent.tv_sec) * 1e6 + static_cast<double>(spent.tv_nsec) / 1e3;
}

namespace {

std::optional<std::size_t> kib_in(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  std::string word;
  std::size_t kib = 0;
  while (in >> word)
    if (word == key + ":" && in >> kib) return kib;
  return std::nullopt;
}

}  // namespace

std::size_t memory_of(pid_t pid, Memory what) {
  const bool all = what == Memory::resident;
  const std::string folder = fmt::format("/proc/{}/", pid);
  auto kib = kib_in(folder + "smaps_rollup", all ? "Rss" : "Anonymous");
  // A broker is not dumpable, so that only root may look there. These counts lag behind by some pages for each thread.
  if (!kib) kib = kib_in(folder + "status", all ? "VmRSS" : "RssAnon");
  errno = 0;
  if (!kib) give_up(folder + " tells no memory");
  return *kib * 1024;
}

std::optional<std::size_t> proportional_memory_of(pid_t pid) {
  const auto kib = kib_in(fmt::format("/proc/{}/smaps_rollup", pid), "Pss");
  errno = 0;
  if (!kib) return std::nullopt;
  return *kib * 1024;
}

TemporaryFolder::TemporaryFolder() {
  const char* base = getenv("TMPDIR");
  path_ = std::string(base != nullptr ? base : "/tmp") + "/shmbroker-bench.XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) give_up("mkdtemp " + path_);
  if (folders.empty()) atexit(remove_folders);
  folders.push_back(path_);
}

TemporaryFolder::~TemporaryFolder() {
  if (in_child) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace shmb::bench
