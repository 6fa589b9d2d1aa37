// SPDX-License-Identifier: Apache-2.0
// Faults and pretended kernels that end with the scope: one case's fault must never reach the next. Only for programs
// linked with the seam build.
#pragma once

#include "base/fault.hpp"

namespace harness {

struct Injected {
  Injected() { shmb::fault::clear(); }
  Injected(shmb::fault::Call call, int error, int first = 1, int times = 1) : Injected() {
    shmb::fault::inject(call, error, first, times);
  }
  Injected(const Injected&) = delete;
  Injected& operator=(const Injected&) = delete;
  ~Injected() { shmb::fault::clear(); }
};

struct PretendedKernel {
  PretendedKernel(int major, int minor) { shmb::fault::pretend_kernel(major, minor); }
  PretendedKernel(const PretendedKernel&) = delete;
  PretendedKernel& operator=(const PretendedKernel&) = delete;
  ~PretendedKernel() { shmb::fault::pretend_kernel(0, 0); }
};

}  // namespace harness
