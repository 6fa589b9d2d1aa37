// SPDX-License-Identifier: Apache-2.0
// One pass over /proc gives a picture that is out of date when it is complete. Callers repeat it until no child is
// left. That ends, because a subreaper inherits every process that escaped a pass.
#include "spawn/ranks/tree.hpp"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <string_view>

#include "base/sys_process.hpp"

namespace shmb::spawn {
namespace {

template <class T>
bool take_number(std::string_view& text, T& out) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (code != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool contains(std::span<const pid_t> pids, pid_t pid) { return std::ranges::find(pids, pid) != pids.end(); }

Sys<std::vector<Process>> all_processes() {
  std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc"), ::closedir);
  if (!directory) return sys_error(errno);
  std::vector<Process> found;
  while (const dirent* entry = ::readdir(directory.get())) {
    std::string_view name = entry->d_name;
    pid_t pid = 0;
    if (!take_number(name, pid) || !name.empty()) continue;
    if (auto one = process(pid)) found.push_back(std::move(*one));  // else it has ended meanwhile
  }
  // An empty directory, or the /proc of another PID namespace, is not the answer.
  if (std::ranges::find(found, ::getpid(), &Process::pid) == found.end()) return sys_error(ENOENT);
  return found;
}

}  // namespace

Sys<Process> parse_stat(std::string_view line) {
  const std::size_t open = line.find('('), close = line.rfind(')');
  if (open == line.npos || close == line.npos || close < open || close + 2 >= line.size()) return sys_error(EINVAL);
  Process out;
  std::string_view head = line.substr(0, open);
  if (!take_number(head, out.pid)) return sys_error(EINVAL);
  out.name = line.substr(open + 1, close - open - 1);
  out.state = line[close + 2];
  std::string_view rest = line.substr(close + 3);
  if (!take_number(rest, out.parent)) return sys_error(EINVAL);
  // Field 4 has just been read. Field 9 is the flags, field 22 the start time (proc(5)).
  for (int field = 5; field < 22; ++field) {
    long long number = 0;
    if (!take_number(rest, number)) return sys_error(EINVAL);
    if (field == 9) out.flags = static_cast<std::uint32_t>(number);
  }
  if (!take_number(rest, out.start_time)) return sys_error(EINVAL);
  return out;
}

Sys<Process> process(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  SHMB_TRY(line, sys::read_file(path.c_str()));
  return parse_stat(line);
}

Sys<bool> exiting(pid_t pid) {
  constexpr std::uint32_t kExiting = 0x4;  // PF_EXITING
  SHMB_TRY(main_thread, process(pid));
  if ((main_thread.flags & kExiting) == 0) return false;
  // The main thread may have ended by itself. Then the other threads decide.
  const std::string folder = "/proc/" + std::to_string(pid) + "/task";
  std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(folder.c_str()), ::closedir);
  if (!directory) return true;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (entry->d_name[0] == '.') continue;
    auto line = sys::read_file((folder + "/" + entry->d_name + "/stat").c_str());
    auto thread = line ? parse_stat(*line) : Sys<Process>(sys_error(ESRCH));
    if (thread && (thread->flags & kExiting) == 0) return false;
  }
  return true;
}

Sys<std::vector<Process>> descendants(pid_t root, std::span<const pid_t> skip) {
  SHMB_TRY(every, all_processes());
  std::vector<Process> below;
  std::vector<pid_t> parents{root};
  for (std::size_t next = 0; next < parents.size(); ++next) {
    for (const Process& one : every) {
      if (one.parent != parents[next] || contains(skip, one.pid) || contains(parents, one.pid)) continue;
      parents.push_back(one.pid);
      below.push_back(one);
    }
  }
  return below;
}

Sys<std::vector<Process>> children(pid_t root, std::span<const pid_t> skip) {
  auto every = all_processes();
  if (!every) return std::unexpected(every.error());
  std::erase_if(*every, [&](const Process& one) { return one.parent != root || contains(skip, one.pid); });
  return every;
}

Sys<void> signal_process(const Process& target, int signal) {
  auto pidfd = sys::pidfd_open(target.pid);
  // The comparison comes after the open: a match proves that the pidfd is the process that was found.
  auto now = process(target.pid);
  if (!now || now->start_time != target.start_time) return sys_error(ESRCH);
  if (pidfd) return sys::pidfd_signal(pidfd->get(), signal);
  if (pidfd.error().value != ENOSYS && pidfd.error().value != EPERM) return std::unexpected(pidfd.error());
  // No pidfd (a seccomp profile): between the comparison and kill(2) the pid could be reused.
  return ::kill(target.pid, signal) == 0 ? Sys<void>() : sys_error(errno);
}

Sys<std::size_t> signal_tree(pid_t root, std::span<const pid_t> skip, std::span<const int> signals) {
  SHMB_TRY(below, descendants(root, skip));
  for (const int signal : signals)
    for (const Process& one : below) (void)signal_process(one, signal);
  return below.size();
}

}  // namespace shmb::spawn
