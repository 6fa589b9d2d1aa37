// SPDX-License-Identifier: Apache-2.0
// A session: the identity of this process at the broker, and the door for every request. The door notices a forked
// child and first makes a new session for it. A forked child never uses the parent's connection, not even to shut it
// down. The tool and the supervisor use this C++ face; other programs use the C ABI on top of it.
//
// Ownership: handles share it (std::shared_ptr), so it lives until the last region, pool or queue of it has ended. Its
// end closes the connection, and the broker then takes back what is left.
//
// Threads: any thread may call any function. The mutex of the channel guards the members, and `takeover_` admits one
// thread to the take-over of a forked child. Both are held while the process forks, so a child finds the members whole.
//
// In a forked child the first call connects again (take_over): HELLO with the fork secret, then INHERIT of the leases
// of all handles that are enrolled. The socket of the parent is closed last. Until then the leases of a parent that has
// died meanwhile stay.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/session/channel.hpp"
#include "client/session/forked.hpp"
#include "client/session/held_lease.hpp"
#include "proto/codec.hpp"

namespace shmb::client {

class Pool;  // the session shares such objects without a look inside

struct Token {
  std::array<std::uint8_t, 16> bytes{};
  friend bool operator==(const Token&, const Token&) = default;
};

struct SessionFacts {
  shmbw_mode mode = SHMBW_MODE_LOCAL;
  std::uint16_t protocol = 0;
  std::uint64_t epoch = 0, session = 0, group = 0, features = 0;
  std::uint32_t uid = 0, broker_uid = 0;
  pid_t broker_pid = 0;  // of the process that listens, by SO_PEERCRED; 0 unknown
  std::size_t max_batch = SHMBW_MAX_BATCH;
  std::string socket, broker;  // path, version text
  std::string how;             // how the broker was found, and what was passed over
  bool started_by_us = false;
  Token fork_secret;
};

struct Greeting {
  std::string program;     // shown in `list`; empty: the process' name
  std::string group_name;  // beside the token, for messages
  std::optional<Token> group_token;
  std::uint64_t fork_session = 0;
  Token fork_secret;
};

struct GroupSpec {
  std::string name;
  std::uint64_t limit_bytes = 0;
  std::uint32_t limit_regions = 0, flags = 0;
  std::int64_t keep = 0;
};
struct GroupHandle {
  std::uint64_t id = 0;
  Token token;
};
struct GroupEnding {
  std::uint32_t members = 0, regions = 0;
  std::uint64_t bytes_freed = 0;
};
struct GroupLimit {
  std::uint64_t bytes = 0, before = 0, used = 0;  // UINT64_MAX: none
};

// The subject of a watch: a region (by a ticket for a session without a lease on it), a name at an address, a group by
// id or name, or the reclaims of a group or of the caller's uid.
struct WatchSpec {
  shmbw_watch_kind kind = SHMBW_WATCH_KIND_REGION;
  std::uint32_t events = 0;  // 0: all of the kind
  shmbw_region_ref region{};
  Token ticket = {};  // zeros: none
  std::uint64_t group = 0;
  std::string address;
  bool pool = false;  // kind name: of a pool, not of a region
};
struct Watch {
  std::uint64_t id = 0;
  std::uint32_t state = 0;
};

// Where something is not there: which of a host's brokers was asked.
Error asked_of(const std::string& socket, Error error);
// A refusal of something that the broker does not know: it is older than this library. The sentence says so, and names
// both versions. Nothing is added where a broker of this version refuses a flag.
Error of_older_broker(const SessionFacts& broker, Error error);

class Session final : public ForkGuarded, public std::enable_shared_from_this<Session> {
 public:
  // Greets the broker at the other end of `socket`. `known` carries path, how and started_by_us.
  static Result<std::shared_ptr<Session>> greet(Fd socket, SessionFacts known, Greeting greeting, Deadline deadline);
  static Result<std::shared_ptr<Session>> local(std::string how);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  SessionFacts facts();
  bool is_local() const { return local_; }
  std::uint64_t epoch() const { return facts_.epoch; }  // never changes within a session
  bool lost();
  Result<void> ping(Deadline deadline);

  // The door. `packet` is a request that wire::Writer made; its tag is filled in. An endless deadline is refused: only
  // waiting for others may take as long as it takes (law 11).
  Result<Reply> call(std::span<std::byte> packet, Deadline deadline, Channel::Subscription* subscription = nullptr,
                     std::span<const int> descriptors = {});
  Result<void> post(std::span<std::byte> packet, Deadline deadline);
  // Neither waits, nor notices a fork.
  Result<std::shared_ptr<Channel::Later>> ask(std::span<std::byte> packet) { return channel_.ask(packet); }
  bool has_come(Channel::Later& later) { return channel_.has_come(later); }
  std::uint64_t ends_given_back() { return channel_.ends_given_back(); }
  Error of_broker(Error error) const { return asked_of(facts_.socket, std::move(error)); }

  Result<GroupHandle> create_group(const GroupSpec& spec, Deadline deadline);
  Result<std::uint64_t> join_group(const std::string& group, std::uint32_t flags, Deadline deadline);
  Result<std::uint64_t> join_group(const Token& token, std::uint32_t flags, Deadline deadline);
  Result<std::uint64_t> leave_group(std::uint64_t group, Deadline deadline);
  Result<GroupEnding> end_group(std::uint64_t group, const std::string& name, std::uint32_t flags, Deadline deadline);
  // `bytes`: the new limit of the group's memory; 0: what is configured. `name` counts where `group` is 0.
  Result<GroupLimit> limit_group(std::uint64_t group, const std::string& name, std::uint64_t bytes, Deadline deadline);
  Result<void> wait_group(std::uint64_t group, Deadline answer, Deadline wait);

  Result<Watch> watch(const WatchSpec& spec, Deadline deadline);
  Result<void> unwatch(std::uint64_t watch, Deadline deadline);
  Result<Event> next_event(Deadline deadline);
  Result<int> event_descriptor();
  // Of the world that this session is a worker of (remote_calls.hpp).
  Result<std::optional<RemoteEvent>> next_remote_event(Deadline deadline);
  // A subscription of the library itself, for the length of one wait.
  class OwnWatch {
   public:
    explicit OwnWatch(Session& session) : session_(session) {}
    OwnWatch(const OwnWatch&) = delete;
    OwnWatch& operator=(const OwnWatch&) = delete;
    ~OwnWatch() { session_.channel_.unsubscribe(subscription_); }
    Result<void> begin(const WatchSpec& spec, Deadline deadline);
    // For another request whose reply names a watch.
    Channel::Subscription& subscription() { return subscription_; }
    std::uint32_t state() const { return subscription_.state; }  // what held already: no event comes for it
    // The first event, a gap among them: then what was waited for may have been lost.
    Result<Event> await(Deadline deadline);

   private:
    Session& session_;
    Channel::Subscription subscription_;
  };

  // The first event of any. With `group` it also ends, by a gap, when the session is not in that group any more.
  Result<Event> await_any(std::span<Channel::Subscription* const> subscriptions, Deadline deadline,
                          std::optional<std::uint64_t> group) {
    return channel_.await_any(subscriptions, deadline, group);
  }

  // Handles enrol so that a forked child can take their leases over.
  std::list<HeldLease*>::iterator enrol_lease(HeldLease& lease);
  // False: in a forked child that has not called yet, and now has nothing of it to take over. A child that is just
  // taking over is waited for.
  bool withdraw_lease(std::list<HeldLease*>::iterator place);
  // Its pools, see pool_places.hpp.
  void note_pool(std::uint64_t id, const std::shared_ptr<Pool>& pool, bool whole);
  std::shared_ptr<Pool> pool(std::uint64_t id);
  bool makes_pool(std::uint64_t id);
  std::uint64_t pool_moves();
  void pool_moved();
  void await_pool_move(std::uint64_t seen, Deadline deadline);  // until there was one after `seen`, or the deadline
  bool pump() { return channel_.pump(); }
  std::vector<GpuEvent> take_gpu_events() { return channel_.take_gpu_events(); }
  std::uint64_t asked_back() const { return channel_.asked_back(); }
  bool take_asked_back(std::uint64_t& seen, std::vector<std::uint64_t>& ids) {
    return channel_.take_asked_back(seen, ids);
  }
  int socket_descriptor() { return channel_.socket_descriptor(); }
  bool wants_room() const { return channel_.wants_room(); }
  int watch_descriptor() { return channel_.watch_descriptor(); }
  void flush() { channel_.flush(); }
  void add_listener(int event) { channel_.add_listener(event); }
  void remove_listener(int event) { channel_.remove_listener(event); }
  std::uint64_t next_local_id();
  void note_group(std::uint64_t group) { channel_.note_group(group); }  // of unnamed sessions, from a create
  Result<void> enter();                                                 // notices a fork; cheap otherwise
  bool is_fresh_child() const { return !local_ && !mark_.intact(); }    // forked, and has not called yet

  void lock_for_fork() override;
  void unlock_after_fork() override;

 private:
  explicit Session(bool local) : local_(local) {}
  Result<void> hello(const Greeting& greeting, Deadline deadline);
  Result<void> take_over(Deadline deadline);
  Result<void> greet_again(const std::string& path, const Greeting& greeting, Deadline deadline);
  Result<void> inherit(Deadline deadline);
  Result<std::uint64_t> join(shmbw_group_join request, const std::string& name, Deadline deadline);

  const bool local_;
  ForkMark mark_;
  std::mutex takeover_;  // held while a forked child becomes a session of its own
  Channel channel_;      // its mutex guards the members below too
  SessionFacts facts_;
  std::string program_;
  std::list<HeldLease*> leases_;
  std::uint64_t last_local_id_ = 0;
};

std::unexpected<Error> needs_broker(const char* what);
// For calls that change something before they ask the broker.
Result<void> check_answer_deadline(Deadline deadline);

}  // namespace shmb::client
