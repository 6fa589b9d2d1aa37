// SPDX-License-Identifier: Apache-2.0
// The checks of doctor on hosts that are laid out as folders.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
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

TEST_CASE("/dev/shm is told when it is absent, read-only, nearly full, or holds what looks lost") {
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
  CHECK(host.check("/dev/shm").reason.find("5.0 MiB in 1 objects look lost") != std::string::npos);
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

TEST_CASE("RemoveIPC is a warning for ordinary users where logind runs and was not told otherwise") {
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

TEST_CASE("limits and switches of the kernel are told with the command that changes them") {
  LaidOut host;
  host.probes.open_files = {1024, 4096, false};
  CHECK(host.check("open files").level == Level::warning);
  CHECK(host.check("open files").advice == "ulimit -n 4096");
  host.probes.locked_memory = {8 << 20, 8 << 20, false};
  CHECK(host.check("memlock").level == Level::info);
  host.file("/proc/sys/vm/overcommit_memory", "2\n");
  CHECK(host.check("overcommit").level == Level::warning);
  host.file("/proc/sys/kernel/yama/ptrace_scope", "1\n");
  CHECK(host.check("ptrace").level == Level::info);
  host.file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise never [deny] force\n");
  CHECK(host.check("huge pages").level == Level::warning);
  host.file("/proc/sys/fs/leases-enable", "0\n");
  CHECK(host.check("leases").level == Level::warning);
  host.probes.io_uring_error = EPERM;
  host.file("/proc/sys/kernel/io_uring_disabled", "2\n");
  CHECK(host.check("io_uring").advice == "sysctl kernel.io_uring_disabled=0");
  host.file("/proc/sys/user/max_user_namespaces", "0\n");
  CHECK(host.check("user namespaces").level == Level::info);
  host.file("/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2025\nGCC version: 12\n");
  CHECK(host.check("CUDA").level == Level::warning);
  host.file("/dev/nvidiactl", "");
  host.probes.cuda_library = true;
  CHECK(host.check("CUDA").level == Level::ok);
  CHECK(host.check("CUDA").reason.starts_with("driver 580.65.06"));
  host.inventory.blind.push_back("x");
  CHECK(host.check("sight").level == Level::info);
}
