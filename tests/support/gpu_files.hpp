// SPDX-License-Identifier: Apache-2.0
// Files that a broker under the seam `gpu=FOLDER` takes for a GPU and its memory. They prove our books, never a driver.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"

namespace support {

inline constexpr char kGpuBus[] = "0000:65:00.0";
inline constexpr const char* kGpuText = "GPU-c0010203-0405-0607-0809-0a0b0c0d0e0f";

// The information of one GPU as the kernel shows it, and its node, whose path is returned.
inline std::string make_gpu_files(const std::string& folder, const char* uuid = kGpuText) {
  const std::string node = folder + "/fake-nvidia3", information = folder + "/gpus/" + kGpuBus;
  std::filesystem::create_directories(information);
  std::ofstream(information + "/information") << "Model: \t\t Fake\nGPU UUID: \t " << uuid << "\nDevice Minor: \t 3\n";
  std::ofstream(node) << "node";
  return node;
}

// One chunk of memory, exported twice: two open files.
struct GpuExport {
  explicit GpuExport(const char* name = "fakecuda:test") : keeper(shmb::sys::memfd_create(name, false).value()) {
    REQUIRE(shmb::sys::truncate(keeper.get(), 4096));
    share = shmb::sys::open(("/proc/self/fd/" + std::to_string(keeper.get())).c_str(), O_RDWR).value();
  }
  shmb::Fd keeper, share;
};

// With `seals` it is what it must be: a memfd that no process can change any more.
inline shmb::Fd manifest(std::string_view text, int seals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) {
  shmb::Fd file = shmb::Fd::adopt(::memfd_create("manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(shmb::sys::write_all(file.get(), std::as_bytes(std::span(text))));
  if (seals != 0) REQUIRE(shmb::sys::add_seals(file.get(), seals));
  return file;
}

}  // namespace support
