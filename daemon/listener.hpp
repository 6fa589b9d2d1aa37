// SPDX-License-Identifier: Apache-2.0
// One listening socket. It accepts one connection in a turn, and all newcomers together have one user's turns, so that
// a storm of them delays nobody who is here; it pauses
// when the descriptor table is full (an accept that fails leaves the listener readable: without the pause it would
// spin), and it leaves the reserve alone: ordinary clients that come when only the reserve is left wait in the kernel's
// backlog until a descriptor is free (a refusal would make each of them come again), while admins are still accepted.
#pragma once

#include <cstdint>
#include <functional>

#include "base/fd.hpp"
#include "daemon/engine.hpp"
#include "daemon/timers.hpp"

namespace shmb::daemon {

class Transport;

class Listener final : private Waiter, private Timer {
 public:
  // `highest`: the largest descriptor number that an accepted socket may get (the kernel gives the lowest free one).
  Listener(Transport& transport, Fd socket, bool admin, std::uint64_t highest);
  ~Listener();
  Sys<void> start();
  void resume();  // a descriptor was freed
  bool paused() const { return paused_; }
  bool someone_waits();  // asks the kernel

 private:
  void on_readable() override;
  void on_timer(std::int64_t now) override;
  void pause();  // until something ends or is greeted, or a short time has passed
  void table_full();
  bool has_room(int descriptor) const;
  bool room_again() const;

  Transport& transport_;
  Turns::Process& process_;
  Fd socket_;
  Fd parked_;  // accepted, and then found to eat into the reserve
  bool admin_ = false, paused_ = false;
  std::uint64_t highest_ = 0;
};

}  // namespace shmb::daemon
