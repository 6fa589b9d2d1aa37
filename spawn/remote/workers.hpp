// SPDX-License-Identifier: Apache-2.0
// The broker's events about the world: workers that come and go, and values that no worker refers to any more. This
// class hands them on in one order: the roster first, then messages, references, calls and requests. The meeting comes
// last, because it counts the workers that are left.
//
// The calls to a worker and its values end with it. A value that it asked another worker to make is still made.
#pragma once

#include "client/session/channel.hpp"
#include "spawn/remote/meeting.hpp"
#include "spawn/remote/server.hpp"

namespace shmb::remote {

class Workers {
 public:
  Workers(const Place& place, Monitor& monitor, Callbacks& callbacks, Roster& roster, Sender& sender,
          References& references, Calls& calls, Server& server, Meeting& meeting)
      : place_(place),
        monitor_(monitor),
        callbacks_(callbacks),
        roster_(roster),
        sender_(sender),
        references_(references),
        calls_(calls),
        server_(server),
        meeting_(meeting) {}

  // With the lock.
  void take_event(const client::RemoteEvent& event);
  void came(std::uint32_t rank, std::uint32_t life);  // a process has taken the place of one that died
  // Without the lock: asks the broker who is there, and which values are still referred to. After a gap in the events.
  Result<void> read();

 private:
  void gone(std::uint32_t rank, std::uint32_t life, bool died);

  const Place& place_;
  Monitor& monitor_;
  Callbacks& callbacks_;
  Roster& roster_;
  Sender& sender_;
  References& references_;
  Calls& calls_;
  Server& server_;
  Meeting& meeting_;
};

}  // namespace shmb::remote
