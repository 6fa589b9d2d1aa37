// SPDX-License-Identifier: Apache-2.0
// See scan.hpp.
#include "tools/host/scan.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <map>
#include <set>

#include "base/sys_host.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "tools/host/removal.hpp"
#include "tools/host/sysv.hpp"
#include "tools/host/words.hpp"

namespace shmb::host {
namespace {

constexpr std::uint64_t kFirstPidNamespace = 0xEFFFFFFC;  // PROC_PID_INIT_INO, include/linux/proc_ns.h
constexpr std::size_t kDeepestFolder = 32;
constexpr std::string_view kDeleted = " (deleted)";
constexpr std::string_view kMemfd = "/memfd:";

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    return std::hash<std::uint64_t>()(key.id * 0x9E3779B97F4A7C15ULL ^ key.space ^ (key.sysv ? 1ULL << 63 : 0));
  }
};

std::string plural(std::size_t number, const char* one, const char* many) {
  return std::to_string(number) + " " + (number == 1 ? one : many);
}

// The kernel writes a new line in a mapping's path as \012 and leaves all other bytes.
std::string mapping_path(std::string_view text) {
  std::string out(text);
  for (std::size_t at = 0; (at = out.find("\\012", at)) != std::string::npos; ++at) out.replace(at, 4, "\n");
  return out;
}

class Scanner {
 public:
  explicit Scanner(const ScanOptions& options) : options_(options) {}

  Result<Inventory> run() {
    auto proc = Proc::open(options_.proc);
    if (!proc) return system_failure(proc.error(), "open " + options_.proc);
    proc_ = std::move(*proc);
    auto pids = proc_.pids();
    if (!pids) return system_failure(pids.error(), "list " + options_.proc);
    out_.now = std::time(nullptr);
    own_mount_ns_ = namespace_of("mnt");
    own_ipc_ns_ = namespace_of("ipc");
    out_.nested = namespace_of("pid") != kFirstPidNamespace;
    find_kernel_devices();
    for (const pid_t pid : *pids)
      if (auto process = proc_.process(pid)) out_.processes.push_back(std::move(*process));
    // This process is alive. So a /proc without processes is another file system, or belongs to another PID namespace.
    if (out_.processes.empty())
      return error(Status::system, options_.proc + " shows no processes: it is not the /proc of this PID namespace");
    read_mounts();
    for (std::size_t i = 0; i < out_.mounts.size(); ++i)
      if (out_.mounts[i].mount.shared_memory) read_files(i);
    read_segments();
    for (std::size_t i = 0; i < out_.processes.size(); ++i) read_holders(i);
    read_meminfo();
    finish();
    return std::move(out_);
  }

 private:
  std::uint64_t namespace_of(const char* kind) {
    auto link = sys::read_link_at(AT_FDCWD, (options_.proc + "/self/ns/" + kind).c_str());
    const std::size_t at = link ? link->find('[') : std::string::npos;
    std::uint64_t number = 0;
    if (at != std::string::npos) std::from_chars(link->data() + at + 1, link->data() + link->size(), number);
    return number;
  }

  // memfds, SysV segments and anonymous shared memory live on one tmpfs inside the kernel that is mounted nowhere.
  void find_kernel_devices() {
    if (auto memfd = sys::memfd_create("shmbroker-probe", false)) {
      if (auto facts = sys::file_stat(memfd->get())) out_.kernel_device = facts->device;
    }
  }

  Object& object(const Key& key, Kind kind) {
    auto [entry, added] = index_.try_emplace(key, out_.objects.size());
    if (added) {
      out_.objects.emplace_back();
      out_.objects.back().key = key;
      out_.objects.back().kind = kind;
    }
    return out_.objects[entry->second];
  }

  // --- mounts ---

  Sys<void> add_mounts(const std::string& mountinfo_of, const std::string& prefix, std::uint64_t ns) {
    SHMB_TRY(text, proc_.text(mountinfo_of));
    const auto all = parse_mountinfo(text);
    for (Mount& mount : memory_mounts(all, prefix, ns)) {
      places_[ns].push_back(mount.point);
      auto [entry, added] = mount_of_.try_emplace(mount.device, out_.mounts.size());
      if (added) {
        out_.mounts.push_back({.mount = std::move(mount)});
        continue;
      }
      Mount& known = out_.mounts[entry->second].mount;
      // The same file system again: better where it can be reached at all, and where programs keep shared memory.
      const bool better = (known.reach.empty() && !mount.reach.empty()) ||
                          (mount.shared_memory && !known.shared_memory && !mount.reach.empty());
      if (better) known = std::move(mount);
    }
    return {};
  }

  void read_mounts() {
    if (!add_mounts("self/mountinfo", options_.proc == "/proc" ? "" : options_.proc + "/self/root", own_mount_ns_))
      out_.blind.push_back("the mounts of this process cannot be read in " + options_.proc + "/self/mountinfo");
    // Any process of a namespace leads into it, and the first one may have ended by now. EINVAL: it is ending.
    std::set<std::uint64_t> done{own_mount_ns_, 0};
    for (const Process& process : out_.processes) {
      if (done.contains(process.mount_ns)) continue;
      auto added =
          add_mounts(std::to_string(process.pid) + "/mountinfo", proc_.path(process.pid, "root"), process.mount_ns);
      if (!added && (is_gone(added.error()) || added.error().value == EINVAL)) continue;
      done.insert(process.mount_ns);
      if (!added) unread_mounts_.emplace(process.mount_ns, added.error().value);
    }
    if (const std::size_t refused = unread_mounts_.size(); refused != 0)
      out_.blind.push_back("the mounts of " + plural(refused, "other mount namespace", "other mount namespaces") +
                           " cannot be read");
    for (MountUse& use : out_.mounts) {
      if (use.mount.reach.empty()) {
        if (use.mount.shared_memory)
          out_.blind.push_back("the file system behind " + use.mount.point +
                               " is covered by another mount: its files cannot be reached");
        continue;
      }
      if (auto facts = sys::file_system_use(use.mount.reach.c_str())) {
        use.size = facts->size;
        use.used = facts->used;
        use.use_known = true;
      }
    }
  }

  // --- files ---

  void read_files(std::size_t index) {
    const Mount& mount = out_.mounts[index].mount;
    if (mount.reach.empty()) return;
    auto directory = sys::open_at(AT_FDCWD, mount.reach.c_str(), O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    if (!directory) {
      out_.blind.push_back("the files on " + mount.reach + " cannot be read: " + errno_text(directory.error().value));
      return;
    }
    walk(*directory, "", index, 0);
  }

  void walk(const Fd& directory, const std::string& prefix, std::size_t index, std::size_t depth) {
    const auto name_of = [&](const std::string& name) {
      return shmb::quoted(out_.mounts[index].mount.reach + "/" + prefix + name);
    };
    auto names = names_in(directory.get());
    if (!names) {
      out_.blind.push_back("the folder " + name_of("") + " cannot be read: " + errno_text(names.error().value));
      return;
    }
    const std::uint64_t device = out_.mounts[index].mount.device;
    for (const std::string& name : *names) {
      auto facts = sys::file_stat_at(directory.get(), name.c_str(), false);
      if (!facts && facts.error().value != ENOENT)
        out_.blind.push_back(name_of(name) + " cannot be looked at: " + errno_text(facts.error().value));
      if (!facts || facts->device != device) continue;  // gone, or another file system mounted there
      if (facts->type == sys::FileType::directory) {
        if (is_aside_folder(name)) out_.folders_aside.push_back({index, prefix + name});
        if (depth == kDeepestFolder) {
          out_.blind.push_back("the folder " + name_of(name) + " is more than " + std::to_string(kDeepestFolder) +
                               " levels deep: what is in it is not listed");
          continue;
        }
        auto inner = sys::open_at(directory.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK);
        if (inner) walk(*inner, prefix + name + "/", index, depth + 1);
        else if (inner.error().value != ENOENT)
          out_.blind.push_back("the folder " + name_of(name) + " cannot be read: " + errno_text(inner.error().value));
      } else if (facts->type == sys::FileType::regular) {
        add_file(prefix + name, *facts, index);
      }
    }
  }

  void add_file(const std::string& name, const sys::FileStat& facts, std::size_t index) {
    const Mount& mount = out_.mounts[index].mount;
    const bool is_huge = mount.type == "hugetlbfs";
    Object& it = object({facts.device, facts.inode}, is_huge ? Kind::hugetlb : Kind::file);
    it.names.push_back(name);
    if (it.names.size() > 1) return;
    const std::size_t slash = name.rfind('/');
    const std::string_view last = std::string_view(name).substr(slash == std::string::npos ? 0 : slash + 1);
    if (!is_huge && last.starts_with("sem.")) it.kind = Kind::semaphore;
    it.name = name;
    it.place = mount.mount_ns == own_mount_ns_ ? mount.point : mount.reach;
    it.mount = index;
    it.reach = mount.reach + "/" + name;
    take(it, facts);
  }

  static void take(Object& it, const sys::FileStat& facts) {
    it.size = facts.size;
    it.touched = facts.touched;
    it.touched_known = true;
    it.size_is_least = false;
    it.links = facts.links;
    it.uid = facts.uid;
    it.mode = facts.mode;
    it.changed = std::max(facts.changed, facts.modified);
  }

  // --- SysV ---

  void read_segments() {
    if (auto text = proc_.text("sysvipc/shm")) add_segments(*text, own_ipc_ns_, "SysV");
    else if (text.error().value != ENOENT)  // a kernel without SysV IPC has no such file
      out_.blind.push_back("the SysV segments cannot be read: " + errno_text(text.error().value));
    // Any process of a namespace leads into it, and the first one may have ended by now.
    std::set<std::uint64_t> done{own_ipc_ns_, 0};
    std::size_t refused = 0;
    for (const Process& process : out_.processes) {
      if (done.contains(process.ipc_ns)) continue;
      Sys<std::string> text = sys_error(EAGAIN);
      auto entered = in_ipc_namespace(proc_.path(process.pid, "ns/ipc"), [&] { text = proc_.text("sysvipc/shm"); });
      if (!entered && is_gone(entered.error())) continue;
      done.insert(process.ipc_ns);
      if (entered && text) add_segments(*text, process.ipc_ns, "SysV of " + std::to_string(process.pid));
      else ++refused;
    }
    if (refused != 0)
      out_.blind.push_back("the SysV segments of " + plural(refused, "other IPC namespace", "other IPC namespaces") +
                           " cannot be read");
  }

  void add_segments(const std::string& text, std::uint64_t ns, const std::string& place) {
    for (const Segment& segment : parse_sysv(text)) {
      Object& it = object({ns, static_cast<std::uint64_t>(segment.shmid), true}, Kind::sysv);
      it.name = "shmid " + std::to_string(segment.shmid);
      it.place = place;
      it.size = segment.size;
      it.touched = segment.resident + segment.swapped;
      it.touched_known = true;
      it.resident = segment.resident;
      it.resident_known = true;
      it.uid = segment.uid;
      it.mode = segment.mode & 0777;
      it.changed = segment.changed;
      it.creator = segment.creator;
      it.attached = segment.attached;
      it.ipc_namespace = ns;
    }
  }

  // --- holders ---

  bool is_memory(std::uint64_t device) const { return device == out_.kernel_device || mount_of_.contains(device); }

  static Holder& holder(Object& it, std::size_t process) {
    // Processes are read one after the other, so an object's last holder is the only candidate.
    if (it.holders.empty() || it.holders.back().process != process) it.holders.push_back({.process = process});
    return it.holders.back();
  }

  void read_holders(std::size_t index) {
    Process& process = out_.processes[index];
    auto mapped = proc_.mappings(process.pid, [&](const Mapping& mapping) { add_mapping(index, mapping); });
    auto opened = proc_.descriptors(process.pid, [&](const Descriptor& it) { add_descriptor(index, it); });
    process.seen = (mapped || is_gone(mapped.error())) && (opened || is_gone(opened.error()));
    if (const auto unread = unread_mounts_.find(process.mount_ns); unread != unread_mounts_.end())
      process.missed.push_back("the mounts of process " + std::to_string(process.pid) + " cannot be read: " +
                               errno_text(unread->second) + ". Files on them that it holds may not be listed");
    if (process.seen) return;
    ++out_.unseen_processes;
    process.denied = !mapped && !is_gone(mapped.error()) ? mapped.error().value : opened.error().value;
  }

  void add_mapping(std::size_t index, const Mapping& mapping) {
    if (mapping.inode == 0) return;
    const bool named_memory = mapping.path.starts_with(kMemfd) || mapping.path.starts_with("/anon_hugepage") ||
                              mapping.path.starts_with("/SYSV");
    if (!named_memory && !is_memory(mapping.device)) return;
    Key key{mapping.device, mapping.inode};
    Kind kind = Kind::anonymous;
    if (mapping.path.starts_with("/SYSV")) {
      key = {out_.processes[index].ipc_ns, mapping.inode, true};
      kind = Kind::sysv;
    } else if (mapping.path.starts_with(kMemfd)) {
      kind = Kind::memfd;
    } else if (mount_of_.contains(mapping.device)) {
      kind = Kind::deleted;
      // A file with a name, on a tmpfs that is not for shared memory, such as /tmp, is not listed.
      const bool lost_its_name = mapping.path.ends_with(kDeleted);
      if (!lost_its_name && !index_.contains(key)) return;
    }
    Object& it = object(key, kind);
    if (it.name.empty()) name_it(it, mapping_path(mapping.path), index);
    if (!it.touched_known) {
      const std::string link = "map_files/" + address_range(mapping);
      if (auto facts = sys::file_stat_at(AT_FDCWD, proc_.path(out_.processes[index].pid, link).c_str(), true);
          facts && facts->inode == mapping.inode) {
        take(it, *facts);
        it.through = proc_.path(out_.processes[index].pid, link);
      } else {
        it.size = std::max(it.size, mapping.offset + (mapping.end - mapping.start));
        it.size_is_least = true;
      }
    }
    holder(it, index).mapped += mapping.end - mapping.start;
  }

  static std::string address_range(const Mapping& mapping) {
    char text[40];
    std::snprintf(text, sizeof text, "%lx-%lx", static_cast<unsigned long>(mapping.start),
                  static_cast<unsigned long>(mapping.end));
    return text;
  }

  // A descriptor's link costs one call, the file behind it another. The second is made only if the link says shared
  // memory. stat(2) of any other file may hang, for example on a dead network file system.
  void add_descriptor(std::size_t index, const Descriptor& descriptor) {
    const Process& process = out_.processes[index];
    const bool is_memfd = descriptor.link.starts_with(kMemfd);
    if (!is_memfd && !is_in_memory_mount(process, descriptor.link)) return;
    auto facts = sys::file_stat_at(AT_FDCWD, proc_.path(process.pid, "fd/" + descriptor.number).c_str(), true);
    // EACCES comes from a FUSE file system below a memory file system. Its files are no shared memory.
    if (!facts && !is_gone(facts.error()) && facts.error().value != EACCES) {
      out_.processes[index].missed.push_back("descriptor " + descriptor.number + " of process " +
                                             std::to_string(process.pid) +
                                             " cannot be looked at: " + errno_text(facts.error().value));
      out_.blind.push_back(out_.processes[index].missed.back());
    }
    if (!facts || facts->type != sys::FileType::regular) return;
    const Key key{facts->device, facts->inode};
    Kind kind = Kind::memfd;
    if (!is_memfd) {
      if (!is_memory(facts->device)) return;
      if (facts->links != 0 && !index_.contains(key)) return;
      kind = Kind::deleted;
    }
    Object& it = object(key, kind);
    if (it.name.empty()) name_it(it, descriptor.link, index);
    if (!it.touched_known) take(it, *facts);
    if (it.names.empty()) it.through = proc_.path(process.pid, "fd/" + descriptor.number);
    ++holder(it, index).descriptors;
  }

  bool is_in_memory_mount(const Process& process, const std::string& link) const {
    if (!link.starts_with('/')) return false;
    const auto places = places_.find(process.mount_ns);
    if (places == places_.end()) return link.starts_with("/dev/shm/");
    return std::ranges::any_of(places->second, [&](const std::string& point) {
      return link.starts_with(point) &&
             (point.ends_with('/') || link.size() == point.size() || link[point.size()] == '/');
    });
  }

  void name_it(Object& it, std::string path, std::size_t index) {
    const bool lost = path.ends_with(kDeleted);
    if (lost) path.resize(path.size() - kDeleted.size());
    switch (it.kind) {
      case Kind::memfd:
        it.name = path.substr(std::min(kMemfd.size(), path.size()));
        it.place = "memfd";
        if (it.name.starts_with("shmb:")) it.kind = Kind::region, it.place = "broker";
        return;
      case Kind::sysv:
        it.name = "shmid " + std::to_string(it.key.id);
        it.place = out_.processes[index].ipc_ns == own_ipc_ns_ ? "SysV"
                                                               : "SysV of " + std::to_string(out_.processes[index].pid);
        it.attached = 1;
        return;
      case Kind::deleted: {
        const std::size_t slash = path.rfind('/');
        it.name = path.substr(slash == std::string::npos ? 0 : slash + 1);
        it.place = slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
        // The path is that of its holder. A tmpfs that this process does not have is reached by the holder's root.
        if (const auto at = mount_of_.find(it.key.space); at != mount_of_.end()) {
          const Mount& mount = out_.mounts[at->second].mount;
          const bool own = mount.mount_ns == own_mount_ns_ && !mount.reach.empty();
          if (!own) it.place.insert(0, proc_.path(out_.processes[index].pid, "root"));
        }
        return;
      }
      default:
        it.name = path == "/dev/zero" ? "inode " + std::to_string(it.key.id) : path;
        it.place = "anonymous";
    }
  }

  // --- the end ---

  void read_meminfo() {
    auto text = proc_.text("meminfo");
    if (!text) return;
    const std::size_t at = text->find("\nShmem:");
    if (at == std::string::npos) return;
    const std::size_t digit = text->find_first_of("0123456789", at);
    std::uint64_t kib = 0;
    if (digit != std::string::npos) std::from_chars(text->data() + digit, text->data() + text->size(), kib);
    out_.shmem = kib * 1024;
  }

  void finish() {
    for (const Object& it : out_.objects)
      if (!it.names.empty()) {
        out_.mounts[it.mount].listed += it.touched;
      } else if (it.touched_known && it.links == 0) {  // without a name it still uses space of its file system
        if (const auto at = mount_of_.find(it.key.space); at != mount_of_.end())
          out_.mounts[at->second].listed += it.touched;
      }
    for (MountUse& use : out_.mounts)
      if (use.use_known && use.size == 0) {
        use.used = use.listed;
        use.use_known = use.mount.shared_memory;  // files on other mounts are not listed
      }
    tell_unseen_processes();
    if (out_.nested)
      out_.blind.push_back("processes outside this PID namespace (of the host, of other containers) do not show here");
    if (auto own = proc_.text("self/mountinfo"); own && hides_processes(*own)) {
      out_.hidden = true;
      out_.blind.push_back(options_.proc + " is mounted with hidepid: processes of other users do not show here");
    }
  }

  // One sentence for each reason, with the first of the processes.
  void tell_unseen_processes() {
    struct Group {
      std::size_t count = 0;
      std::string first;
    };
    enum Reason { other_users, protected_ones };
    std::map<std::pair<Reason, int>, Group> groups;
    const std::uint32_t self = ::geteuid();
    for (const Process& process : out_.processes) {
      if (process.seen) continue;
      const bool foreign = self != 0 && process.uid != self;
      Group& group = groups[{foreign ? other_users : protected_ones, process.denied}];
      if (++group.count == 1)
        group.first = std::to_string(process.pid) + (process.program.empty() ? "" : " " + process.program);
    }
    for (const auto& [key, group] : groups) {
      const auto [reason, error] = key;
      const bool one = group.count == 1, denied = error == EACCES || error == EPERM;
      std::string why;
      if (reason == other_users) why = one ? "it belongs to another user" : "they belong to other users";
      else if (!denied) why = "a read failed";
      else if (self == 0)
        why = "the kernel denies it even to this root, for want of CAP_SYS_PTRACE in their user namespace";
      else why = "the kernel protects a process that is not dumpable, has more rights or is of another user namespace";
      out_.blind.push_back(
          (one ? "what process " + group.first + " holds"
               : "what " + std::to_string(group.count) + " processes hold (the first is " + group.first + ")") +
          ": " + why + " (" + errno_text(error) + ")");
    }
  }

  // Nothing is hidden from root with CAP_SYS_PTRACE, nor from members of the mount's group (gid=).
  bool hides_processes(std::string_view mountinfo) const {
    std::string options;
    for (const Mount& mount : parse_mountinfo(mountinfo))
      if (mount.type == "proc" && mount.point == options_.proc) options = mount.options;  // the last one covers
    const auto value_of = [&](std::string_view key) {
      for (std::string_view rest = options; !rest.empty();) {
        std::string_view word = next_word(rest, ' ');
        while (!word.empty())
          if (std::string_view one = next_word(word, ','); one.starts_with(key)) return one.substr(key.size());
      }
      return std::string_view();
    };
    const std::string_view hides = value_of("hidepid=");
    if (hides.empty() || hides == "0" || hides == "off") return false;
    if (may_trace()) return false;
    const auto group = number<std::uint32_t>(value_of("gid="));
    return value_of("gid=").empty() || !::group_member(group);
  }

  bool may_trace() const {
    auto status = proc_.text("self/status");
    const std::size_t at = status ? status->find("\nCapEff:") : std::string::npos;
    if (at == std::string::npos) return ::geteuid() == 0;
    std::string_view hex = std::string_view(*status).substr(at + 8);
    hex.remove_prefix(std::min(hex.find_first_not_of("\t "), hex.size()));
    return (number<std::uint64_t>(hex, 16) >> CAP_SYS_PTRACE & 1) != 0;
  }

  const ScanOptions& options_;
  Proc proc_;
  Inventory out_;
  std::unordered_map<Key, std::size_t, KeyHash> index_;
  std::unordered_map<std::uint64_t, std::size_t> mount_of_;             // by device
  std::unordered_map<std::uint64_t, std::vector<std::string>> places_;  // tmpfs mount points by mount namespace
  std::map<std::uint64_t, int> unread_mounts_;  // mount namespaces whose mounts were refused, and the errno
  std::uint64_t own_mount_ns_ = 0, own_ipc_ns_ = 0;
};

}  // namespace

const Process* Inventory::find(pid_t pid) const {
  const auto found = std::ranges::find(processes, pid, &Process::pid);
  return found == processes.end() ? nullptr : &*found;
}

Result<Inventory> scan(const ScanOptions& options) { return Scanner(options).run(); }

}  // namespace shmb::host
