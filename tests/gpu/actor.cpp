// SPDX-License-Identifier: Apache-2.0
// Forks before any driver call, because a context does not survive fork; everything about /proc is here too.
#include "tests/gpu/actor.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "tests/gpu/report.hpp"

namespace shmb::facts {
namespace {

constexpr int kLineFd = kReportFd + 1;
constexpr std::size_t kMaxFds = 64;

void close_above(unsigned first) {
  if (syscall(SYS_close_range, first, ~0U, 0U) == 0) return;
  for (int fd = static_cast<int>(first); fd < 65536; ++fd) close(fd);
}

std::vector<std::string> fd_targets(pid_t pid) {
  std::vector<std::string> targets;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return targets;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] == '.') continue;
    char target[256];
    const ssize_t length = readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target - 1);
    if (length > 0) targets.emplace_back(target, static_cast<std::size_t>(length));
  }
  closedir(dir);
  return targets;
}

}  // namespace

void Line::say(const std::string& text, const std::vector<int>& fds) const {
  iovec part{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    if (fds.size() > kMaxFds) fail("test sends too many descriptors at once");
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  if (sendmsg(fd_, &message, MSG_NOSIGNAL) < 0) fail("sendmsg \"%s\": %s", text.c_str(), std::strerror(errno));
}

Message Line::hear() const {
  Message heard;
  char text[1024];
  iovec part{text, sizeof text};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do got = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got <= 0) {
    heard.end = true;
    return heard;
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) fail("descriptors were cut off a message");
  heard.text.assign(text, static_cast<std::size_t>(got));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    heard.fds.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(heard.fds.data(), CMSG_DATA(header), heard.fds.size() * sizeof(int));
  }
  return heard;
}

Message Line::expect(const std::string& text) const {
  Message heard = hear();
  if (heard.end) fail("the other process ended before it said \"%s\"", text.c_str());
  if (heard.text != text) fail("heard \"%s\", not \"%s\"", heard.text.c_str(), text.c_str());
  return heard;
}

Actor::Actor(const char* role, const std::function<void(const Line&)>& body, bool as_nobody) : role_(role) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) fail("socketpair: %s", std::strerror(errno));
  const pid_t holder = getpid();
  pid_ = fork();
  if (pid_ < 0) fail("fork: %s", std::strerror(errno));
  if (pid_ == 0) {
    if (pair[1] != kLineFd && dup2(pair[1], kLineFd) < 0) _exit(3);
    close_above(kLineFd + 1);
    if (as_nobody &&
        (setgroups(0, nullptr) != 0 || setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)) {
      fail("setresuid: %s", std::strerror(errno));
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // after setresuid, which clears it
    if (getppid() != holder) _exit(3);
    body(Line(kLineFd));
    _exit(0);
  }
  close(pair[1]);
  line_ = Line(pair[0]);
}

int Actor::reap() {
  int status = 0;
  while (!reaped_ && waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  if (!reaped_) close(line_.fd());
  reaped_ = true;
  return status;
}

void Actor::kill() {
  ::kill(pid_, SIGKILL);
  reap();
}

void Actor::finish() {
  line_.say("end");
  const int status = reap();
  if (status != 0) fail("the %s ended with wait status %d", role_.c_str(), status);
}

void until_end(const Line& line) {
  const Message heard = line.hear();
  if (!heard.end && heard.text != "end") fail("heard \"%s\", not \"end\"", heard.text.c_str());
}

void close_all(std::vector<int>& fds) {
  for (const int fd : fds) close(fd);
  fds.clear();
}

std::size_t fd_count(pid_t pid) { return fd_targets(pid).size(); }

std::string nvidia_fds(pid_t pid) {
  std::map<std::string, int> counts;
  for (const std::string& target : fd_targets(pid)) {
    if (target.rfind("/dev/nvidia", 0) == 0) ++counts[target.substr(5)];
  }
  std::string text;
  for (const auto& [name, count] : counts) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(count);
  return text.empty() ? "none" : text;
}

long rss_kib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmRSS:", 0) == 0) return std::strtol(line.c_str() + 6, nullptr, 10);
  }
  return -1;
}

bool maps_has(pid_t pid, const char* word) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find(word) != std::string::npos) return true;
  }
  return false;
}

std::string node_holders(const std::string& node) {
  std::string holders;
  DIR* dir = opendir("/proc");
  if (dir == nullptr) return "unknown: no /proc";
  while (const dirent* entry = readdir(dir)) {
    const long pid = std::strtol(entry->d_name, nullptr, 10);
    if (pid <= 0) continue;
    for (const std::string& target : fd_targets(static_cast<pid_t>(pid))) {
      if (target != node) continue;
      std::string name;
      std::ifstream comm("/proc/" + std::to_string(pid) + "/comm");
      std::getline(comm, name);
      holders += (holders.empty() ? "" : ", ") + name + " " + std::to_string(pid);
      break;
    }
  }
  closedir(dir);
  return holders;
}

std::string gpu_node() {
  for (int minor = 0; minor < 64; ++minor) {
    const std::string node = "/dev/nvidia" + std::to_string(minor);
    if (access(node.c_str(), F_OK) == 0) return node;
  }
  return {};
}

}  // namespace shmb::facts
