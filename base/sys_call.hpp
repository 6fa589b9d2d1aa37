// SPDX-License-Identifier: Apache-2.0
// The one shape of every wrapper in base/sys_*.cpp: ask the seam, make the call, repeat on EINTR. The seam is asked
// inside the loop, so that an injected EINTR proves the repeat. A wait that a signal may end (base/interrupt.hpp) is
// not repeated, and fails with EINTR.
#pragma once

#include <cerrno>

#include "base/fault.hpp"
#include "base/fd.hpp"
#include "base/interrupt.hpp"
#include "base/result.hpp"

namespace shmb::sys {

template <bool waits = false, class F>
auto call(fault::Call which, F&& make) -> Sys<decltype(make())> {
  for (;;) {
    int failure = fault::fails(which);
    if (failure == 0) {
      auto value = make();
      if (value != (decltype(value))(-1)) return value;  // C cast: MAP_FAILED is a pointer
      failure = errno;
    }
    if (failure != EINTR) return sys_error(failure);
    if constexpr (waits)
      if (interrupt::note()) return sys_error(EINTR);
  }
}

template <class F>
auto call_waiting(fault::Call which, F&& make) {
  return call<true>(which, make);
}

template <class F>
Sys<void> call_void(fault::Call which, F&& make) {
  SHMB_TRY_VOID(call(which, make));
  return {};
}

template <class F>
Sys<Fd> call_fd(fault::Call which, F&& make) {
  SHMB_TRY(made, call(which, make));
  return Fd::adopt(static_cast<int>(made)).above_standard();
}

}  // namespace shmb::sys
