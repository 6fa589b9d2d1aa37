// SPDX-License-Identifier: Apache-2.0
// One connection to the broker, shared by any number of threads. The library starts no thread of its own (law 10).
//
// Leader: of the threads that wait, one reads the socket. Each reply carries the tag of its request, so the leader
// finds the thread that waits for it. A leader that has its own reply wakes another waiter, which leads next. `mutex_`
// guards all members and is not held while the leader waits in poll(2). A leader that waits for a reply first looks at
// the socket for a while (SpinHabit), because a sleep would take longer than most answers.
//
// A call is in one of these states:
// - pending: its tag is in `pending_`, and its thread waits.
// - done: the reply has come, or the connection is lost.
// - given up: its deadline has passed. The tag stays. The leader that reads the late reply gives back what the broker
//   granted. So no deadline leaks a lease, a descriptor or a place in a group.
//
// A connection that is lost stays lost: every wait ends with an error, and the reason is kept.
//
// Events go to separate queues: those of the user, of worlds of workers, of GPU regions, and of the library's own
// subscriptions.
//
// One-way requests are sent in the order of their posts. Where the socket has no room they wait in `outgoing_`. The
// leader, or the next call, sends them. `outgoing_` also keeps what was sent, if another broker may take the session
// over: it tells by the event RESUME what it has, and the leader sends the rest again. Calls only wait longer then.
//
// A fork: the child calls forget(), which only closes its copies of the descriptors, and opens a connection of its own.
// The socket and the epoll set are shared with the parent, so it changes neither.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.hpp"
#include "client/session/condition.hpp"
#include "client/session/deadline.hpp"
#include "client/session/group_places.hpp"
#include "client/session/outgoing.hpp"
#include "client/session/pool_places.hpp"
#include "client/session/spin_habit.hpp"
#include "proto/codec.hpp"
#include "proto/packet.hpp"
#include "proto/refusal.hpp"

namespace shmb::client {

struct Reply {
  std::vector<std::byte> bytes;  // `view` looks into it
  wire::PacketView view;
  std::vector<Fd> fds;
};

// The fixed part of a reply that was no refusal.
template <class T>
Result<T> fixed_of(const Reply& reply) {
  auto fixed = wire::read_struct<T>(reply.view.fixed);
  if (!fixed) return error(Status::protocol, "the broker's answer has fields that this library does not know");
  return *fixed;
}

// An event as it came, or one that the library made.
struct Event {
  enum class Kind {
    region_ready = 1,
    region_published,
    region_gone,
    name_appeared,
    group_ended,
    reclaim,
    gap,
    broker_away,
    gpu_state = 24,   // how: the state, code: the driver's result
    gpu_device = 26,  // to the library's own waiting call only; how: the hold, pid: the minor, code: an errno
  };
  Kind kind = Kind::gap;
  std::uint64_t sequence = 0, watch = 0;
  shmbw_region_ref region{};
  std::uint64_t group = 0, bytes = 0, lost = 0;
  std::uint32_t uid = 0, pid = 0, regions = 0, how = 0;
  std::int32_t code = 0;
  std::string text;
};

// Events of a world of workers. They are kept apart from the events that the user subscribed to.
struct RefId {
  std::uint64_t counter = 0;  // 0: none
  std::uint32_t creator = 0;
  friend auto operator<=>(const RefId&, const RefId&) = default;
};
struct RemoteEvent {
  enum class Kind { world_changed, ref_unused, ref_changed, gap };  // gap: some were lost, read the lists again
  Kind kind = Kind::gap;
  std::uint64_t world = 0;
  RefId reference;
  shmbw_world_change change = SHMBW_WORLD_CHANGE_NONE;
  std::uint32_t rank = 0, life = 0, present = 0, owner = 0;
  shmbw_ref_state state = SHMBW_REF_STATE_NONE;
};

// An event about a GPU region. The broker sends it to every session that holds a lease, without a subscription.
struct GpuEvent {
  enum class Kind { state, drained, gap } kind = Kind::gap;
  shmbw_region_ref region{};
  shmbw_gpu_state state = SHMBW_GPU_STATE_NONE;
  shmbw_gpu_kind region_kind = SHMBW_GPU_KIND_NONE;
  std::int32_t code = 0;
  std::uint32_t pid = 0;
};

class Channel {
 public:
  using Lock = std::unique_lock<std::mutex>;
  // Bytes of a request's body that are kept until its reply has come: the fixed part of each request that can be
  // undone.
  static constexpr std::size_t kKeptOfRequest = 48;

  // A subscription of the library itself: its events wake one waiting call and never reach the user's queue.
  struct Subscription {
    std::uint64_t watch = 0;  // set when the reply to WATCH is read, before any event of it can be
    std::uint32_t state = 0;  // what held already
    std::vector<Event> events;
  };

  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  Result<void> open(Fd socket);
  // In a forked child: forgets everything of the parent's and hands out its descriptors, which are then only closed.
  // Shutting down the socket or changing the epoll set would reach the parent: both are shared objects.
  std::vector<Fd> forget();

  // Sends one request (its number is filled in as its tag) and waits for the reply. A refusal is the Error it carries.
  // Descriptors travel with it as copies; the packet's header counts them.
  Result<Reply> call(std::span<std::byte> packet, Deadline deadline, Subscription* subscription = nullptr,
                     std::span<const int> descriptors = {});
  // A request whose answer is looked for later: it is sent now, or not at all.
  struct Later {
    bool came = false;
    std::vector<Fd> fds;  // none: it was refused, or the session is lost
  };
  Result<std::shared_ptr<Later>> ask(std::span<std::byte> packet);
  bool has_come(Later& later);  // takes in what has arrived, without waiting. Then it is the caller's alone
  // A request without a reply, which is never repeated. If the socket has no room before the deadline, the packet waits
  // here. A thread that waits for this session, in a call or on a descriptor, sends it as soon as there is room. If
  // none waits, the next call or flush() sends it.
  Result<void> post(std::span<std::byte> packet, Deadline deadline);
  // The first event of `subscription` that was not taken yet. It is moved out, because the leading thread may add more
  // while this one returns. A lost session ends the wait.
  Result<Event> await(Subscription& subscription, Deadline deadline);
  // The first event of any. With `group` it also ends, by a gap, when the session is not in that group any more.
  Result<Event> await_any(std::span<Subscription* const> subscriptions, Deadline deadline,
                          std::optional<std::uint64_t> group = {});
  void note_group(std::uint64_t group);  // if the session is in none
  void unsubscribe(Subscription& subscription) noexcept;

  Result<Event> next_event(Deadline deadline);
  Result<int> event_descriptor();
  // The next of a world's; nullopt: none came before the deadline.
  Result<std::optional<RemoteEvent>> next_remote_event(Deadline deadline);
  // For other waiting beside it: takes what has arrived, without waiting. False: the session is lost.
  bool pump();
  void flush();             // sends what waits for room, if there is room by now; cheap where nothing waits
  int socket_descriptor();  // -1: lost
  // For sets of descriptors. Readable when a packet has come, and when waiting packets have room. pump() receives the
  // former and sends the latter. -1: lost.
  int watch_descriptor();
  // Whether packets wait for room in the socket. For waits that cannot watch a descriptor: they look again soon.
  bool wants_room() const { return wants_room_.load(std::memory_order_relaxed); }
  // The events about GPU regions since the last call. Reads the socket, but does not wait. After a gap, read the list.
  std::vector<GpuEvent> take_gpu_events();
  // Kept mappings that the broker wants back (event give_up): how many it has asked for, ever.
  std::uint64_t asked_back() const { return asked_count_.load(std::memory_order_acquire); }
  // Those behind `seen`, which moves on. False: some of them are not known any more.
  bool take_asked_back(std::uint64_t& seen, std::vector<std::uint64_t>& ids);
  // An eventfd that is signalled by an event of a pool, a world or a GPU region, and when the session is lost. Any
  // thread may read the event from the socket.
  void add_listener(int event);
  void remove_listener(int event);

  // How many ends of queues, opened too late, have been given back. A caller that gets BUSY, and sees this move, may
  // have asked before the broker could know.
  std::uint64_t ends_given_back();

  bool lost();
  bool hung_up();  // lost because the broker closed the connection: it has ended, or turned us away
  std::string lost_reason();
  std::mutex& mutex() { return mutex_; }
  GroupPlaces groups;                        // under `mutex`
  PoolPlaces pools;                          // under `mutex`
  void set_lost_reason(std::string reason);  // for a session that never came to be

 private:
  friend class LateReply;
  // On the stack of the thread that waits, in a list without memory of its own: a wait cannot fail half-way.
  struct Waiter {
    Condition wake;
    Waiter *before = nullptr, *after = nullptr;
  };
  struct Call {
    Waiter waiter;
    bool done = false;
    bool descriptors_lost = false;
    Reply reply;
  };
  // The request that a tag stands for. `call` is null once the caller has given up.
  struct Pending {
    std::uint16_t op = 0;                             // 0: no call waits, and nothing is given back
    std::array<std::byte, kKeptOfRequest> request{};  // the first bytes behind the header
    Call* call = nullptr;
    Subscription* subscription = nullptr;
    std::shared_ptr<Later> later = nullptr;
  };

  // `soon`: a thread that leads looks for a while before it sleeps.
  template <class Done>
  bool wait(Lock& lock, Deadline deadline, Waiter& me, Done done, bool soon = false) noexcept;
  void add(Waiter& waiter);
  void remove(Waiter& waiter);
  void pass_the_lead();
  void wake_all();
  enum class Read { nothing, at_once, later };  // later: after a sleep
  Read read_once(Lock& lock, Deadline deadline, bool or_writable, bool soon = false);
  wire::Incoming look(int socket, Deadline deadline);
  void send_later(std::span<const std::byte> packet);
  Sys<void> send_unsent();
  void lose_at_sending(Errno failed) noexcept;
  void rest_for_memory(Lock& lock);
  void want_room(bool wanted);
  bool keep_unsent(std::span<const std::byte> packet);  // false: there are too many
  Result<std::uint64_t> send(Lock& lock, std::span<std::byte> packet, Deadline deadline,
                             std::span<const int> descriptors, const Pending* pending);
  Result<std::uint64_t> send_in_turn(Lock& lock, std::span<std::byte> packet, Deadline deadline,
                                     std::span<const int> descriptors, const Pending* pending, std::uint64_t& tag);
  void move_pending(std::uint64_t from, std::uint64_t to) noexcept;
  void bound_one_ways(Lock& lock);
  void resume(const wire::PacketView& view);
  void take_packet(wire::Incoming incoming);
  void take_reply(const wire::PacketView& view, std::vector<Fd> fds, bool descriptors_lost);
  void take_event(const wire::PacketView& view);
  void give_back(const wire::PacketView& view, const Pending& pending, std::span<const Fd> fds);
  void leave_late_groups();
  void ask_for_nobody(std::span<const std::byte> packet);
  void cancel_watch(std::uint64_t watch);
  void queue(Event event);
  void take_remote_event(const wire::PacketView& view);
  void tell_listeners();
  void queue_gpu(GpuEvent event);
  void take_device_event(const wire::PacketView& view);
  void lose(std::string why);
  bool has_socket() const;
  void forget_closed();
  void end() noexcept;
  std::unexpected<Error> lost_error() const;

  std::mutex mutex_;
  Fd socket_, epoll_, event_;
  std::uint64_t device_ = 0, inode_ = 0;  // of the socket: the number of its descriptor may come to name another file
  Fd watch_;  // a set of the socket alone: in it room is asked for, and all sets that watch it are ready then
  std::vector<std::byte> inbox_;
  bool reading_ = false;  // somebody is the leader
  SpinHabit habit_;       // the leader's
  Waiter *first_waiter_ = nullptr, *last_waiter_ = nullptr;
  std::uint64_t last_place_ = 0;  // of a request that waits for room, and has no number yet
  std::unordered_map<std::uint64_t, Pending> pending_;
  std::unordered_map<std::uint64_t, Subscription*> subscriptions_;
  std::vector<Waiter*> event_waiters_;
  std::vector<int> listeners_;
  std::uint64_t ends_given_back_ = 0;
  std::deque<Event> events_;
  std::deque<RemoteEvent> remote_events_;
  bool remote_gap_ = false;
  std::vector<GpuEvent> gpu_events_;
  bool gpu_lost_ = false;
  static constexpr std::size_t kMostAsked = 1024;
  std::deque<std::uint64_t> asked_;             // ids of regions that the broker wants back, the last ones
  std::atomic<std::uint64_t> asked_count_ = 0;  // ever; more than lie in asked_: some are not known any more
  Outgoing outgoing_;
  bool sender_waits_ = false;             // for room, beside the leader, who wakes it
  std::atomic<bool> wants_room_ = false;  // a sender waits or packets wait in outgoing_, and the session is not lost
  std::uint64_t dropped_ = 0;
  bool lost_ = false, hung_up_ = false;
  std::string lost_reason_;
};

}  // namespace shmb::client
