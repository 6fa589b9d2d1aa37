// SPDX-License-Identifier: Apache-2.0
// See job_cgroup.hpp.
#include "spawn/ranks/job_cgroup.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "client/region/headroom.hpp"

namespace shmb::spawn {
namespace {

bool write_word(const std::string& path, std::string_view word) {
  const Fd file = Fd::adopt(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), word.data(), word.size()) == static_cast<ssize_t>(word.size());
}

// systemd wants no cgroups of others below a unit of its own, unless that is delegated: then it has marked the unit.
bool delegated(const std::string& unit) {
  char mark[8];
  for (const char* name : {"trusted.delegate", "user.delegate"})
    if (::getxattr(unit.c_str(), name, mark, sizeof mark) == 1 && mark[0] == '1') return true;
  return false;
}

bool may_divide(std::string folder) {
  for (; folder.size() > 1; folder.erase(folder.rfind('/')))
    if (folder.ends_with(".service") || folder.ends_with(".scope")) return delegated(folder);
  return true;
}

// cgroups(7): "0::/path". The name of a job's folder is its own, so the path above it does not matter.
bool is_in(pid_t process, const std::string& folder) {
  const auto text = sys::read_file(("/proc/" + std::to_string(process) + "/cgroup").c_str());
  const std::string name = folder.substr(folder.rfind('/'));
  return text && (text->find(name + "\n") != text->npos || text->find(name + "/") != text->npos);
}

// A folder of cgroups has no files to remove first, only further folders.
template <class Chosen>
void remove_folders(const std::string& in, Chosen&& chosen) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(in.c_str()), ::closedir);
  if (!directory) return;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (entry->d_type != DT_DIR || entry->d_name[0] == '.' || !chosen(std::string_view(entry->d_name))) continue;
    const std::string folder = in + "/" + entry->d_name;
    remove_folders(folder, chosen);
    (void)::rmdir(folder.c_str());
  }
}

constexpr std::string_view kPrefix = "shmbroker-";

// Whether it is the name of a job's folder, and the job's guard has ended.
bool is_left(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  pid_t guard = 0;
  const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), guard);
  if (problem != std::errc() || guard <= 0 || end == name.data() + name.size() || *end != '-') return false;
  return ::kill(guard, 0) != 0 && errno == ESRCH;
}

}  // namespace

JobCgroup JobCgroup::make(const std::string& root) {
  JobCgroup made;
  made.above_ = client::own_cgroup(root);
  if (made.above_.empty() || !may_divide(made.above_)) return {};
  // Guard and supervisor of an earlier job may have been killed both. The kernel keeps a folder that a process is in,
  // so no rank loses its own. The folder of a guard that lives is left alone: it may be about to start its first rank.
  // The number of a guard in another pid namespace says nothing. If its folder goes just then, its ranks run without
  // one.
  remove_folders(made.above_, is_left);
  // The number of a process that has ended may come again while the folder of its job is still there.
  made.folder_ =
      made.above_ + "/" + std::string(kPrefix) + std::to_string(::getpid()) + "-" + std::to_string(sys::now_boottime());
  if (::mkdir(made.folder_.c_str(), 0755) != 0) return {};
  made.events_ = Fd::adopt(::open((made.folder_ + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  // Before Linux 5.14 there is no cgroup.kill.
  if (made.events_ && ::access((made.folder_ + "/cgroup.kill").c_str(), W_OK) == 0) return made;
  made.remove();
  return {};
}

pid_t JobCgroup::fork(bool executes) const {
  if (*this && executes) {
    const Fd inside = Fd::adopt(::open(folder_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    clone_args birth{};
    birth.flags = CLONE_INTO_CGROUP;  // 5.7
    birth.exit_signal = SIGCHLD;
    birth.cgroup = static_cast<std::uint64_t>(inside.get());
    if (inside)
      if (const long pid = ::syscall(SYS_clone3, &birth, sizeof birth); pid >= 0) return static_cast<pid_t>(pid);
  }
  const pid_t pid = ::fork();
  if (pid == 0 && *this) (void)write_word(folder_ + "/cgroup.procs", "0");
  return pid;
}

void JobCgroup::spare(std::span<const pid_t> processes) const {
  if (!*this) return;
  for (const pid_t one : processes)
    if (is_in(one, folder_)) (void)write_word(above_ + "/cgroup.procs", std::to_string(one));
}

void JobCgroup::kill() const {
  if (*this) (void)write_word(folder_ + "/cgroup.kill", "1");
}

bool JobCgroup::populated() const {
  if (!*this) return false;
  char text[256];
  const ssize_t size = ::pread(events_.get(), text, sizeof text, 0);
  // ENODEV: somebody has removed the folder, which the kernel allows once nothing is in it.
  return size > 0 &&
         std::string_view(text, static_cast<std::size_t>(size)).find("populated 1") != std::string_view::npos;
}

void JobCgroup::remove() {
  events_.reset();
  if (folder_.empty()) return;
  remove_folders(folder_, [](std::string_view) { return true; });
  (void)::rmdir(folder_.c_str());
}

}  // namespace shmb::spawn
