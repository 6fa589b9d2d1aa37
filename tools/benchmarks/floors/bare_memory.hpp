// SPDX-License-Identifier: Apache-2.0
// Floors of memory: what a program that knows exactly what it wants pays the kernel, with nothing in between. Raw
// calls on purpose: a floor must not share the code that is measured against it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "tools/benchmarks/kit/figure.hpp"

namespace shmb::bench {

inline constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;

// memfd_create + ftruncate + fchmod + seals: what makes a region safe to hand out (law 6).
Fd bare_region(std::size_t bytes);

double bare_bytes_per_region(std::size_t count);  // of the kernel, without the page behind it

class BareMap {
 public:
  BareMap() = default;
  BareMap(BareMap&& other) noexcept { *this = static_cast<BareMap&&>(other); }
  BareMap& operator=(BareMap&& other) noexcept;
  ~BareMap() { reset(); }
  void reset();
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  static BareMap map(int fd, std::size_t bytes, bool write);  // from 2 MiB up 2 MiB-aligned

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

Fd reopen_read_only(int fd);

// One page per 2 MiB by MADV_POPULATE_WRITE, then MADV_COLLAPSE (repeated once: it may fail now and then). From the
// first part that cannot be had huge, 4 KiB pages.
void populate_huge(const BareMap& map);
void populate(const BareMap& map);      // huge from 2 MiB up, else 4 KiB pages
void map_existing(const BareMap& map);  // MADV_POPULATE_READ

void fill(std::byte* data, std::size_t bytes, int seed);           // never with zeros: those are stored faster
std::uint64_t read_all(const std::byte* data, std::size_t bytes);  // every word, so that no page is skipped

// Those of `all` to measure: without 1 GiB in a quick run, and without what the machine has no room for (said).
std::vector<std::size_t> sizes(const Bench& bench, std::vector<std::size_t> all);
std::string size_text(std::size_t bytes);  // "64MiB"

}  // namespace shmb::bench
