// SPDX-License-Identifier: Apache-2.0
// Host memory registered with the GPU: what it costs by page size, what it brings to copies, and what a pinned memfd
// may still suffer from its owner (seals, holes).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {
namespace {

void* map_memory(int fd, std::size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("mmap: %s", std::strerror(errno));
  return memory;
}

int sized_memfd(std::size_t bytes, unsigned flags) {
  const int fd = memfd_create("host", MFD_CLOEXEC | flags);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) return fd;
  close(fd);
  return -1;
}

// GB/s of one copy, best of five.
template <class Copy>
double copy_rate(std::size_t bytes, Copy copy) {
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const double start = now_ms();
    copy();
    const double rate = static_cast<double>(bytes) / 1e6 / (now_ms() - start);
    if (i > 0) best = std::max(best, rate);
  }
  return best;
}

void pinned_copies() {
  const std::size_t bytes = large(512 * kMiB);
  const int fd = sized_memfd(bytes, 0);
  void* memory = map_memory(fd, bytes, PROT_READ | PROT_WRITE);
  std::memset(memory, 7, bytes);
  Address device = 0;
  must(cu.mem_alloc(&device, bytes), "cuMemAlloc");
  const auto up = [&] { must(cu.copy_to_device(device, memory, bytes), "cuMemcpyHtoD"); };
  const auto down = [&] { must(cu.copy_to_host(memory, device, bytes), "cuMemcpyDtoH"); };
  const double plain_up = copy_rate(bytes, up), plain_down = copy_rate(bytes, down);
  must(cu.host_register(memory, bytes, kHostPortable | kHostDeviceMap), "cuMemHostRegister");
  fact("copy_gb_s", "to device: plain %.1f, pinned %.1f; to host: plain %.1f, pinned %.1f", plain_up,
       copy_rate(bytes, up), plain_down, copy_rate(bytes, down));
  fact("register_twice", "%s", code_text(cu.host_register(memory, bytes, kHostPortable)).c_str());
  must(cu.host_unregister(memory), "cuMemHostUnregister");
  must(cu.mem_free(device), "cuMemFree");
  munmap(memory, bytes);
  close(fd);
}

// A mapping of a read-only descriptor does not count as writable, so only the pin itself can stop the seal.
void read_only_and_seal() {
  constexpr std::size_t kBytes = 4 * kMiB;
  for (const bool pinned : {false, true}) {
    const int fd = sized_memfd(kBytes, MFD_ALLOW_SEALING);
    void* writable = map_memory(fd, kBytes, PROT_READ | PROT_WRITE);
    fact("attribute_read_only_register", "%d", attribute(113));
    std::memset(writable, 9, kBytes);
    munmap(writable, kBytes);
    const int reader = open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC);
    if (reader < 0) fail("reopening a memfd read-only: %s", std::strerror(errno));
    void* memory = map_memory(reader, kBytes, PROT_READ);
    if (pinned) {
      fact("register_read_only_mapping", "without the flag %s",
           code_text(cu.host_register(memory, kBytes, kHostPortable | kHostDeviceMap)).c_str());
      cu.host_unregister(memory);
      const Code flagged = cu.host_register(memory, kBytes, kHostPortable | kHostDeviceMap | kHostReadOnly);
      fact("register_read_only_mapping", "with the flag %s", code_text(flagged).c_str());
      if (flagged != kSuccess) return;
      Address device = 0;
      must(cu.host_address(&device, memory, 0), "cuMemHostGetDevicePointer");
      const Tally seen = tally(device, kBytes, 0x0909090909090909);
      fact("kernel_reads_read_only_mapping", "%llu of %zu words right", static_cast<unsigned long long>(seen.equal),
           kBytes / 8);
    }
    const double start = now_ms();
    const int sealed = fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE);
    fact(pinned ? "seal_write_while_pinned" : "seal_write_unpinned", "%s after %.0f ms",
         sealed == 0 ? "succeeds" : std::strerror(errno), now_ms() - start);
    if (pinned) must(cu.host_unregister(memory), "cuMemHostUnregister");
    munmap(memory, kBytes);
    close(reader);
    close(fd);
  }
}

void punch_while_pinned() {
  constexpr std::size_t kBytes = 4 * kMiB;
  const int fd = sized_memfd(kBytes, 0);
  auto* words = static_cast<volatile std::uint64_t*>(map_memory(fd, kBytes, PROT_READ | PROT_WRITE));
  for (std::size_t i = 0; i < kBytes / 8; i += 512) words[i] = 1;
  auto* memory = const_cast<std::uint64_t*>(words);
  must(cu.host_register(memory, kBytes, kHostPortable | kHostDeviceMap), "cuMemHostRegister");
  Address device = 0;
  must(cu.host_address(&device, memory, 0), "cuMemHostGetDevicePointer");
  must(poke(device, 2), "poke");
  fact("kernel_write_seen_by_cpu", "%s", words[0] == 2 ? "yes" : "no");
  const int punched = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(kBytes));
  fact("punch_while_pinned", "%s", punched == 0 ? "succeeds" : std::strerror(errno));
  words[0] = 3;
  const Tally seen = tally(device, 8, 2);
  fact("after_punch", "cpu wrote 3, the GPU reads %s",
       seen.equal == 1 ? "2: they see different pages" : "something else");
  must(cu.host_unregister(memory), "cuMemHostUnregister");
}

void register_rate(const char* name, int fd, bool collapse) {
  const std::size_t bytes = large(kGiB);
  if (fd < 0) {
    fact(name, "not on this machine: %s", std::strerror(errno));
    return;
  }
  // Huge pages need an aligned place: take too much address space and map inside it.
  constexpr std::size_t kHuge = 2 * kMiB;
  void* place = mmap(nullptr, bytes + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) fail("mmap: %s", std::strerror(errno));
  const auto aligned = (reinterpret_cast<std::uintptr_t>(place) + kHuge - 1) / kHuge * kHuge;
  void* memory = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (memory == MAP_FAILED) {
    fact(name, "not on this machine: %s", std::strerror(errno));
    close(fd);
    return;
  }
  std::memset(memory, 1, bytes);
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1
  if (collapse && madvise(memory, bytes, kCollapse) != 0) {
    fact(name, "not on this machine: MADV_COLLAPSE: %s", std::strerror(errno));
  } else {
    Samples in, out;
    for (int i = 0; i < 6; ++i) {
      double start = now_ms();
      const Code code = cu.host_register(memory, bytes, kHostPortable | kHostDeviceMap);
      if (code != kSuccess) {
        fact(name, "refused: %s", code_text(code).c_str());
        break;
      }
      in.add(now_ms() - start);
      start = now_ms();
      must(cu.host_unregister(memory), "cuMemHostUnregister");
      out.add(now_ms() - start);
    }
    fact(name, "%zu MiB: register %s, unregister %s, %.1f GB/s", bytes / kMiB, in.text("ms").c_str(),
         out.text("ms").c_str(), static_cast<double>(bytes) / 1e6 / in.median());
  }
  munmap(place, bytes + kHuge);
  close(fd);
}

}  // namespace

void p5_register() {
  Actor process("process", [](const Line& line) {
    start_gpu();
    register_rate("pages_4KiB", sized_memfd(large(kGiB), 0), false);
    register_rate("pages_2MiB_collapsed", sized_memfd(large(kGiB), 0), true);
    register_rate("pages_2MiB_hugetlb", sized_memfd(large(kGiB), MFD_HUGETLB), false);
    until_end(line);
  });
  process.finish();
}

void t28_pinned_memfd() {
  Actor process("process", [](const Line& line) {
    start_gpu();
    pinned_copies();
    read_only_and_seal();
    punch_while_pinned();
    until_end(line);
  });
  process.finish();
}

}  // namespace shmb::facts
