// SPDX-License-Identifier: Apache-2.0
// The transport: everything between the sockets and the ledger. It owns the listeners, the table of connections, the
// pidfds that outlive their connection, and the count of descriptors in flight. It moves packets and never looks into
// the ledger; the interface between the two is daemon/transport/link.hpp.
//
// The states of a connection:
// - silent: accepted, without a HELLO. Their number is bounded. At the bound the oldest one of the uid with most of
//   them makes room.
// - greeted: a session. Its packets are served one at a time, and none while a reply to it is unread.
// - ending: the peer closed, broke the protocol, or is a lazy reader. It is finished after the turn.
// - afterlife: the connection is gone, and its pidfd is still watched (daemon/transport/dead_peer_watch.hpp). Then the
//   ledger forgets the session.
//
// Invariants:
// - One bad peer delays no other (law 8). Nothing here blocks, and every queue is bounded
//   (daemon/transport/outbox.hpp). Turns are shared by user and process (daemon/kit/turns.hpp).
// - A session that does not read is disconnected under two conditions. Its reply is older than the time-out, and the
//   descriptors in flight exceed half the allowance. Its leases stay until its process ends.
// - Each session handle gets exactly one `forget`, as the last call for it.
// - One thread. An object that ends inside a call is destroyed after the turn, so none is destroyed while its function
//   runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/sys_process.hpp"
#include "daemon/kit/timers.hpp"
#include "daemon/start/config.hpp"
#include "daemon/transport/connection.hpp"
#include "daemon/transport/engine.hpp"
#include "daemon/transport/link.hpp"
#include "daemon/transport/listener.hpp"
#include "daemon/transport/outbox.hpp"

namespace shmb::daemon {

class DeadPeerWatch;

class Transport {
 public:
  // `table`: how many descriptors this process may have.
  Transport(Engine& engine, const Config& config, std::uint64_t table);
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  ~Transport();

  Sys<void> attach(BrokerEvents& books);  // once, before anything else
  void take_over();                       // the connections of the last broker, and then its books may begin
  Sys<void> listen_on(Fd socket, bool admin);
  enum class End { stopped, idle, failed };
  End run();                             // until stop(), the idle time-out, or an engine that cannot go on
  Sys<void> turn(std::int64_t longest);  // one round, for tests; -1: until something happens
  void stop() { stopped_ = true; }
  void set_limits(const Limits& limits) { config_.limits = limits; }  // for connections that come afterwards

  void close_all();  // no listener, no connection, no books; also done at the end

  std::size_t connections() const { return connections_.size(); }
  std::uint32_t descriptors() const;          // held on account of connections
  void descriptor_freed() { freed_ = true; }  // the ledger has freed one: a paused listener continues
  std::uint32_t descriptors_in_flight();      // exact: asks every socket that may hold some

  // For connections and listeners.
  Engine& engine() { return engine_; }
  BrokerEvents& books() { return *books_; }
  Timers& timers() { return timers_; }
  InFlight& in_flight() { return in_flight_; }
  const Config& config() const { return config_; }
  static std::int64_t now() { return sys::now_boottime(); }
  void admit(Fd socket, bool admin);
  // The kernel lets any client send descriptors, asked or not (before Linux 6.16).
  bool may_all_send() const { return all_may_send_; }
  void all_may_send() { all_may_send_ = true; }
  bool too_many_silent() const { return half_open_.size() >= std::max<std::uint64_t>(16, table_ / 8); }
  bool make_room_among_silent();
  void no_longer_silent(Connection& connection);
  void finish_later(Connection& connection);
  void forget(DeadPeerWatch& afterlife);
  void tell_full();

 private:
  struct BooksWake final : Waiter {
    explicit BooksWake(Transport& transport) : owner(transport) {}
    void on_readable() override { owner.books_->woken(); }
    Transport& owner;
  };
  struct Sweep final : Timer {
    explicit Sweep(Transport& transport) : owner(transport) {}
    void on_timer(std::int64_t now) override { owner.disconnect_lazy(now); }
    Transport& owner;
  };
  struct IdleTimer final : Timer {
    explicit IdleTimer(Transport& transport) : owner(transport) {}
    void on_timer(std::int64_t) override { owner.idle_over(); }
    Transport& owner;
  };

  void finish();
  void finish_one(std::unique_ptr<Connection> connection);
  void disconnect_lazy(std::int64_t now);
  void watch_idleness();
  void idle_over();

  Engine& engine_;
  Config config_;
  BrokerEvents* books_ = nullptr;
  std::uint64_t table_;
  std::int64_t told_full_ = 0;
  Timers timers_;
  InFlight in_flight_;
  std::vector<std::unique_ptr<Connection>> connections_;
  List<Connection, HalfOpen> half_open_;           // oldest first
  std::map<std::uint32_t, std::uint32_t> silent_;  // how many of them each uid has
  std::vector<Connection*> finishing_;
  std::vector<std::unique_ptr<DeadPeerWatch>> afterlives_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::uint32_t abandoned_sockets_ = 0, counted_by_books_ = 0;
  bool freed_ = false, stopped_ = false, idle_ = false, all_may_send_ = false;
  BooksWake wake_{*this};
  Sweep sweep_{*this};
  IdleTimer idle_timer_{*this};
};

}  // namespace shmb::daemon
