// SPDX-License-Identifier: Apache-2.0
// See bare_memory.hpp.
#include "tools/benchmarks/floors/bare_memory.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "base/compat.hpp"
#include "tools/benchmarks/kit/process.hpp"

namespace shmb::bench {
namespace {

constexpr std::size_t kHuge = 2 * MiB;

std::size_t available() {
  std::ifstream in("/proc/meminfo");
  std::string word;
  std::size_t kib = 0;
  while (in >> word)
    if (word == "MemAvailable:") {
      in >> kib;
      break;
    }
  return kib * KiB;
}

double slab_in_use() {
  std::ifstream in("/proc/meminfo");
  std::string word;
  double kib = 0;
  while (in >> word)
    if (word == "Slab:") in >> kib;
  return kib * 1024;
}

}  // namespace

Fd bare_region(std::size_t bytes) {
  int fd = memfd_create("shmb-floor", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd == -1 && errno == EINVAL) fd = memfd_create("shmb-floor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  must(fd, "memfd_create");
  must(fchmod(fd, 0600), "fchmod");
  must(ftruncate(fd, static_cast<off_t>(bytes)), "ftruncate");
  must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), "F_ADD_SEALS");
  return Fd::adopt(fd);
}

double bare_bytes_per_region(std::size_t count) {
  std::vector<Fd> regions;
  regions.reserve(count);
  double before = slab_in_use();
  for (std::size_t i = 0; i < count; ++i) regions.push_back(bare_region(4096));
  return std::max(1.0, (slab_in_use() - before) / static_cast<double>(count));
}

Fd reopen_read_only(int fd) {
  std::string path = "/proc/self/fd/" + std::to_string(fd);
  return Fd::adopt(must(open(path.c_str(), O_RDONLY | O_CLOEXEC), path.c_str()));
}

BareMap& BareMap::operator=(BareMap&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void BareMap::reset() {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
}

BareMap BareMap::map(int fd, std::size_t bytes, bool write) {
  BareMap out;
  int protection = write ? PROT_READ | PROT_WRITE : PROT_READ;
  void* at = nullptr;
  int flags = MAP_SHARED;
  if (bytes >= kHuge) {
    // Reserve too much, map over an aligned part of it, give the edges back.
    auto* reserved = static_cast<std::byte*>(
        mmap(nullptr, bytes + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (reserved == MAP_FAILED) give_up("mmap");
    auto start = reinterpret_cast<std::uintptr_t>(reserved);
    std::size_t before = (kHuge - start % kHuge) % kHuge;
    if (before > 0) munmap(reserved, before);
    munmap(reserved + before + bytes, kHuge - before);
    at = reserved + before;
    flags |= MAP_FIXED;
  }
  void* data = mmap(at, bytes, protection, flags, fd, 0);
  if (data == MAP_FAILED) give_up("mmap");
  out.data_ = static_cast<std::byte*>(data);
  out.size_ = bytes;
  return out;
}

void populate_huge(const BareMap& map) {
  for (std::size_t at = 0; at < map.size(); at += kHuge)
    must(madvise(map.data() + at, 4 * KiB, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
  if (madvise(map.data(), map.size(), MADV_COLLAPSE) != 0 && madvise(map.data(), map.size(), MADV_COLLAPSE) != 0)
    must(madvise(map.data(), map.size(), MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
}

void populate(const BareMap& map) {
  if (map.size() >= kHuge) populate_huge(map);
  else must(madvise(map.data(), map.size(), MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
}

void map_existing(const BareMap& map) {
  must(madvise(map.data(), map.size(), MADV_POPULATE_READ), "MADV_POPULATE_READ");
}

void fill(std::byte* data, std::size_t bytes, int seed) { memset(data, 0x41 + seed % 64, bytes); }

std::uint64_t read_all(const std::byte* data, std::size_t bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(data);
  std::uint64_t a = 0, b = 0, c = 0, d = 0;
  for (std::size_t i = 0; i < bytes / 32; ++i) {
    a ^= words[4 * i];
    b += words[4 * i + 1];
    c ^= words[4 * i + 2];
    d += words[4 * i + 3];
  }
  return a + b + c + d;
}

std::vector<std::size_t> sizes(const Bench& bench, std::vector<std::size_t> all) {
  // Both sides hold one region of the size, a third is being made ready.
  std::size_t room = available() / 3;
  std::erase_if(all, [&](std::size_t bytes) {
    if (bench.settings().quick && bytes >= GiB) return true;
    if (bytes > room) fmt::print("    {} left out: only {} MiB available\n", size_text(bytes), available() / MiB);
    return bytes > room;
  });
  return all;
}

std::string size_text(std::size_t bytes) {
  if (bytes >= GiB) return std::to_string(bytes / GiB) + "GiB";
  if (bytes >= MiB) return std::to_string(bytes / MiB) + "MiB";
  if (bytes >= KiB) return std::to_string(bytes / KiB) + "KiB";
  return std::to_string(bytes) + "B";
}

}  // namespace shmb::bench
