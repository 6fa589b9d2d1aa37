// SPDX-License-Identifier: Apache-2.0
// One listening socket. It accepts one connection in a turn, and all newcomers together have the turns of one user. So
// a storm of newcomers delays no existing session.
//
// It pauses when the descriptor table is full: an accept that fails leaves the listener readable, and without the pause
// it would spin. It leaves the reserve alone. When only the reserve is left, ordinary clients wait in the kernel's
// backlog until a descriptor is free. A refusal would make each of them come again. Admins are still accepted.
#pragma once

#include <cstdint>
#include <functional>

#include "base/fd.hpp"
#include "daemon/kit/timers.hpp"
#include "daemon/transport/engine.hpp"

namespace shmb::daemon {

class Transport;

class Listener final : private Waiter, private Timer {
 public:
  // `highest`: the largest descriptor number that an accepted socket may get. The kernel gives the lowest free one.
  Listener(Transport& transport, Fd socket, bool admin, std::uint64_t highest);
  ~Listener();
  Sys<void> start();
  void resume();         // a descriptor was freed
  bool someone_waits();  // asks the kernel

 private:
  void on_readable() override;
  void on_timer(std::int64_t now) override;
  void pause();  // until a session ends or is greeted, or a short time has passed
  void table_full();
  bool has_room(int descriptor) const;
  bool room_again() const;

  Transport& transport_;
  Turns::Process& process_;
  Fd socket_;
  Fd parked_;  // accepted, then found to use the reserve
  bool admin_ = false, paused_ = false;
  std::uint64_t highest_ = 0;
};

}  // namespace shmb::daemon
