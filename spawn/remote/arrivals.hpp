// SPDX-License-Identifier: Apache-2.0
// Messages of other workers, and events of the broker, as they arrive. The thread that leads reads both here. It
// hands requests to Server, answers to Calls, messages about a shutdown to Meeting, and events to Workers.
//
// Order matters between the two sources. A worker's death must be seen after everything that it sent, and before
// anything that its successor sends. So after an event, or after a message of a life that is not known yet, the inbox
// is read until it is empty. Then come the messages of known lives, then the events, then messages of the newcomers.
// A message does not name its writer: the pool names the participant, and the broker says which worker that is.
// A message of another life than the known one is dropped.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "spawn/remote/workers.hpp"

namespace shmb::remote {

class Arrivals {
 public:
  Arrivals(const Place& place, Monitor& monitor, Callbacks& callbacks, const Roster& roster, Sender& sender,
           References& references, Calls& calls, Server& server, Meeting& meeting, Workers& workers, TestHooks& hooks)
      : place_(place),
        monitor_(monitor),
        callbacks_(callbacks),
        roster_(roster),
        sender_(sender),
        references_(references),
        calls_(calls),
        server_(server),
        meeting_(meeting),
        workers_(workers),
        hooks_(hooks) {}

  // Called with the lock, and releases it meanwhile. Takes in what is there, waiting for the first of it until `until`.
  // One thread at a time: Monitor::leading() says whether one is at it.
  // `serves`: afterwards this thread runs one of the requests that have arrived. It waits for nothing else.
  void lead(Lock& lock, client::Deadline until, bool serves = false);
  void take_held_back();                           // with the lock: what tests have held back, and is due
  void put_off(const client::RemoteEvent& event);  // from joining or leading: it is handled after the messages

 private:
  struct Batch;
  // Without the lock, in this order:
  bool receive(Batch& batch, client::Deadline until);
  bool name_writers(Batch& batch, std::size_t from);
  bool hear_broker(Batch& batch);
  void read_on(Batch& batch);
  static std::size_t put_newcomers_last(Batch& batch);
  void take_references(Batch& batch);
  bool named(Incoming& message) const;
  void read_writers();
  // With the lock:
  void deliver(Batch& batch, std::size_t newcomers);
  void take_in(Arrived& arrived);
  bool stale(const Head& head) const;
  void hand_on(Arrived& arrived);

  const Place& place_;
  Monitor& monitor_;
  Callbacks& callbacks_;
  const Roster& roster_;
  Sender& sender_;
  References& references_;
  Calls& calls_;
  Server& server_;
  Meeting& meeting_;
  Workers& workers_;
  TestHooks& hooks_;

  // All of this is of the thread that leads, and needs no lock.
  struct Writer {
    std::uint32_t participant_life = 0, rank = 0, life = 0;  // life 0: no worker
  };
  std::array<Writer, pool::kParticipants> writers_{};  // participants of the pool that have written
  std::vector<client::RemoteEvent> put_off_;           // events that came before earlier messages were read
  unsigned busy_ = 0;                                  // how often it has taken messages since the last look at events
};

}  // namespace shmb::remote
