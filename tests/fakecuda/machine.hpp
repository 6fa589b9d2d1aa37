// SPDX-License-Identifier: Apache-2.0
// The machine that the fake driver plays: its GPUs, which of them this process sees, how much memory each has. All of
// it comes from the environment, once, at cuInit; nothing but memory is shared between processes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/abi.hpp"

namespace fakecuda {

using namespace shmb::cuda;

inline constexpr std::size_t kGranularity = std::size_t{2} << 20;

// A GPU, or under MIG one instance of it: instances of one GPU share nothing.
struct Gpu {
  int index = 0;
  int instance = 0;
  Uuid uuid;
  std::string name, bus_id;
};

struct Machine {
  std::vector<Gpu> visible;    // in the order of this process' ordinals
  std::string card;            // tests that run at the same time name theirs differently
  std::size_t bytes = 0;       // of each GPU
  bool bytes_limited = false;  // the capacity was given, so it is counted over all processes
  int version = 13000;
  bool mig = false, peers = true, sealed = true;
  bool strict = false;  // memory too needs a current context, which NVIDIA documents neither way
  int fill = -1;        // the byte that fresh memory is full of; -1: garbage in its first and last page only
  std::string nodes;    // folder of files that stand for /dev/nvidia<minor>, empty: none
  std::vector<std::pair<int, int>> attributes;  // answers to cuDeviceGetAttribute that differ from the usual

  int attribute(int number) const;
};

Machine read_machine();
// Asked before cuInit too: a stub answers everything with 34, an old driver lacks functions.
bool plays_stub();
int played_version();

// The name of memory, as /proc shows it: everything that an importer must know, and who counts.
struct MemoryName {
  std::string card;
  int gpu = 0, instance = 0;
  std::string id;  // "<pid>.<n>"
  std::size_t bytes = 0;
  int handle_types = 0;
  bool rdma = false;

  std::string text() const;                             // for memfd_create
  static bool parse(std::string text, MemoryName* to);  // of /proc/PID/fd and /proc/PID/maps
};

// Bytes of one GPU that any process of ours still has open or mapped.
std::size_t bytes_in_use(const std::string& card, int gpu, int instance);

}  // namespace fakecuda
