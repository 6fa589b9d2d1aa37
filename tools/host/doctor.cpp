// SPDX-License-Identifier: Apache-2.0
// See doctor.hpp. Each function is one line of the report.
#include "tools/host/doctor.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>

#include "base/sys_file.hpp"
#include "base/sys_host.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "client/region/headroom.hpp"
#include "tools/host/process.hpp"
#include "tools/host/words.hpp"

namespace shmb::host {
namespace {

constexpr std::uint64_t kDockerShm = 64ULL << 20;  // the default of Docker and Podman
constexpr std::uint64_t kEnoughFiles = 65'536;
constexpr std::uint64_t kFullPercent = 80;
constexpr std::uint64_t kFirstUser = 1000;  // SYS_UID_MAX of login.defs(5), plus 1
constexpr const char* kEnoughShm = "8g";

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
  std::vector<std::string> names(const std::string& folder) const {  // in no order
    auto directory = sys::open_at(AT_FDCWD, (root_ + folder).c_str(), O_RDONLY | O_DIRECTORY);
    if (!directory) return {};
    return names_in(directory->get()).value_or(std::vector<std::string>());
  }
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

// The prefix that runs a command as root.
std::string as_root(const Probes& probes) { return probes.uid == 0 ? "" : "sudo "; }
std::string set_switch(const Probes& probes, const std::string& name, const std::string& value) {
  return as_root(probes) + "sysctl " + name + "=" + value;
}
std::string write_to(const Probes& probes, const std::string& path, const std::string& text) {
  return "echo " + text + (probes.uid == 0 ? " > " : " | sudo tee ") + path;
}

enum class Container : std::uint8_t { none, docker, podman, apptainer, kubernetes, other };
Container container_of(const Host& host, const Inventory& inventory) {
  if (host.has("/var/run/secrets/kubernetes.io")) return Container::kubernetes;  // whatever runs its containers
  if (host.has("/.dockerenv")) return Container::docker;
  if (host.has("/run/.containerenv")) return Container::podman;
  if (host.has("/.singularity.d")) return Container::apptainer;
  return inventory.nested ? Container::other : Container::none;
}
std::string container_text(Container container) {
  constexpr const char* names[] = {"none", "Docker", "Podman", "Apptainer", "Kubernetes", "a PID namespace of its own"};
  return names[static_cast<std::size_t>(container)];
}
// "docker run OPTION IMAGE" where such a command starts containers like this one. Otherwise empty.
std::string run_with(Container container, const std::string& option) {
  if (container == Container::docker) return "docker run " + option + " IMAGE";
  if (container == Container::podman) return "podman run " + option + " IMAGE";
  return "";
}

std::string larger_shm(Container container, const Probes& probes, std::uint64_t bytes) {
  const std::string size = bytes == 0 ? kEnoughShm : std::to_string(bytes);
  if (auto command = run_with(container, "--shm-size=" + size); !command.empty()) return command;
  if (container == Container::kubernetes)  // the volume replaces /dev/shm, and the pod's memory limit bounds it
    return R"(kubectl patch deployment NAME -p '{"spec":{"template":{"spec":{"volumes":[{"name":"shm","emptyDir":)"
           R"({"medium":"Memory"}}],"containers":[{"name":"NAME","volumeMounts":[{"name":"shm","mountPath":)"
           R"("/dev/shm"}]}]}}}}')";
  return as_root(probes) + "mount -o remount,size=" + size + " /dev/shm";
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

Check check_dev_shm(const Host& host, const Inventory& inventory, const Probes& probes) {
  const MountUse* use = dev_shm(inventory);
  if (use == nullptr)
    return {"/dev/shm", Level::error, "is no tmpfs: shm_open(3) and sem_open(3) fail or use a disk",
            as_root(probes) + "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"};
  if (use->mount.read_only)
    return {"/dev/shm", Level::error, "is mounted read-only: shm_open(3) fails",
            as_root(probes) + "mount -o remount,rw /dev/shm"};
  std::string text = use->size == 0 ? format_size(use->used) + " used, no limit"
                                    : format_size(use->used) + " of " + format_size(use->size) + " used";
  const Lost lost = lost_in(inventory);
  const bool full = use->size != 0 && use->used >= use->size / 100 * kFullPercent;
  if (lost.objects != 0)
    text += "; " + format_size(lost.bytes) + " in " + std::to_string(lost.objects) +
            (lost.objects == 1 ? " object looks lost" : " objects look lost");
  if (lost.objects != 0) return {"/dev/shm", Level::warning, text, "shmbroker leaks"};
  if (full)
    return {"/dev/shm", Level::warning, text + "; nothing of it looks lost. shmbroker list --all tells who holds it",
            larger_shm(container_of(host, inventory), probes, use->size * 2)};
  return {"/dev/shm", Level::ok, text, ""};
}

Check check_container(const Host& host, const Inventory& inventory, const Probes& probes) {
  const Container container = container_of(host, inventory);
  if (container == Container::none) return {"container", Level::ok, "none", ""};
  const MountUse* use = dev_shm(inventory);
  if (use != nullptr && use->size != 0 && use->size <= kDockerShm)
    return {"container", Level::warning,
            container_text(container) + ": /dev/shm has " + format_size(use->size) +
                ", which bounds programs that use shm_open(3); regions of shmbroker are not bounded by it",
            larger_shm(container, probes, 0)};
  return {"container", Level::info, container_text(container), ""};
}

// RemoveIPC= as logind reads it: its file, then the drop-ins by name. One in /etc replaces others of the same name.
bool logind_removes_ipc(const Host& host) {
  std::vector<std::string> files = {host.has("/etc/systemd/logind.conf") ? "/etc/systemd/logind.conf"
                                                                         : "/usr/lib/systemd/logind.conf"};
  std::map<std::string, std::string> drop_ins;
  for (const std::string folder : {"/usr/lib", "/usr/local/lib", "/run", "/etc"})
    for (const std::string& name : host.names(folder + "/systemd/logind.conf.d"))
      if (name.ends_with(".conf")) drop_ins[name] = folder + "/systemd/logind.conf.d/" + name;
  for (const auto& [name, path] : drop_ins) files.push_back(path);
  bool removes = true;
  for (const std::string& file : files) {
    const auto text = host.text(file);
    if (!text) continue;
    for (std::string_view rest = *text; !rest.empty();) {
      std::string_view line = next_word(rest, '\n');
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
      const std::string_view key = next_word(line, '=');
      if (trimmed(std::string(key)) != "RemoveIPC") continue;
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
      removes = !(line.starts_with("n") || line.starts_with("f") || line.starts_with("0") || line.starts_with("off"));
    }
  }
  return removes;
}

Check check_remove_ipc(const Host& host, const Probes& probes) {
  if (!host.has("/run/systemd/seats")) return {"RemoveIPC", Level::ok, "no logind runs", ""};
  if (!logind_removes_ipc(host))
    return {"RemoveIPC", Level::ok, "logind leaves objects of users without a session alone", ""};
  if (probes.uid < kFirstUser)
    return {
        "RemoveIPC", Level::info,
        "logind removes POSIX and SysV shared memory of each ordinary user whose last session ends; users below uid " +
            std::to_string(kFirstUser) + " are spared",
        "mkdir -p /etc/systemd/logind.conf.d && printf '[Login]\\nRemoveIPC=no\\n' > "
        "/etc/systemd/logind.conf.d/shm.conf && systemctl restart systemd-logind"};
  if (!probes.user.empty() && host.has("/var/lib/systemd/linger/" + probes.user))
    return {"RemoveIPC", Level::ok, "logind removes objects of users whose last session ends; you linger", ""};
  return {"RemoveIPC", Level::warning,
          "logind removes your POSIX and SysV shared memory when your last session ends, also under a running job; "
          "regions of shmbroker are not touched",
          "loginctl enable-linger"};
}

// The command that raises a limit of this shell to `wanted`: without root up to the hard limit, else as root.
std::string raise_limit(const Probes& probes, const Limit& limit, char option, const char* name, std::uint64_t wanted,
                        bool unlimited) {
  const std::string value = unlimited ? "unlimited" : std::to_string(wanted);
  if (limit.hard_unlimited || (!unlimited && limit.hard >= wanted))
    return std::string("ulimit -") + option + " " + value;
  return as_root(probes) + "prlimit --pid $$ --" + name + "=" + value + ":" + value;
}

Check check_memlock(const Probes& probes) {
  if (probes.locked_memory.unlimited) return {"memlock", Level::ok, "unlimited", ""};
  return {"memlock", Level::info,
          format_size(probes.locked_memory.soft) +
              " may be locked: pinning more for a GPU or for RDMA fails. Of a service: LimitMEMLOCK=infinity",
          raise_limit(probes, probes.locked_memory, 'l', "memlock", 0, true)};
}

Check check_open_files(const Probes& probes) {
  const Limit& limit = probes.open_files;
  const std::string text = "soft limit " + std::to_string(limit.soft) + ", hard " +
                           (limit.hard_unlimited ? "unlimited" : std::to_string(limit.hard));
  if (limit.unlimited || limit.soft >= kEnoughFiles) return {"open files", Level::ok, text, ""};
  const std::string advice = raise_limit(probes, limit, 'n', "nofile", kEnoughFiles, false);
  if (limit.soft == limit.hard && limit.soft >= 16'384)
    return {"open files", Level::info, text + ". Of a service: LimitNOFILE=65536", advice};
  return {"open files", Level::warning, text + ": torch's file_descriptor sharing fails near as many tensors", advice};
}

std::string chosen(const std::string& text) {  // "always [never] deny" -> "never"
  const std::size_t open = text.find('['), close = text.find(']');
  return open == std::string::npos || close == std::string::npos ? text : text.substr(open + 1, close - open - 1);
}

Check check_huge_pages(const Host& host, const Probes& probes) {
  const auto shmem = host.text("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const auto reserved = host.number("/proc/sys/vm/nr_hugepages");
  if (!shmem)
    return {"huge pages", Level::info, "the kernel has no transparent huge pages: large regions use 4 KiB pages", ""};
  const char* place = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  const std::string policy = chosen(*shmem);
  std::string text = "for shared memory: " + policy + "; " + std::to_string(reserved.value_or(0)) + " reserved";
  if (policy == "deny")
    return {"huge pages", Level::warning, text + "; regions cannot have huge pages either",
            write_to(probes, place, "never")};
  if (policy == "never")
    return {"huge pages", Level::info,
            text + "; regions of shmbroker get them by MADV_COLLAPSE (Linux 6.1) all the same",
            write_to(probes, place, "advise")};
  return {"huge pages", Level::ok, text, ""};
}

Check check_overcommit(const Host& host, const Probes& probes) {
  const auto mode = host.number("/proc/sys/vm/overcommit_memory");
  if (!mode) return {"overcommit", Level::unknown, "vm.overcommit_memory cannot be read", ""};
  if (*mode == 2)
    return {"overcommit", Level::warning,
            "vm.overcommit_memory=2: shared memory that was not populated ends its user with SIGBUS beyond the commit "
            "limit; shmbroker populates or refuses",
            set_switch(probes, "vm.overcommit_memory", "0")};
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

// The command that doubles a memory cgroup's limit, for the program that manages it.
std::string larger_cgroup(const Host& host, const client::CgroupRoom& room, Container container, const Probes& probes) {
  const std::string limit = std::to_string(room.limit * 2);
  if (container == Container::docker || container == Container::podman)
    return (container == Container::docker ? "docker" : "podman") +
           (" update --memory=" + limit + " --memory-swap=" + limit) + " CONTAINER";
  if (container == Container::kubernetes) return "kubectl set resources deployment NAME --limits=memory=" + limit;
  std::string path = room.path;
  if (!host.root().empty() && path.starts_with(host.root())) path = path.substr(host.root().size());
  const std::string unit = path.substr(path.rfind('/') + 1);
  if (unit.ends_with(".slice") || unit.ends_with(".service") || unit.ends_with(".scope"))
    return as_root(probes) + "systemctl set-property " + unit + " MemoryMax=" + limit;
  const char* file = host.has(path + "/memory.max") ? "/memory.max" : "/memory.limit_in_bytes";
  return write_to(probes, path + file, limit);
}

Check check_cgroup(const Host& host, const Inventory& inventory, const Probes& probes) {
  const auto rooms = client::cgroup_rooms(host.root());
  if (rooms.empty()) return {"cgroup", Level::ok, "no memory limit above this process", ""};
  const auto tightest = std::ranges::min_element(rooms, {}, &client::CgroupRoom::free);
  std::string text =
      format_size(tightest->usage) + " of " + format_size(tightest->limit) + " used in " + tightest->path;
  if (const auto shmem = shmem_of(host, tightest->path)) text += ", " + format_size(*shmem) + " of it shared memory";
  text += ". A page is charged to the cgroup that touched it first";
  if (tightest->free() < tightest->limit / 10)
    return {"cgroup", Level::warning, text + "; beyond the limit the kernel kills",
            larger_cgroup(host, *tightest, container_of(host, inventory), probes)};
  return {"cgroup", Level::ok, text, ""};
}

Check check_ptrace(const Host& host, const Probes& probes) {
  const auto scope = host.number("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope || *scope == 0) return {"ptrace", Level::ok, "pidfd_getfd(2) works among processes of one user", ""};
  std::string text = "kernel.yama.ptrace_scope=" + std::to_string(*scope) +
                     ": pidfd_getfd(2) among siblings is refused, so stock torch cannot share expandable segments; "
                     "descriptors by a broker need no ptrace";
  if (*scope < 3) return {"ptrace", Level::info, text, set_switch(probes, "kernel.yama.ptrace_scope", "0")};
  return {"ptrace", Level::info, text + ". The kernel keeps 3 until it boots again",
          write_to(probes, "/etc/sysctl.d/99-ptrace.conf", "kernel.yama.ptrace_scope=0") + " && " + as_root(probes) +
              "reboot"};
}

Check check_io_uring(const Host& host, const Inventory& inventory, const Probes& probes) {
  if (probes.io_uring_error == 0) return {"io_uring", Level::ok, "works", ""};
  const auto disabled = host.number("/proc/sys/kernel/io_uring_disabled");
  const bool switched_off = disabled && *disabled != 0;
  std::string advice;
  if (switched_off) advice = set_switch(probes, "kernel.io_uring_disabled", "0");
  else if (probes.io_uring_error == EPERM)  // the seccomp filter of Docker and Podman
    advice = run_with(container_of(host, inventory), "--security-opt seccomp=unconfined");
  return {"io_uring", Level::info,
          errno_text(probes.io_uring_error) +
              (switched_off ? ", kernel.io_uring_disabled=" + std::to_string(*disabled) : "") +
              ": the broker uses epoll, which is as fast for most loads",
          advice};
}

Check check_user_namespaces(const Host& host, const Probes& probes) {
  const auto most = host.number("/proc/sys/user/max_user_namespaces");
  const auto debian = host.number("/proc/sys/kernel/unprivileged_userns_clone");
  const auto apparmor = host.number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
  if (most && *most == 0)
    return {"user namespaces", Level::info, "user.max_user_namespaces=0: unprivileged sandboxes cannot be made",
            set_switch(probes, "user.max_user_namespaces", "15000")};
  if (debian && *debian == 0)
    return {"user namespaces", Level::info, "kernel.unprivileged_userns_clone=0: for root alone",
            set_switch(probes, "kernel.unprivileged_userns_clone", "1")};
  if (apparmor && *apparmor != 0)
    return {"user namespaces", Level::info, "AppArmor lets only named programs make them",
            set_switch(probes, "kernel.apparmor_restrict_unprivileged_userns", "0")};
  return {"user namespaces", Level::ok, "allowed", ""};
}

Check check_leases(const Host& host, const Probes& probes) {
  const auto enabled = host.number("/proc/sys/fs/leases-enable");
  if (enabled && *enabled == 0)
    return {"leases", Level::warning,
            "fs.leases-enable=0: gc cannot ask the kernel whether a file is in use and leaves all alone",
            set_switch(probes, "fs.leases-enable", "1")};
  return {"leases", Level::ok, "gc can ask the kernel whether a file is in use", ""};
}

Check check_cuda(const Host& host, const Inventory& inventory, const Probes& probes) {
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
  const Container container = container_of(host, inventory);
  if (!node && container != Container::none)
    return {"CUDA", Level::warning, driver + ", but no /dev/nvidiactl here: this container was given no GPU",
            container == Container::podman       ? "podman run --device nvidia.com/gpu=all IMAGE"
            : container == Container::kubernetes ? "kubectl set resources deployment NAME --limits=nvidia.com/gpu=1"
            : container == Container::apptainer  ? "apptainer run --nv IMAGE"
                                                 : "docker run --gpus all IMAGE"};
  if (!node)
    return {"CUDA", Level::warning, driver + ", but no /dev/nvidiactl: no program can reach a GPU",
            as_root(probes) + "nvidia-modprobe -c 0 -u"};
  if (!probes.cuda_library)
    return {"CUDA", Level::warning, driver + ", but libcuda.so.1 cannot be loaded",
            container == Container::none        ? as_root(probes) + "apt-get install libcuda1"
            : container == Container::podman    ? "podman run --device nvidia.com/gpu=all IMAGE"
            : container == Container::apptainer ? "apptainer run --nv IMAGE"
                                                : "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility "
                                                  "IMAGE"};
  return {"CUDA", Level::ok, driver + "; legacy CUDA IPC does not cross PID namespaces, descriptors by a broker do",
          ""};
}

Check check_sight(const Host& host, const Inventory& inventory, const Probes& probes) {
  if (inventory.saw_all()) return {"sight", Level::ok, "all processes of this host can be looked into", ""};
  std::string text;
  for (const std::string& sentence : inventory.blind) text += (text.empty() ? "" : "; ") + sentence;
  // This root lacks CAP_SYS_PTRACE, or is in another PID namespace. Only the user that started the container can change
  // that.
  std::string advice = run_with(container_of(host, inventory), "--pid=host --cap-add SYS_PTRACE");
  if (advice.empty() && probes.uid != 0) advice = "sudo shmbroker doctor";
  if (advice.empty()) text += ". To see it, run this on the host itself as root, outside of namespaces";
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
    return Limit{found.rlim_cur, found.rlim_max, found.rlim_cur == RLIM_INFINITY, found.rlim_max == RLIM_INFINITY};
  };
  out.open_files = limit(RLIMIT_NOFILE);
  out.locked_memory = limit(RLIMIT_MEMLOCK);
  out.uid = ::geteuid();
  if (const passwd* user = ::getpwuid(out.uid)) out.user = user->pw_name;
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
  return {check_dev_shm(host, inventory, probes),
          check_container(host, inventory, probes),
          check_remove_ipc(host, probes),
          check_memlock(probes),
          check_open_files(probes),
          check_huge_pages(host, probes),
          check_overcommit(host, probes),
          check_cgroup(host, inventory, probes),
          check_ptrace(host, probes),
          check_io_uring(host, inventory, probes),
          check_user_namespaces(host, probes),
          check_leases(host, probes),
          check_cuda(host, inventory, probes),
          check_sight(host, inventory, probes)};
}

}  // namespace shmb::host
