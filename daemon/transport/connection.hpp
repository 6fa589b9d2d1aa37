// SPDX-License-Identifier: Apache-2.0
// One accepted socket. It reads one packet at a time. A request that has a reply is served only while no earlier reply
// is unread, and waits here otherwise. The connection also watches the life of the process at the other end. Nothing
// that a peer does here can make another session wait.
//
// A connection is in one of these states:
// - new: the books have a session for it, and HELLO must come in time.
// - greeted: it waits for a packet (`asked_`), or serves one (`serving_`).
// - holding: a request is kept and nothing is read. There are four causes. The last reply is unread, or the process is
//   over its share (`over_share_`). Seals are awaited (`waiting_`), or the request was served in part (`yields_`).
// - choked: nothing is read, because descriptors that the user sent are still being closed.
// - ending: no call comes any more, and the transport finishes it after the turn.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "daemon/kit/list.hpp"
#include "daemon/kit/timers.hpp"
#include "daemon/transport/engine.hpp"
#include "daemon/transport/link.hpp"
#include "daemon/transport/outbox.hpp"
#include "daemon/transport/peer.hpp"

namespace shmb::daemon {

class Transport;
struct HalfOpen;

// Closes a connection's socket. Descriptors that lie unread in it are closed with it, and that may wait for their
// sender: then it happens elsewhere.
void close_socket(BrokerEvents& books, std::uint32_t uid, Fd socket);

// The way of a request: it arrives, may be kept (`held_`) until the reply before it was read, is served, and is
// answered. While it is served the ledger may also call hold(): the request waits for seals and is served again after
// serve_again(). Or it calls yield(): a part of the work is done, and the rest comes in the session's next turn. In all
// of these states no further packet is read, so a client has one request in the broker and the others in its socket.
//
// Ownership: the transport owns it. end() stops all calls, and the transport destroys it after the turn.
class Connection final : public Link, private Port, public Hook<Connection, HalfOpen> {
 public:
  Connection(Transport& transport, Fd socket, Identity identity);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  // False: the books or the engine refuse it; the caller destroys it.
  bool start();
  // Instead, of a session that the books have from the broker before this one. False: the engine refuses it.
  bool take_over(const BrokerEvents::Open& open);

  const Peer& peer() const override { return identity_.facts; }
  Held descriptors_held() const override {
    return {socket_.get(), identity_.pidfd_is_certain ? identity_.pidfd.get() : -1};
  }
  void reply(wire::Bytes packet, std::span<const int> fds) override;
  void hold() override { waiting_ = serving_ && !replied_; }
  void serve_again() override;
  void yield() override { yields_ = serving_ && !replied_; }
  void event(wire::Bytes packet) override;
  void send_events() override;
  void drop(std::string_view why) override;
  std::uint32_t descriptors_in_flight() const override { return outbox_->unread_descriptors(); }
  bool confirm_start_time(std::uint64_t start_time) override;
  bool process_over() const override;
  void take_descriptors(bool many) override;
  std::vector<Fd>& descriptors() override { return brought_; }
  bool over_share() const override { return refused_; }

  enum class Ending { none, end_of_file, lazy };
  void end(Ending how);  // stops all calls at once; the transport finishes it after the turn
  Ending ending() const { return ending_; }
  bool greeted() const { return greeted_; }
  std::string who() const;  // "uid 1000 pid 4711" for the log

  // For the transport, at the end. The destructor closes the socket.
  Session* session() const { return session_; }
  bool death_told() const { return death_told_; }
  Fd take_pidfd();  // if there is one that is certain
  // Of a lazy reader: what keeps the count of its unread descriptors true.
  struct Remains {
    Fd socket;
    std::unique_ptr<Outbox> outbox;
  };
  Remains leave_remains();
  // The broker waits for the peer's next packet, and none is there. A packet that came in time counts, even if the
  // broker reads it late.
  bool is_silent() const;

  std::size_t index = 0;  // in the transport's table
  std::int64_t born = 0;

 private:
  void on_arrival(Arrival& arrival) override;
  void on_writable() override;
  void on_process_end();
  void on_hello_timeout();
  void await_hello();
  void on_rest();
  bool may_serve(wire::Bytes packet);
  void serve(wire::Bytes packet);
  void discard_brought();
  bool keep_brought();  // while its request waits; false: there is no room
  void count_brought_no_more();
  void go_on();  // after anything was sent or served: what is waited for now

  struct Death final : Waiter {
    explicit Death(Connection& connection) : owner(connection) {}
    void on_readable() override { owner.on_process_end(); }
    Connection& owner;
  };
  struct HelloTimer final : Timer {
    explicit HelloTimer(Connection& connection) : owner(connection) {}
    void on_timer(std::int64_t) override { owner.on_hello_timeout(); }
    Connection& owner;
  };
  struct Rest final : Turns::Item {
    explicit Rest(Connection& connection) : owner(connection) {}
    void on_turn() override { owner.on_rest(); }
    Connection& owner;
  };
  struct RetryTimer final : Timer {
    explicit RetryTimer(Connection& connection) : owner(connection) {}
    void on_timer(std::int64_t) override { owner.on_writable(); }
    Connection& owner;
  };

  Transport& transport_;
  Turns::Process& process_;
  Fd socket_;
  Identity identity_;
  Session* session_ = nullptr;
  std::unique_ptr<Outbox> outbox_;
  std::vector<Fd> brought_;       // with the request in service or held
  std::size_t brought_kept_ = 0;  // that the books count, because their request is held
  std::vector<std::byte> held_;   // a request that may not be served yet, or again (waiting_, yields_); one at most
  bool holding_ = false, over_share_ = false, refused_ = false, waiting_ = false, yields_ = false, asked_ = false,
       serving_ = false, replied_ = false, edges_ = false;
  bool greeted_ = false, death_told_ = false, reset_ = false;
  std::size_t may_bring_ = 0;  // descriptors in one packet
  std::int64_t retry_pause_ = 0;
  std::int64_t choked_since_ = 0;  // nothing is read: descriptors that it sent are still being closed
  Ending ending_ = Ending::none;
  Death death_{*this};
  HelloTimer hello_timer_{*this};
  RetryTimer retry_timer_{*this};
  Rest rest_{*this};
};

}  // namespace shmb::daemon
