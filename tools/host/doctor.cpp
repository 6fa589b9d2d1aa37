// SPDX-License-Identifier: Apache-2.0
// See doctor.hpp. Each function is one line of the report.
#include "tools/host/doctor.hpp"

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "client/headroom.hpp"

namespace shmb::host {
namespace {

constexpr std::uint64_t kDockerShm = 64ULL << 20;  // the default of Docker and Podman
constexpr std::uint64_t kEnoughFiles = 65'536;
constexpr std::uint64_t kFullPercent = 80;
constexpr std::uint64_t kFirstUser = 1000;  // SYS_UID_MAX of login.defs(5), plus 1

std::string trimmed(std::string text) {
  text.erase(std::find_if(text.rbegin(), text.rend(), [](unsigned char c) { return std::isspace(c) == 0; }).base(),
             text.end());
  return text;
}

class Host {
 public:
  explicit Host(std::string root) : root_(std::move(root)) {}
  std::optional<std::string> text(const std::string& path) const {
    auto read = sys::read_file((root_ + path).c_str());
    if (!read) return std::nullopt;
    return trimmed(std::move(*read));
  }
  std::optional<std::uint64_t> number(const std::string& path) const {
    auto found = text(path);
    if (!found) return std::nullopt;
    std::uint64_t value = 0;
    if (std::from_chars(found->data(), found->data() + found->size(), value).ec != std::errc()) return std::nullopt;
    return value;
  }
  bool has(const std::string& path) const { return sys::path_facts((root_ + path).c_str(), true).has_value(); }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

const MountUse* dev_shm(const Inventory& inventory) {
  for (const MountUse& use : inventory.mounts)
    if (use.mount.type == "tmpfs" && use.mount.point == "/dev/shm" && use.mount.reach.ends_with("/dev/shm") &&
        !use.mount.reach.starts_with("/proc/"))
      return &use;
  return nullptr;
}

struct Lost {
  std::uint64_t bytes = 0;
  std::size_t objects = 0;
};
Lost lost_in(const Inventory& inventory) {
  Lost out;
  for (const Object& it : inventory.objects)
    if (it.verdict == Verdict::orphan || it.verdict == Verdict::stale) {
      out.bytes += it.touched;
      ++out.objects;
    }
  return out;
}

Check check_dev_shm(const Inventory& inventory) {
  const MountUse* use = dev_shm(inventory);
  if (use == nullptr)
    return {"/dev/shm", Level::error, "is no tmpfs: shm_open(3) and sem_open(3) fail or use a disk",
            "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"};
  if (use->mount.read_only)
    return {"/dev/shm", Level::error, "is mounted read-only: shm_open(3) fails", "mount -o remount,rw /dev/shm"};
  std::string text = use->size == 0 ? format_size(use->used) + " used, no limit"
                                    : format_size(use->used) + " of " + format_size(use->size) + " used";
  const Lost lost = lost_in(inventory);
  const bool full = use->size != 0 && use->used >= use->size / 100 * kFullPercent;
  if (lost.objects != 0)
    text += "; " + format_size(lost.bytes) + " in " + std::to_string(lost.objects) + " objects look lost";
  if (lost.objects != 0) return {"/dev/shm", Level::warning, text, "shmbroker leaks"};
  if (full) return {"/dev/shm", Level::warning, text, "shmbroker list --all -S size"};
  return {"/dev/shm", Level::ok, text, ""};
}

Check check_container(const Host& host, const Inventory& inventory) {
  std::string kind;
  if (host.has("/.dockerenv")) kind = "Docker";
  else if (host.has("/run/.containerenv")) kind = "Podman";
  else if (host.has("/.singularity.d")) kind = "Apptainer";
  else if (host.has("/var/run/secrets/kubernetes.io")) kind = "Kubernetes";
  else if (inventory.nested) kind = "a PID namespace of its own";
  if (kind.empty()) return {"container", Level::ok, "none", ""};
  const MountUse* use = dev_shm(inventory);
  if (use != nullptr && use->size != 0 && use->size <= kDockerShm)
    return {"container", Level::warning,
            kind + ": /dev/shm has " + format_size(use->size) +
                ", which bounds programs that use shm_open(3); regions of shmbroker are not bounded by it",
            "docker run --shm-size=8g, or an emptyDir with medium: Memory on /dev/shm"};
  return {"container", Level::info, kind, ""};
}

Check check_remove_ipc(const Host& host, const Probes& probes) {
  if (!host.has("/run/systemd/seats")) return {"RemoveIPC", Level::ok, "no logind runs", ""};
  bool removes = true;  // the default of logind.conf(5)
  for (const char* file : {"/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"}) {
    auto text = host.text(file);
    if (!text) continue;
    for (std::size_t at = 0; at < text->size(); at = std::min(text->find('\n', at), text->size() - 1) + 1) {
      const std::string_view line = std::string_view(*text).substr(at);
      if (!line.starts_with("RemoveIPC=")) continue;
      const std::string_view value =
          line.substr(10, line.find('\n') == std::string_view::npos ? line.npos : line.find('\n') - 10);
      removes = !(value.starts_with("no") || value.starts_with("false") || value.starts_with("0") ||
                  value.starts_with("off"));
    }
  }
  if (!removes) return {"RemoveIPC", Level::ok, "logind leaves objects of users without a session alone", ""};
  if (probes.uid < kFirstUser)
    return {
        "RemoveIPC", Level::info,
        "logind removes POSIX and SysV shared memory of each ordinary user whose last session ends; users below uid " +
            std::to_string(kFirstUser) + " are spared",
        ""};
  return {"RemoveIPC", Level::warning,
          "logind removes your POSIX and SysV shared memory when your last session ends, also under a running job",
          "RemoveIPC=no in /etc/systemd/logind.conf, or loginctl enable-linger; regions of shmbroker are not touched"};
}

Check check_memlock(const Probes& probes) {
  if (probes.locked_memory.unlimited) return {"memlock", Level::ok, "unlimited", ""};
  return {"memlock", Level::info,
          format_size(probes.locked_memory.soft) + " may be locked: pinning more for a GPU or for RDMA fails",
          "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit"};
}

Check check_open_files(const Probes& probes) {
  const std::string text =
      "soft limit " + std::to_string(probes.open_files.soft) + ", hard " + std::to_string(probes.open_files.hard);
  if (probes.open_files.soft >= kEnoughFiles) return {"open files", Level::ok, text, ""};
  const bool bounded = probes.open_files.hard < kEnoughFiles;
  if (probes.open_files.soft == probes.open_files.hard && probes.open_files.soft >= 16'384)
    return {"open files", Level::info, text,
            "a higher hard limit: /etc/security/limits.conf or LimitNOFILE= of the unit"};
  return {"open files", Level::warning, text + ": torch's file_descriptor sharing fails near as many tensors",
          "ulimit -n " + std::to_string(bounded ? probes.open_files.hard : kEnoughFiles)};
}

std::string chosen(const std::string& text) {  // "always [never] deny" -> "never"
  const std::size_t open = text.find('['), close = text.find(']');
  return open == std::string::npos || close == std::string::npos ? text : text.substr(open + 1, close - open - 1);
}

Check check_huge_pages(const Host& host) {
  const auto shmem = host.text("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const auto reserved = host.number("/proc/sys/vm/nr_hugepages");
  if (!shmem)
    return {"huge pages", Level::info, "the kernel has no transparent huge pages: large regions use 4 KiB pages", ""};
  const std::string policy = chosen(*shmem);
  std::string text = "for shared memory: " + policy + "; " + std::to_string(reserved.value_or(0)) + " reserved";
  if (policy == "deny")
    return {"huge pages", Level::warning, text + "; regions cannot have huge pages either",
            "echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled"};
  if (policy == "never")
    return {"huge pages", Level::info,
            text + "; regions of shmbroker get them by MADV_COLLAPSE (Linux 6.1) all the same",
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"};
  return {"huge pages", Level::ok, text, ""};
}

Check check_overcommit(const Host& host) {
  const auto mode = host.number("/proc/sys/vm/overcommit_memory");
  if (!mode) return {"overcommit", Level::unknown, "vm.overcommit_memory cannot be read", ""};
  if (*mode == 2)
    return {"overcommit", Level::warning,
            "vm.overcommit_memory=2: shared memory that was not populated ends its user with SIGBUS beyond the commit "
            "limit; shmbroker populates or refuses",
            "sysctl vm.overcommit_memory=0"};
  return {"overcommit", Level::ok, "vm.overcommit_memory=" + std::to_string(*mode), ""};
}

// "shmem 12345" of memory.stat, in bytes.
std::optional<std::uint64_t> shmem_of(const Host& host, const std::string& cgroup) {
  std::string path = cgroup;
  if (!host.root().empty() && path.starts_with(host.root())) path = path.substr(host.root().size());
  auto text = host.text(path + "/memory.stat");
  if (!text) return std::nullopt;
  const std::string lines = "\n" + *text;
  for (const char* key : {"\nshmem ", "\ntotal_shmem "}) {
    const std::size_t at = lines.find(key);
    if (at == std::string::npos) continue;
    std::uint64_t value = 0;
    const char* digits = lines.data() + at + std::strlen(key);
    if (std::from_chars(digits, lines.data() + lines.size(), value).ec == std::errc()) return value;
  }
  return std::nullopt;
}

Check check_cgroup(const Host& host) {
  const auto rooms = client::cgroup_rooms(host.root());
  if (rooms.empty()) return {"cgroup", Level::ok, "no memory limit above this process", ""};
  const auto tightest = std::ranges::min_element(rooms, {}, &client::CgroupRoom::free);
  std::string text =
      format_size(tightest->usage) + " of " + format_size(tightest->limit) + " used in " + tightest->path;
  if (const auto shmem = shmem_of(host, tightest->path)) text += ", " + format_size(*shmem) + " of it shared memory";
  text += ". A page is charged to the cgroup that touched it first";
  if (tightest->free() < tightest->limit / 10)
    return {"cgroup", Level::warning, text + "; beyond the limit the kernel kills",
            "a higher memory.max for " + tightest->path};
  return {"cgroup", Level::ok, text, ""};
}

Check check_ptrace(const Host& host) {
  const auto scope = host.number("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope || *scope == 0) return {"ptrace", Level::ok, "pidfd_getfd(2) works among processes of one user", ""};
  return {
      "ptrace", Level::info,
      "kernel.yama.ptrace_scope=" + std::to_string(*scope) +
          ": pidfd_getfd(2) among siblings is refused, so stock torch cannot share expandable segments; descriptors "
          "by a broker need no ptrace",
      "sysctl kernel.yama.ptrace_scope=0"};
}

Check check_io_uring(const Host& host, const Probes& probes) {
  if (probes.io_uring_error == 0) return {"io_uring", Level::ok, "works", ""};
  const auto disabled = host.number("/proc/sys/kernel/io_uring_disabled");
  return {"io_uring", Level::info,
          errno_text(probes.io_uring_error) +
              (disabled && *disabled != 0 ? ", kernel.io_uring_disabled=" + std::to_string(*disabled) : "") +
              ": the broker uses epoll, which is as fast for most loads",
          disabled && *disabled != 0 ? "sysctl kernel.io_uring_disabled=0" : ""};
}

Check check_user_namespaces(const Host& host) {
  const auto most = host.number("/proc/sys/user/max_user_namespaces");
  const auto debian = host.number("/proc/sys/kernel/unprivileged_userns_clone");
  const auto apparmor = host.number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
  if (most && *most == 0)
    return {"user namespaces", Level::info, "user.max_user_namespaces=0: unprivileged sandboxes cannot be made",
            "sysctl user.max_user_namespaces=15000"};
  if (debian && *debian == 0)
    return {"user namespaces", Level::info, "kernel.unprivileged_userns_clone=0: for root alone",
            "sysctl kernel.unprivileged_userns_clone=1"};
  if (apparmor && *apparmor != 0)
    return {"user namespaces", Level::info, "AppArmor lets only named programs make them",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0"};
  return {"user namespaces", Level::ok, "allowed", ""};
}

Check check_leases(const Host& host) {
  const auto enabled = host.number("/proc/sys/fs/leases-enable");
  if (enabled && *enabled == 0)
    return {"leases", Level::warning,
            "fs.leases-enable=0: gc cannot ask the kernel whether a file is in use and leaves all alone",
            "sysctl fs.leases-enable=1"};
  return {"leases", Level::ok, "gc can ask the kernel whether a file is in use", ""};
}

Check check_cuda(const Host& host, const Probes& probes) {
  const auto version = host.text("/proc/driver/nvidia/version");
  const bool node = host.has("/dev/nvidiactl");
  if (!version && !node) return {"CUDA", Level::ok, "no NVIDIA device on this host", ""};
  std::string driver = "an NVIDIA driver";
  if (version) {
    const std::string first = version->substr(0, version->find('\n'));
    for (std::size_t at = 0; (at = first.find_first_of("0123456789", at)) != std::string::npos;) {
      const std::size_t end = std::min(first.find_first_not_of("0123456789.", at), first.size());
      if (std::string_view(first).substr(at, end - at).find('.') != std::string_view::npos) {
        driver = "driver " + first.substr(at, end - at);
        break;
      }
      at = end;
    }
  }
  if (!node)
    return {"CUDA", Level::warning, driver + ", but no /dev/nvidiactl here: this container was given no GPU",
            "docker run --gpus all"};
  if (!probes.cuda_library)
    return {"CUDA", Level::warning, driver + ", but libcuda.so.1 cannot be loaded",
            "the driver's libraries in this container"};
  return {"CUDA", Level::ok, driver + "; legacy CUDA IPC does not cross PID namespaces, descriptors by a broker do",
          ""};
}

Check check_sight(const Inventory& inventory, const Probes& probes) {
  if (inventory.saw_all()) return {"sight", Level::ok, "all processes of this host can be looked into", ""};
  std::string text;
  for (const std::string& sentence : inventory.blind) text += (text.empty() ? "" : "; ") + sentence;
  const char* advice = inventory.nested  ? "run it on the host, as root"
                       : probes.uid != 0 ? "sudo shmbroker doctor"
                                         : "run it with CAP_SYS_PTRACE, outside of a user namespace";
  return {"sight", Level::info, text, advice};
}

}  // namespace

std::string level_text(Level level) {
  constexpr const char* names[] = {"ok", "info", "WARN", "ERROR", "unknown"};
  return names[static_cast<std::size_t>(level)];
}

Probes probe() {
  Probes out;
  const auto limit = [](auto which) {
    rlimit found{};
    ::getrlimit(which, &found);
    return Limit{found.rlim_cur, found.rlim_max, found.rlim_cur == RLIM_INFINITY};
  };
  out.open_files = limit(RLIMIT_NOFILE);
  out.locked_memory = limit(RLIMIT_MEMLOCK);
  out.uid = ::geteuid();
  std::array<std::byte, 120> parameters{};  // struct io_uring_params
  const long ring = ::syscall(SYS_io_uring_setup, 1, parameters.data());
  if (ring < 0) out.io_uring_error = errno;
  else ::close(static_cast<int>(ring));
  if (void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {
    out.cuda_library = true;
    ::dlclose(library);
  }
  return out;
}

std::vector<Check> examine(const Inventory& inventory, const Probes& probes, const std::string& root) {
  const Host host(root);
  return {
      check_dev_shm(inventory), check_container(host, inventory), check_remove_ipc(host, probes), check_memlock(probes),
      check_open_files(probes), check_huge_pages(host),           check_overcommit(host),         check_cgroup(host),
      check_ptrace(host),       check_io_uring(host, probes),     check_user_namespaces(host),    check_leases(host),
      check_cuda(host, probes), check_sight(inventory, probes)};
}

}  // namespace shmb::host
