// SPDX-License-Identifier: Apache-2.0
// A pidfd whose connection is gone. It is watched in three cases:
// - The reclaim report waits for how the process died. The kernel tells that only after the parent has reaped it
//   (6.15).
// - The session was disconnected as a lazy reader. It stays in the books until its process ends.
// - The process only closed its socket, and still maps pools.
#pragma once

#include <cstdint>

#include "base/fd.hpp"
#include "daemon/kit/timers.hpp"
#include "daemon/transport/connection.hpp"
#include "daemon/transport/engine.hpp"

namespace shmb::daemon {

class Session;
class Transport;

class DeadPeerWatch final : private Waiter, private Timer {
 public:
  enum class Why { report, disconnected, awaited };
  DeadPeerWatch(Transport& transport, Fd pidfd, const Peer& peer, Session& session, Why why);
  ~DeadPeerWatch();
  void take(Connection::Remains remains) { remains_ = std::move(remains); }
  bool holds_socket() const { return static_cast<bool>(remains_.socket); }
  void start();
  Session& session() const { return session_; }
  std::uint32_t uid() const { return uid_; }
  // Watched for a report alone: then nothing else in the books counts this pidfd.
  bool counted_by_books() const { return counted_; }

  std::size_t index = 0;  // in the transport's table

 private:
  void on_readable() override;
  void on_timer(std::int64_t now) override;
  void ask(std::int64_t now);
  bool has_ended() const;

  Transport& transport_;
  Turns::Process& process_;
  Fd pidfd_;
  Session& session_;
  Why why_;
  std::uint32_t uid_;
  bool counted_;
  Connection::Remains remains_;
  std::int64_t ask_again_, give_up_at_;
};

}  // namespace shmb::daemon
