// SPDX-License-Identifier: Apache-2.0
// An actor's work on the GPU: one context on the first visible device, a few kernels, shareable regions.
#pragma once

#include <cstdint>
#include <string>

#include "tests/gpu/driver.hpp"

namespace shmb::facts {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kGiB = std::size_t{1} << 30;

// One VMM allocation and its mapping. `handle` is 0 once released; the mapping keeps the memory.
struct Region {
  MemHandle handle = 0;
  Address address = 0;
  std::size_t bytes = 0;
};

// Driver and device without a context: what a process needs that only creates, exports or imports.
void start_driver();
// start_driver and the primary context, current in this thread, with the kernels loaded.
void start_gpu();

AllocationProp shareable();
std::size_t granularity();
Code try_create(std::size_t bytes, MemHandle* handle);
MemHandle create(std::size_t bytes);
int export_fd(MemHandle handle);
Code try_import(int fd, MemHandle* handle);
// Reserve, map and allow access; releases nothing on failure (the process ends then).
Region map_handle(MemHandle handle, std::size_t bytes, int access = kReadWrite);
Region create_mapped(std::size_t bytes);
Region import_mapped(int fd, std::size_t bytes, int access = kReadWrite);
void release_handle(Region& region);
void unmap(Region& region);  // mapping, address range and, if still held, the handle

// Word i of the pattern is (i * odd constant) xor seed.
void fill(Address address, std::size_t bytes, std::uint64_t seed, Stream stream = nullptr);
// Words that differ from the pattern.
std::uint64_t mismatches(Address address, std::size_t bytes, std::uint64_t seed, Stream stream = nullptr);
// The same without waiting: counts add up in stream order until count_watched() reads them.
void clear_counts();
void check_later(Address address, std::size_t bytes, std::uint64_t seed, Stream stream);
// Checks the pattern over and over inside ONE kernel for that long; count_watched() waits for it.
struct Watched {
  std::uint64_t mismatches;
  std::uint64_t rounds;
};
void watch(Address address, std::size_t bytes, std::uint64_t seed, std::uint64_t ns, Stream stream);
Watched count_watched(Stream stream);
// Loads word after word inside one kernel for that long. Two words at `out`: the longest time between two loads in ns,
// and how many loads there were.
void watch_gaps(Address address, std::size_t bytes, std::uint64_t ns, Address out, Stream stream);
// A kernel that lasts that long.
void spin(std::uint64_t ns, Stream stream);
// One store of 8 bytes by a kernel; the code of the synchronisation after it.
Code poke(Address address, std::uint64_t value);
struct Tally {
  std::uint64_t equal;
  std::uint64_t nonzero;
};
Tally tally(Address address, std::size_t bytes, std::uint64_t value);
Stream make_stream();

int attribute(int which);
int device_count();
std::string device_uuid(int ordinal = 0);  // "GPU-xxxxxxxx-..."
bool are_peers(int ordinal, int other);    // the first reaches the other's memory
std::string device_name();

}  // namespace shmb::facts
