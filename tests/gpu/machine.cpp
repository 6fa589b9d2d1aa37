// SPDX-License-Identifier: Apache-2.0
// The facts of the machine, so that a figure can be read later: driver, kernel, persistence, MIG, MPS, nodes, limits.
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/card.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {
namespace {

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::string text, line;
  while (std::getline(file, line) && text.size() < 1200) text += (text.empty() ? "" : "; ") + line;
  return text.empty() ? "absent" : text;
}

std::string process_named(const char* name) {
  DIR* dir = opendir("/proc");
  if (dir == nullptr) return "unknown";
  std::string found = "no";
  while (const dirent* entry = readdir(dir)) {
    if (std::strtol(entry->d_name, nullptr, 10) <= 0) continue;
    std::ifstream comm(std::string("/proc/") + entry->d_name + "/comm");
    std::string line;
    std::getline(comm, line);
    if (line.rfind(name, 0) == 0) found = "yes";
  }
  closedir(dir);
  return found;
}

void tell_nodes() {
  for (const char* name : {"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"}) {
    struct stat node{};
    if (stat(name, &node) == 0) {
      fact("node", "%s mode %o owner %u", name, node.st_mode & 07777, node.st_uid);
    } else {
      fact("node", "%s absent", name);
    }
  }
  const std::string folder = "/proc/driver/nvidia/gpus";
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) {
    fact("proc_gpus", "absent");
    return;
  }
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] == '.') continue;
    fact("proc_gpu", "%s: %s", entry->d_name, file_text(folder + "/" + entry->d_name + "/information").c_str());
  }
  closedir(dir);
}

void tell_driver(const Line& line) {
  start_driver();
  int version = 0;
  must(cu.driver_version(&version), "cuDriverGetVersion");
  fact("cuda_driver_version", "%d", version);
  fact("device", "%d visible, first: %s, %s", device_count(), device_name().c_str(), device_uuid().c_str());
  char bus[32] = {};
  must(cu.device_bus_id(bus, sizeof bus, 0), "cuDeviceGetPCIBusId");
  fact("bus", "%s", bus);
  fact("granularity", "%zu", granularity());
  const struct {
    const char* name;
    int number;
  } attributes[] = {{"compute_major", 75},      {"compute_minor", 76},     {"vmm", 102},
                    {"posix_fd", 103},          {"rdma_with_vmm", 110},    {"read_only_host_register", 113},
                    {"pool_handle_types", 119}, {"mem_ops_64_bit", 122},   {"wait_value_nor", 123},
                    {"dma_buf", 124},           {"ipc_events", 125},       {"fabric", 128},
                    {"pageable_access", 88},    {"host_page_tables", 100}, {"host_numa_vmm", 141}};
  std::string text;
  for (const auto& [name, number] : attributes)
    text += std::string(name) + " " + std::to_string(attribute(number)) + ", ";
  fact("attributes", "%s", text.substr(0, text.size() - 2).c_str());
  start_gpu();
  std::size_t free_bytes = 0, total = 0;
  must(cu.mem_info(&free_bytes, &total), "cuMemGetInfo");
  fact("cuMemGetInfo_mib", "free %zu of %zu", free_bytes / kMiB, total / kMiB);
  until_end(line);
}

}  // namespace

void machine() {
  utsname system{};
  uname(&system);
  fact("kernel", "%s %s %s", system.sysname, system.release, system.machine);
  fact("processors", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
  fact("driver_file", "%s", file_text("/proc/driver/nvidia/version").c_str());
  const std::string holders = node_holders(gpu_node());
  fact("node_holders_at_start", "%s", holders.empty() ? "none" : holders.c_str());
  tell_nodes();
  const Card card = read_card();
  fact("card", "known %s, driver %s, persistence mode %d, MIG mode %d (-1: not told), used %.2f of %.1f MiB",
       card.known ? "yes" : "no", card.driver, card.persistence, card.mig, card.used_mib(),
       static_cast<double>(card.total) / kMiB);
  fact("nvidia_persistenced", "%s", process_named("nvidia-persiste").c_str());
  fact("mps", "control daemon %s, server %s, pipe directory %s", process_named("nvidia-cuda-mps").c_str(),
       process_named("nvidia-cuda-mps-s").c_str(), access("/tmp/nvidia-mps", F_OK) == 0 ? "present" : "absent");
  fact("module_parameters", "%s", file_text("/proc/driver/nvidia/params").c_str());
  fact("shmem_huge_pages", "%s", file_text("/sys/kernel/mm/transparent_hugepage/shmem_enabled").c_str());
  fact("hugetlb_2mib", "%s", file_text("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").c_str());
  rlimit files{}, locked{};
  getrlimit(RLIMIT_NOFILE, &files);
  getrlimit(RLIMIT_MEMLOCK, &locked);
  fact("limits", "open files %llu of %llu, locked memory %llu KiB, uid %u",
       static_cast<unsigned long long>(files.rlim_cur), static_cast<unsigned long long>(files.rlim_max),
       static_cast<unsigned long long>(locked.rlim_cur / 1024), geteuid());
  Actor driver("driver", tell_driver);
  driver.finish();
}

}  // namespace shmb::facts
