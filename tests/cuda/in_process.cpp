// SPDX-License-Identifier: Apache-2.0
// The driver is there before the first case and stays: its contexts, its threads and its node are no case's leak.
#include "tests/cuda/stage.hpp"

namespace {

cuda_tests::Device* devices[2];  // for the life of the program, and never destroyed

struct DriverForAll {
  DriverForAll() {
    (void)cuda_tests::Card::get();
    for (int ordinal = 0; ordinal < 2; ++ordinal) {
      auto* const device = devices[ordinal] = new cuda_tests::Device(ordinal);
      auto scope = device->hold->enter();
      shmb::cuda::Address some = 0;
      if (!scope || (*device->driver)->mem_alloc(&some, 4096) != 0 ||
          (*device->driver)->memset8_async(some, 0, 4096, nullptr) != 0 ||
          (*device->driver)->stream_synchronize(nullptr) != 0 || (*device->driver)->mem_free(some) != 0)
        std::abort();
    }
  }
};
const DriverForAll driver_for_all;

}  // namespace
