// SPDX-License-Identifier: Apache-2.0
// See process.hpp. In a scan of thousands of processes the kernel's writing of maps takes most of the time. So this
// side cuts lines in place and reuses buffers.
#include "tools/host/process.hpp"

#include <fcntl.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/result.hpp"
#include "base/sys_file.hpp"
#include "base/sys_host.hpp"
#include "tools/host/words.hpp"

namespace shmb::host {
namespace {

struct DirectoryEntry {  // linux_dirent64, getdents(2)
  std::uint64_t inode;
  std::int64_t offset;
  unsigned short length;
  unsigned char type;
  char name[1];
};

Sys<void> each_name(int directory, const std::function<void(const char*)>& each) {
  alignas(DirectoryEntry) std::array<std::byte, 32768> room;
  for (;;) {
    SHMB_TRY(filled, sys::read_directory(directory, room));
    if (filled == 0) return {};
    for (std::size_t at = 0; at < filled;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(room.data() + at);
      const char* name = reinterpret_cast<const char*>(entry) + offsetof(DirectoryEntry, name);
      if (std::strcmp(name, ".") != 0 && std::strcmp(name, "..") != 0) each(name);
      at += entry->length;
    }
  }
}

Sys<Fd> open_directory(const std::string& path) { return sys::open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY); }

Sys<void> read_whole(const std::string& path, std::string& out) {
  SHMB_TRY(file, sys::open_at(AT_FDCWD, path.c_str(), O_RDONLY));
  std::size_t size = 0;
  if (out.size() < 65536) out.resize(65536);
  for (;;) {
    if (size == out.size()) out.resize(out.size() * 2);
    SHMB_TRY(got, sys::read(file.get(), std::as_writable_bytes(std::span(out).subspan(size))));
    if (got == 0) break;
    size += got;
  }
  out.resize(size);
  return {};
}

// "mnt:[4026531840]"
std::uint64_t namespace_of(const std::string& process, const char* kind) {
  auto link = sys::read_link_at(AT_FDCWD, (process + "/ns/" + kind).c_str());
  if (!link) return 0;
  const std::size_t at = link->find('[');
  return at == std::string::npos ? 0 : number(std::string_view(*link).substr(at + 1));
}

// The first thread of a process may end before the others. Its own maps and descriptors then read as empty, although
// the process lives. Such a process is read through its other threads.
bool first_thread_ended(std::string_view stat) { return stat.substr(0, 1) == "Z" || stat.substr(0, 1) == "X"; }

}  // namespace

bool is_gone(Errno why) { return why.value == ENOENT || why.value == ESRCH; }

Sys<std::vector<std::string>> names_in(int directory) {
  std::vector<std::string> names;
  if (auto read = each_name(directory, [&](const char* name) { names.emplace_back(name); }); !read)
    return std::unexpected(read.error());
  return names;
}

bool parse_mapping(std::string_view line, Mapping& out) {
  std::string_view range = next_word(line);
  const std::string_view start = next_word(range, '-');
  out.permissions = next_word(line);
  if (range.empty() || out.permissions.size() != 4) return false;
  out.offset = number(next_word(line), 16);
  std::string_view device = next_word(line);
  const std::string_view major_number = next_word(device, ':');
  if (device.empty()) return false;
  out.device = makedev(number(major_number, 16), number(device, 16));
  out.inode = number(next_word(line));
  out.start = number(start, 16);
  out.end = number(range, 16);
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  out.path = line;
  return out.end > out.start;
}

Sys<Proc> Proc::open(const std::string& root) {
  SHMB_TRY_VOID(open_directory(root));
  Proc proc;
  proc.root_ = root;
  return proc;
}

Sys<std::vector<pid_t>> Proc::pids() const {
  SHMB_TRY(directory, open_directory(root_));
  std::vector<pid_t> pids;
  SHMB_TRY_VOID(each_name(directory.get(), [&](const char* name) {
    pid_t pid = 0;
    const char* end = name + std::strlen(name);
    if (auto [stop, bad] = std::from_chars(name, end, pid); bad == std::errc() && stop == end) pids.push_back(pid);
  }));
  return pids;
}

Sys<Process> Proc::process(pid_t pid) const {
  const std::string base = root_ + "/" + std::to_string(pid);
  if (auto read = read_whole(base + "/stat", buffer_); !read) {
    if (is_gone(read.error())) return std::unexpected(read.error());
    Process out{.pid = pid, .denied = read.error().value};  // hidepid=1, a security module
    if (auto facts = sys::file_stat_at(AT_FDCWD, base.c_str(), true)) out.uid = facts->uid;
    return out;
  }
  // Field 2 is the program's name in brackets, and the name may hold brackets and blanks: the last one ends it.
  const std::size_t open = buffer_.find('('), close = buffer_.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return sys_error(EPROTO);
  Process out;
  out.pid = pid;
  out.program = buffer_.substr(open + 1, close - open - 1);
  std::string_view rest = std::string_view(buffer_).substr(std::min(close + 2, buffer_.size()));
  for (int field = 3; field < 22; ++field) next_word(rest);
  out.start = number(next_word(rest));
  SHMB_TRY(facts, sys::file_stat_at(AT_FDCWD, base.c_str(), true));
  out.uid = facts.uid;
  out.mount_ns = namespace_of(base, "mnt");
  out.ipc_ns = namespace_of(base, "ipc");
  out.pid_ns = namespace_of(base, "pid");
  return out;
}

namespace {

// The folders to read: the process' own, or its threads' where the first one has ended.
std::vector<std::string> places_of(const std::string& base, const std::string& stat) {
  const std::size_t close = stat.rfind(')');
  if (close == std::string::npos || close + 2 >= stat.size() ||
      !first_thread_ended(std::string_view(stat).substr(close + 2)))
    return {base};
  auto tasks = open_directory(base + "/task");
  if (!tasks) return {base};
  auto names = names_in(tasks->get());
  if (!names) return {base};
  std::vector<std::string> places;
  for (const std::string& name : *names) places.push_back(base + "/task/" + name);
  return places;
}

}  // namespace

Sys<void> Proc::mappings(pid_t pid, const std::function<void(const Mapping&)>& each) const {
  const std::string base = root_ + "/" + std::to_string(pid);
  std::string stat;
  SHMB_TRY_VOID(read_whole(base + "/stat", stat));
  for (const std::string& place : places_of(base, stat)) {
    if (auto read = read_whole(place + "/maps", buffer_); !read) {
      if (is_gone(read.error())) continue;
      return std::unexpected(read.error());
    }
    Mapping mapping;
    for (std::string_view rest = buffer_; !rest.empty();)
      if (parse_mapping(next_word(rest, '\n'), mapping)) each(mapping);
    if (!buffer_.empty()) return {};  // threads share one address space
  }
  return {};
}

Sys<void> Proc::descriptors(pid_t pid, const std::function<void(const Descriptor&)>& each) const {
  const std::string base = root_ + "/" + std::to_string(pid);
  std::string stat;
  SHMB_TRY_VOID(read_whole(base + "/stat", stat));
  for (const std::string& place : places_of(base, stat)) {
    auto directory = open_directory(place + "/fd");
    if (!directory) {
      if (is_gone(directory.error())) continue;
      return std::unexpected(directory.error());
    }
    Descriptor descriptor;
    Sys<void> links;
    auto read = each_name(directory->get(), [&](const char* name) {
      auto link = sys::read_link_at(directory->get(), name);
      if (!link) {
        // Closed meanwhile; or the folder may be listed but its links may not be read, which are two rights.
        if (!is_gone(link.error())) links = std::unexpected(link.error());
        return;
      }
      descriptor.number = name;
      descriptor.link = std::move(*link);
      each(descriptor);
    });
    if (!read && !is_gone(read.error())) return std::unexpected(read.error());
    if (!links) return links;
  }
  return {};
}

Sys<std::string> Proc::text(const std::string& path) const {
  std::string out;
  SHMB_TRY_VOID(read_whole(root_ + "/" + path, out));
  return out;
}

}  // namespace shmb::host
