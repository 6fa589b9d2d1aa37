// SPDX-License-Identifier: Apache-2.0
// The checks of doctor on hosts that are laid out as folders.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/harness/temp_dir.hpp"
#include "tools/host/doctor.hpp"

using namespace shmb::host;

namespace {

struct LaidOut {
  harness::TempDir dir;
  Inventory inventory;
  Probes probes{.open_files = {65536, 65536, false}, .locked_memory = {0, 0, true}, .uid = 1000};
  LaidOut() {
    MountUse use;
    use.mount.type = "tmpfs";
    use.mount.point = use.mount.reach = "/dev/shm";
    use.size = 1ULL << 30;
    use.use_known = true;
    inventory.mounts.push_back(use);
    file("/proc/sys/vm/overcommit_memory", "0\n");
  }
  void file(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = dir.path() + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  Check check(const std::string& name) const {
    const auto checks = examine(inventory, probes, dir.path());
    const auto found = std::ranges::find(checks, name, &Check::name);
    REQUIRE(found != checks.end());
    return *found;
  }
};

}  // namespace

TEST_CASE("a host that lacks nothing has no warning") {
  const LaidOut host;
  for (const Check& check : examine(host.inventory, host.probes, host.dir.path())) {
    CAPTURE(check.name);
    CAPTURE(check.reason);
    CHECK(check.level != Level::warning);
    CHECK(check.level != Level::error);
  }
}

TEST_CASE("/dev/shm is reported when it is absent, read-only, nearly full, or holds objects that look lost") {
  LaidOut host;
  CHECK(host.check("/dev/shm").level == Level::ok);
  host.inventory.mounts[0].used = 900ULL << 20;
  CHECK(host.check("/dev/shm").level == Level::warning);
  host.inventory.mounts[0].used = 0;
  Object lost;
  lost.verdict = Verdict::orphan;
  lost.touched = 5 << 20;
  host.inventory.objects.push_back(lost);
  CHECK(host.check("/dev/shm").level == Level::warning);
  CHECK(host.check("/dev/shm").advice == "shmbroker leaks");
  CHECK(host.check("/dev/shm").reason.find("5.0 MiB in 1 object looks lost") != std::string::npos);
  host.inventory.mounts[0].mount.read_only = true;
  CHECK(host.check("/dev/shm").level == Level::error);
  host.inventory.mounts.clear();
  CHECK(host.check("/dev/shm").level == Level::error);
}

TEST_CASE("a container with Docker's 64 MiB is warned of") {
  LaidOut host;
  CHECK(host.check("container").level == Level::ok);
  host.file("/.dockerenv", "");
  CHECK(host.check("container").level == Level::info);
  host.inventory.mounts[0].size = 64 << 20;
  CHECK(host.check("container").level == Level::warning);
}

TEST_CASE("RemoveIPC is a warning for ordinary users where logind runs with its default") {
  LaidOut host;
  CHECK(host.check("RemoveIPC").level == Level::ok);
  host.file("/run/systemd/seats/seat0", "");
  CHECK(host.check("RemoveIPC").level == Level::warning);
  host.probes.uid = 0;
  CHECK(host.check("RemoveIPC").level == Level::info);
  host.probes.uid = 1000;
  host.file("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=yes\nRemoveIPC=no\n");
  CHECK(host.check("RemoveIPC").level == Level::ok);
}

namespace {

// Advice is pasted into a shell: it begins with a program, and the shell finds nothing wrong with it.
void expect_a_command(const Check& check) {
  CAPTURE(check.name);
  CAPTURE(check.advice);
  if (check.advice.empty()) return;
  std::string_view words = check.advice;
  if (words.starts_with("sudo ")) words.remove_prefix(5);
  constexpr std::string_view programs[] = {"apptainer", "apt-get", "docker",    "echo",   "kubectl",
                                           "loginctl",  "mkdir",   "mount",     "podman", "prlimit",
                                           "shmbroker", "sysctl",  "systemctl", "ulimit", "nvidia-modprobe"};
  CHECK(std::ranges::find(programs, words.substr(0, words.find(' '))) != std::end(programs));
  std::string quoted;
  for (const char c : check.advice) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  CHECK(std::system(("sh -n -c '" + quoted + "'").c_str()) == 0);
}

}  // namespace

TEST_CASE("each advice is a command, on a host where all is wrong, in each kind of container, for root and others") {
  for (const char* mark :
       {"", "/.dockerenv", "/run/.containerenv", "/.singularity.d", "/var/run/secrets/kubernetes.io"})
    for (const std::uint32_t uid : {0U, 1000U})
      for (const bool absent : {false, true}) {
        LaidOut host;
        if (*mark != '\0') host.file(mark, "");
        host.probes = {.open_files = {1024, 4096}, .locked_memory = {8 << 20, 8 << 20}, .uid = uid, .user = "mara"};
        host.probes.io_uring_error = EPERM;
        host.inventory.mounts[0].size = host.inventory.mounts[0].used = 64 << 20;
        if (absent) host.inventory.mounts.clear();
        host.inventory.blind.push_back("x");
        host.file("/run/systemd/seats/seat0", "");
        host.file("/proc/sys/vm/overcommit_memory", "2\n");
        host.file("/proc/sys/kernel/yama/ptrace_scope", absent ? "3\n" : "1\n");
        host.file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise never [deny] force\n");
        host.file("/proc/sys/fs/leases-enable", "0\n");
        host.file("/proc/sys/user/max_user_namespaces", "0\n");
        host.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n");
        if (absent) host.file("/dev/nvidiactl", "");
        for (const Check& check : examine(host.inventory, host.probes, host.dir.path())) expect_a_command(check);
        for (const char* name : {"/dev/shm", "RemoveIPC", "memlock", "open files", "huge pages", "overcommit", "ptrace",
                                 "user namespaces", "leases", "CUDA"}) {
          CAPTURE(name);
          CHECK_FALSE(host.check(name).advice.empty());
        }
      }
}

TEST_CASE("for a full /dev/shm without lost files the advice doubles its size, in the words of its maker") {
  LaidOut host;
  host.inventory.mounts[0].used = 1ULL << 30;
  CHECK(host.check("/dev/shm").advice == "sudo mount -o remount,size=2147483648 /dev/shm");
  host.probes.uid = 0;
  CHECK(host.check("/dev/shm").advice == "mount -o remount,size=2147483648 /dev/shm");
  host.file("/run/.containerenv", "");
  CHECK(host.check("/dev/shm").advice == "podman run --shm-size=2147483648 IMAGE");
}

TEST_CASE("RemoveIPC is read from drop-ins too, and does not concern users that linger") {
  LaidOut host;
  host.probes.user = "mara";
  host.file("/run/systemd/seats/seat0", "");
  CHECK(host.check("RemoveIPC").advice == "loginctl enable-linger");
  host.file("/etc/systemd/logind.conf", "[Login]\nRemoveIPC = no\n");
  CHECK(host.check("RemoveIPC").level == Level::ok);
  host.file("/usr/lib/systemd/logind.conf.d/50-shm.conf", "[Login]\nRemoveIPC=yes\n");
  CHECK(host.check("RemoveIPC").level == Level::warning);
  host.file("/etc/systemd/logind.conf.d/50-shm.conf", "[Login]\n  RemoveIPC=off\n");
  CHECK(host.check("RemoveIPC").level == Level::ok);
  host.file("/run/systemd/logind.conf.d/60-more.conf", "[Login]\n#RemoveIPC=no\nRemoveIPC=1\n");
  CHECK(host.check("RemoveIPC").level == Level::warning);
  host.file("/var/lib/systemd/linger/mara", "");
  CHECK(host.check("RemoveIPC").level == Level::ok);
}

TEST_CASE("a limit is lifted by the shell up to the hard limit, and by root beyond it") {
  LaidOut host;
  host.probes.open_files = {1024, 1 << 20};
  CHECK(host.check("open files").advice == "ulimit -n 65536");
  host.probes.open_files = {1024, 4096};
  CHECK(host.check("open files").level == Level::warning);
  CHECK(host.check("open files").advice == "sudo prlimit --pid $$ --nofile=65536:65536");
  host.probes.open_files = {20'000, 20'000};
  CHECK(host.check("open files").level == Level::info);
  CHECK(host.check("open files").advice == "sudo prlimit --pid $$ --nofile=65536:65536");
  host.probes.locked_memory = {8 << 20, 8 << 20};
  CHECK(host.check("memlock").advice == "sudo prlimit --pid $$ --memlock=unlimited:unlimited");
  host.probes.locked_memory = {8 << 20, 0, false, true};
  CHECK(host.check("memlock").advice == "ulimit -l unlimited");
}

TEST_CASE("a cgroup near its limit is reported with its share of shared memory, and how its manager lifts the limit") {
  LaidOut host;
  const auto limited = [&](const std::string& cgroup) {
    host.file("/proc/self/cgroup", "0::" + cgroup + "\n");
    host.file("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    const std::string place = "/sys/fs/cgroup" + cgroup;
    host.file(place + "/memory.max", "1073741824\n");
    host.file(place + "/memory.current", "1063741824\n");
    host.file(place + "/memory.stat", "anon 1\nshmem 536870912\nfile 0\ninactive_file 0\n");
    host.file(place + "/cgroup.controllers", "memory\n");
  };
  limited("/job");
  CHECK(host.check("cgroup").level == Level::warning);
  CHECK(host.check("cgroup").reason.find("512.0 MiB of it shared memory") != std::string::npos);
  CHECK(host.check("cgroup").advice == "echo 2147483648 | sudo tee /sys/fs/cgroup/job/memory.max");
  host.probes.uid = 0;
  limited("/system.slice/job.service");
  CHECK(host.check("cgroup").advice == "systemctl set-property job.service MemoryMax=2147483648");
  host.file("/.dockerenv", "");
  CHECK(host.check("cgroup").advice == "docker update --memory=2147483648 --memory-swap=2147483648 CONTAINER");
  host.file("/sys/fs/cgroup/system.slice/job.service/memory.current", "1000\n");
  CHECK(host.check("cgroup").level == Level::ok);
}

TEST_CASE("limits and switches of the kernel are reported with the command that changes them") {
  LaidOut host;
  host.probes.locked_memory = {8 << 20, 8 << 20, false};
  CHECK(host.check("memlock").level == Level::info);
  host.file("/proc/sys/vm/overcommit_memory", "2\n");
  CHECK(host.check("overcommit").level == Level::warning);
  CHECK(host.check("overcommit").advice == "sudo sysctl vm.overcommit_memory=0");
  host.file("/proc/sys/kernel/yama/ptrace_scope", "1\n");
  CHECK(host.check("ptrace").level == Level::info);
  CHECK(host.check("ptrace").advice == "sudo sysctl kernel.yama.ptrace_scope=0");
  host.file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise never [deny] force\n");
  CHECK(host.check("huge pages").level == Level::warning);
  CHECK(host.check("huge pages").advice == "echo never | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  host.file("/proc/sys/fs/leases-enable", "0\n");
  CHECK(host.check("leases").level == Level::warning);
  host.probes.io_uring_error = EPERM;
  host.file("/proc/sys/kernel/io_uring_disabled", "2\n");
  CHECK(host.check("io_uring").advice == "sudo sysctl kernel.io_uring_disabled=0");
  host.file("/proc/sys/user/max_user_namespaces", "0\n");
  CHECK(host.check("user namespaces").level == Level::info);
  CHECK(host.check("user namespaces").advice == "sudo sysctl user.max_user_namespaces=15000");
  host.file("/proc/sys/user/max_user_namespaces", "15000\n");
  host.file("/proc/sys/kernel/unprivileged_userns_clone", "0\n");
  CHECK(host.check("user namespaces").advice == "sudo sysctl kernel.unprivileged_userns_clone=1");
  host.file("/proc/sys/kernel/unprivileged_userns_clone", "1\n");
  host.file("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n");
  CHECK(host.check("user namespaces").advice == "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0");
  host.file("/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2025\nGCC version: 12\n");
  CHECK(host.check("CUDA").level == Level::warning);
  CHECK(host.check("CUDA").advice == "sudo nvidia-modprobe -c 0 -u");
  host.file("/dev/nvidiactl", "");
  CHECK(host.check("CUDA").advice == "sudo apt-get install libcuda1");
  host.probes.cuda_library = true;
  CHECK(host.check("CUDA").level == Level::ok);
  CHECK(host.check("CUDA").reason.starts_with("driver 580.65.06"));
  host.inventory.blind.push_back("x");
  CHECK(host.check("sight").level == Level::info);
  CHECK(host.check("sight").advice == "sudo shmbroker doctor");
}
