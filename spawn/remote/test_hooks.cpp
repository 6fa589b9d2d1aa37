// SPDX-License-Identifier: Apache-2.0
// How tests set the hooks of a worker. Part of the library with the test seam only, see spawn/meson.build.
#include "spawn/remote/test_hooks.hpp"

#include "spawn/remote/agent.hpp"
#include "spawn/remote/c_api_remote.hpp"

extern "C" SHMB_API void shmb_test_remote_trouble(shmb_remote* remote, int kind, int lose, int64_t delay_ns) {
  const std::lock_guard lock(remote->it->monitor().mutex());
  remote->it->hooks().set({static_cast<shmb::remote::Kind>(kind), lose, delay_ns});
}
