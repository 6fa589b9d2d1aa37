// SPDX-License-Identifier: Apache-2.0
// How much of a card is used is counted from /proc, by the names of its memory: no book of ours could see a process
// that was killed.
#include "tests/fakecuda/machine.hpp"

#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

namespace fakecuda {
namespace {

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

std::size_t size_of(const std::string& text) {
  char* end = nullptr;
  const unsigned long long number = std::strtoull(text.c_str(), &end, 0);
  switch (*end) {
    case 'G':
      return number << 30;
    case 'M':
      return number << 20;
    case 'K':
      return number << 10;
    default:
      return number;
  }
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

Uuid uuid_of(int index, int instance) {
  Uuid uuid;
  constexpr unsigned char kStart[] = {0xfa, 0x4e, 0xc0, 0xda, 0, 0, 0x40, 0, 0x80};
  std::memcpy(uuid.bytes.data(), kStart, sizeof kStart);
  uuid.bytes[14] = static_cast<unsigned char>(instance);
  uuid.bytes[15] = static_cast<unsigned char>(index);
  return uuid;
}

std::string text_of(const Uuid& uuid, bool mig) {
  std::string text = mig ? "MIG-" : "GPU-";
  char digits[3];
  for (std::size_t i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(uuid.bytes[i]));
    text += digits;
  }
  return text;
}

std::vector<Gpu> all_gpus(int count, bool mig) {
  std::vector<Gpu> gpus;
  for (int index = 0; index < count; ++index) {
    for (int instance = mig ? 1 : 0; instance <= (mig ? 2 : 0); ++instance) {
      Gpu gpu{index, instance, uuid_of(index, instance), "Fake GPU", {}};
      if (mig) gpu.name += " MIG 3g.40gb";
      char bus[32];
      std::snprintf(bus, sizeof bus, "0000:%02X:00.0", static_cast<unsigned>(index) + 1);
      gpu.bus_id = bus;
      gpus.push_back(gpu);
    }
  }
  return gpus;
}

// As the driver: the list ends at the first entry that names nothing; an ordinal counts GPUs, a UUID may be shortened.
std::vector<Gpu> visible_of(const std::vector<Gpu>& all, bool mig) {
  std::vector<Gpu> seen;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    seen = all;
  } else {
    for (const std::string& entry : split(list, ',')) {
      const Gpu* found = nullptr;
      for (std::size_t i = 0; i < all.size() && found == nullptr; ++i) {
        const bool named = entry.size() > 4 && text_of(all[i].uuid, mig).starts_with(entry);
        if (named || (!mig && entry == std::to_string(i))) found = &all[i];
      }
      if (found == nullptr) break;
      bool twice = false;
      for (const Gpu& gpu : seen) twice = twice || gpu.uuid == found->uuid;
      if (twice) return {};
      seen.push_back(*found);
    }
  }
  if (mig && seen.size() > 1) seen.resize(1);  // a process uses one instance
  return seen;
}

void count_name(const std::string& text, const MemoryName& wanted, std::set<std::string>* seen, std::size_t* bytes) {
  MemoryName name;
  if (!MemoryName::parse(text, &name) || name.card != wanted.card || name.gpu != wanted.gpu ||
      name.instance != wanted.instance || !seen->insert(name.id).second) {
    return;
  }
  *bytes += name.bytes;
}

}  // namespace

bool plays_stub() { return std::getenv("FAKECUDA_STUB") != nullptr; }
int played_version() { return std::atoi(environment("FAKECUDA_DRIVER_VERSION", "13000").c_str()); }

Machine read_machine() {
  Machine machine;
  machine.version = played_version();
  machine.mig = std::getenv("FAKECUDA_MIG") != nullptr;
  machine.strict = std::getenv("FAKECUDA_STRICT") != nullptr;
  machine.peers = environment("FAKECUDA_P2P", "1") != "0" && !machine.mig;
  machine.card = environment("FAKECUDA_CARD", "0");
  machine.nodes = environment("FAKECUDA_NODES", "");
  machine.bytes_limited = std::getenv("FAKECUDA_BYTES") != nullptr;
  machine.bytes = size_of(environment("FAKECUDA_BYTES", "64G")) / kGranularity * kGranularity;
  if (const char* fill = std::getenv("FAKECUDA_FILL")) machine.fill = static_cast<int>(std::strtol(fill, nullptr, 0));
  for (const std::string& entry : split(environment("FAKECUDA_ATTRIBUTE", ""), ',')) {
    int number = 0, value = 0;
    if (std::sscanf(entry.c_str(), "%d:%d", &number, &value) == 2) machine.attributes.emplace_back(number, value);
  }
  const int count = std::atoi(environment("FAKECUDA_DEVICES", "2").c_str());
  machine.visible = visible_of(all_gpus(count, machine.mig), machine.mig);
  return machine;
}

int Machine::attribute(int number) const {
  for (const auto& [which, value] : attributes)
    if (which == number) return value;
  switch (number) {
    case 16:  // multiprocessors
      return 4;
    case 75:  // compute capability
      return 9;
    case 41:  // unified addressing
    case 102:
    case 103:
    case 110:
    case 113:
    case 122:
    case 125:
      return 1;
    default:
      return 0;
  }
}

std::string MemoryName::text() const {
  return "fakecuda:" + card + ":" + std::to_string(gpu) + ":" + std::to_string(instance) + ":" + id + ":" +
         std::to_string(bytes) + ":" + std::to_string(handle_types) + ":" + (rdma ? "1" : "0");
}

bool MemoryName::parse(std::string text, MemoryName* to) {
  const std::size_t start = text.find("/memfd:fakecuda:");
  if (start == std::string::npos) return false;
  text = text.substr(start + 7);
  if (const std::size_t end = text.find(' '); end != std::string::npos) text.resize(end);
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() != 8) return false;
  *to = {parts[1],
         std::atoi(parts[2].c_str()),
         std::atoi(parts[3].c_str()),
         parts[4],
         std::strtoull(parts[5].c_str(), nullptr, 10),
         std::atoi(parts[6].c_str()),
         parts[7] == "1"};
  return true;
}

std::size_t bytes_in_use(const std::string& card, int gpu, int instance) {
  std::size_t bytes = 0;
  std::set<std::string> seen;
  MemoryName wanted;
  wanted.card = card;
  wanted.gpu = gpu;
  wanted.instance = instance;
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return 0;
  while (const dirent* process = readdir(processes)) {
    if (process->d_name[0] < '0' || process->d_name[0] > '9') continue;
    const std::string folder = std::string("/proc/") + process->d_name;
    if (DIR* fds = opendir((folder + "/fd").c_str())) {
      while (const dirent* entry = readdir(fds)) {
        char target[512];
        const ssize_t length = readlinkat(dirfd(fds), entry->d_name, target, sizeof target);
        if (length > 0) count_name(std::string(target, static_cast<std::size_t>(length)), wanted, &seen, &bytes);
      }
      closedir(fds);
    }
    std::ifstream maps(folder + "/maps");
    for (std::string line; std::getline(maps, line);)
      if (line.contains("/memfd:fakecuda:")) count_name(line, wanted, &seen, &bytes);
  }
  closedir(processes);
  return bytes;
}

}  // namespace fakecuda
