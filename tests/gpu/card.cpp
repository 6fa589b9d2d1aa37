// SPDX-License-Identifier: Apache-2.0
// Found at run time like the driver, so that a machine without the management library only loses the card figures.
#include "tests/gpu/card.hpp"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "tests/gpu/report.hpp"

namespace shmb::facts {
namespace {

// Shapes of nvml.h that have been stable since driver 510.
struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

template <class Call>
Call find(void* library, const char* name) {
  return reinterpret_cast<Call>(dlsym(library, name));
}

Card read_here() {
  Card card;
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return card;
  const auto init = find<int (*)()>(library, "nvmlInit_v2");
  const auto by_index = find<int (*)(unsigned, void**)>(library, "nvmlDeviceGetHandleByIndex_v2");
  const auto memory_info = find<int (*)(void*, Memory*)>(library, "nvmlDeviceGetMemoryInfo");
  const auto persistence = find<int (*)(void*, int*)>(library, "nvmlDeviceGetPersistenceMode");
  const auto mig = find<int (*)(void*, unsigned*, unsigned*)>(library, "nvmlDeviceGetMigMode");
  const auto version = find<int (*)(char*, unsigned)>(library, "nvmlSystemGetDriverVersion");
  const auto running = find<int (*)(void*, unsigned*, Process*)>(library, "nvmlDeviceGetComputeRunningProcesses_v3");
  void* device = nullptr;
  Memory memory{};
  if (init == nullptr || by_index == nullptr || memory_info == nullptr || init() != 0 || by_index(0, &device) != 0 ||
      memory_info(device, &memory) != 0) {
    return card;
  }
  card.known = true;
  card.used = memory.used;
  card.total = memory.total;
  if (persistence != nullptr) persistence(device, &card.persistence);
  unsigned current = 0, pending = 0;
  if (mig != nullptr && mig(device, &current, &pending) == 0) card.mig = static_cast<int>(current);
  if (version != nullptr) version(card.driver, sizeof card.driver);
  Process processes[128];
  unsigned count = 128;
  if (running != nullptr && running(device, &count, processes) == 0) {
    card.process_count = static_cast<int>(count);
    for (unsigned i = 0; i < count; ++i) card.processes[i] = {processes[i].pid, processes[i].used};
  }
  return card;
}

}  // namespace

std::string Card::process_text(int pid) const {
  if (!known) return "unknown: no management library";
  for (int i = 0; i < process_count; ++i) {
    if (static_cast<int>(processes[i].pid) != pid) continue;
    if (processes[i].used == ~0ULL) return "present, memory not told";
    return "present, " + std::to_string(processes[i].used >> 20) + " MiB";
  }
  return "absent (of " + std::to_string(process_count) + " listed)";
}

Card read_card() {
  Card card;
  int ends[2];
  if (pipe(ends) != 0) return card;
  const pid_t child = fork();
  if (child == 0) {
    const Card seen = read_here();
    _exit(write(ends[1], &seen, sizeof seen) == sizeof seen ? 0 : 1);
  }
  close(ends[1]);
  char* into = reinterpret_cast<char*>(&card);
  std::size_t have = 0;
  while (have < sizeof card) {
    const ssize_t got = read(ends[0], into + have, sizeof card - have);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  return have == sizeof card ? card : Card{};
}

Card wait_used(unsigned long long bytes, int ms) {
  const double end = now_ms() + ms;
  for (;;) {
    const Card card = read_card();
    const unsigned long long off = card.used > bytes ? card.used - bytes : bytes - card.used;
    if (!card.known || off <= 2ULL << 20 || now_ms() > end) return card;
    sleep_ms(100);
  }
}

}  // namespace shmb::facts
