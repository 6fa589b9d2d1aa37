// SPDX-License-Identifier: Apache-2.0
// See connection.hpp.
#include "daemon/transport/connection.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "daemon/kit/log.hpp"
#include "daemon/transport/transport.hpp"
#include "proto/wire_traits.hpp"

namespace shmb::daemon {
namespace {

// The pause before the next try of a reply that the kernel refused for lack of resources, or of a request over its
// process' share. The kernel does not report when another socket has been read. Longer each time, because thousands may
// wait so.
constexpr std::int64_t kFirstRetry = 5'000'000, kLastRetry = 80'000'000;

// All that the transport reads of a request before it is served: its header, and what the table says of its kind.
struct Opening {
  shmbw_header header{};
  const wire::Traits& traits;
  wire::Bytes fixed;  // as much of the fixed part as has come
};

Opening opening_of(wire::Bytes packet) {
  shmbw_header header{};
  if (packet.size() < sizeof header) return {header, wire::traits_of(0), {}};
  std::memcpy(&header, packet.data(), sizeof header);
  const wire::Bytes body = packet.subspan(sizeof header);
  return {header, wire::traits_of(header.op), body.first(std::min<std::size_t>(header.fixed, body.size()))};
}

// The most descriptors that a batch may be answered with; 0 if that is not known before it is served.
std::size_t descriptors_to_come(const Opening& request) {
  shmbw_batch batch{};
  if (request.traits.fds_out != wire::FdsOut::per_element || request.fixed.size() < sizeof batch) return 0;
  std::memcpy(&batch, request.fixed.data(), sizeof batch);
  return batch.count;
}

// Whether the broker sends no answer. Only READY, signals between members of a pool, returns and reports may ask for
// that: nothing then waits behind them. Any other request with this flag gets an error reply.
bool is_never_answered(const Opening& request) {
  return (request.header.flags & ~SHMBW_HEADER_RESUMED) == SHMBW_HEADER_NO_REPLY &&
         wire::may_have_no_reply(request.traits, request.fixed);
}

}  // namespace

void close_socket(BrokerEvents& books, std::uint32_t uid, Fd socket) {
  // The peer sees the end now, even if an asynchronous receive still holds the socket for a moment. It can send no
  // more.
  (void)sys::shutdown(socket.get());
  if (!sys::holds_packet(socket.get())) return;
  std::vector<Fd> one;
  one.push_back(std::move(socket));
  (void)books.close_elsewhere(uid, std::move(one));
}

Connection::Connection(Transport& transport, Fd socket, Identity identity)
    : transport_(transport),
      process_(transport.engine().turns.join(identity.facts.uid, identity.facts.pid)),
      socket_(std::move(socket)),
      identity_(std::move(identity)),
      outbox_(std::make_unique<Outbox>(socket_.get(), transport.config().limits.events_queued, transport.in_flight(),
                                       this, Sharer{identity_.facts.uid, identity_.facts.pid})) {}

Connection::~Connection() {
  discard_brought();
  transport_.engine().remove(*this);
  transport_.engine().unwatch(death_);
  transport_.engine().turns.forget(rest_);
  transport_.engine().turns.leave(process_);
  outbox_.reset();
  if (socket_) close_socket(transport_.books(), identity_.facts.uid, std::move(socket_));
}

bool Connection::start() {
  if (!transport_.engine().add(socket_.get(), *this, process_)) return false;
  // An uncertain pidfd may be somebody else's: it is watched only once HELLO has confirmed it. `connected` books one
  // that is watched.
  if (identity_.pidfd_is_certain && !transport_.engine().watch(identity_.pidfd.get(), death_, &process_)) {
    identity_.pidfd.reset();
    identity_.facts.has_pidfd = false;
  }
  session_ = transport_.books().connected(*this);
  if (session_ == nullptr) return false;
  // Before Linux 6.16 any peer can send descriptors. A user with too many of them to close is not read until there are
  // fewer.
  if (transport_.may_all_send() && transport_.books().closes_too_many(identity_.facts.uid))
    choked_since_ = transport_.now();
  if (ending_ != Ending::none) {  // dropped from inside `connected`
    end(std::exchange(ending_, Ending::none));
    return true;
  }
  await_hello();
  go_on();
  return true;
}

bool Connection::take_over(const BrokerEvents::Open& open) {
  if (!transport_.engine().add(socket_.get(), *this, process_)) return false;
  if (identity_.pidfd && !transport_.engine().watch(identity_.pidfd.get(), death_, &process_)) return false;
  session_ = open.session;
  greeted_ = true;
  if (open.takes_descriptors) take_descriptors(false);
  outbox_->may_be_unread();
  transport_.books().connected_again(*session_, *this);
  go_on();
  return true;
}

bool Connection::confirm_start_time(std::uint64_t start_time) {
  bool was_certain = identity_.pidfd_is_certain;
  if (!daemon::confirm_start_time(identity_, socket_.get(), start_time)) return false;
  if (!was_certain && !transport_.engine().watch(identity_.pidfd.get(), death_, &process_)) {
    identity_.pidfd.reset();
    identity_.facts.has_pidfd = false;
    return false;
  }
  return true;
}

bool Connection::process_over() const {
  if (!identity_.pidfd || !identity_.pidfd_is_certain) return false;
  auto over = sys::poll_readable(identity_.pidfd.get(), 0);
  return over && *over;
}

void Connection::take_descriptors(bool many) {
  may_bring_ = std::max(may_bring_, many ? sys::kMaxFdsPerMessage : 1);
  (void)sys::refuse_descriptors(socket_.get(), false);
}

void Connection::on_arrival(Arrival& arrival) {
  asked_ = false;
  discard_brought();
  brought_ = std::move(arrival.descriptors);
  // It closed with answers unread, which the kernel tells once, before what it had sent and the end of the file. A
  // RELEASE among that counts.
  if (arrival.error == ECONNRESET && !std::exchange(reset_, true)) return go_on();
  if (arrival.error == ECONNRESET) return end(Ending::end_of_file);
  if (arrival.error != 0) return drop("receive failed: " + errno_text(arrival.error));
  if (arrival.bytes.empty() && !arrival.bad_control && brought_.empty()) {
    // An empty packet looks the same to us; its sender loses the session like one that closed it.
    return end(Ending::end_of_file);
  }
  if (arrival.truncated) return drop("a packet is longer than any message");
  if (arrival.bad_control || brought_.size() > may_bring_) return drop("sent descriptors that nobody asked for");
  if (!may_serve(arrival.bytes)) {
    if (!keep_brought()) return drop("sent descriptors before it had read its last reply, and its user has too many");
    held_.assign(arrival.bytes.begin(), arrival.bytes.end());
    holding_ = true;
    return go_on();
  }
  serve(arrival.bytes);
}

bool Connection::keep_brought() {
  if (brought_.empty()) return true;
  if (!transport_.books().keep_waiting(identity_.facts.uid, brought_.size())) return false;
  brought_kept_ = brought_.size();
  return true;
}

void Connection::count_brought_no_more() {
  if (brought_kept_ != 0) transport_.books().waited(identity_.facts.uid, std::exchange(brought_kept_, 0));
}

void Connection::discard_brought() {
  count_brought_no_more();
  std::vector<Fd> left = std::exchange(brought_, {});
  std::erase_if(left, [](const Fd& fd) { return !fd; });  // what the books have taken
  if (left.empty() || transport_.books().close_elsewhere(identity_.facts.uid, std::move(left))) return;
  if (choked_since_ == 0) choked_since_ = transport_.now();
}

// Law 8: no request is served while a reply of its session is unread. Requests without a reply are served: a sleeping
// peer must not wait until this session reads. A request that is answered with descriptors also waits while other
// sessions of this process have left their share of the allowance unread.
bool Connection::may_serve(wire::Bytes packet) {
  over_share_ = refused_ = false;
  const Opening request = opening_of(packet);
  if (!outbox_->open()) return is_never_answered(request);
  over_share_ = request.traits.fds_out != wire::FdsOut::none &&
                !transport_.in_flight().within_share(*outbox_, descriptors_to_come(request), transport_.now());
  if (over_share_ && wire::has_value(request.fixed, request.traits.refused_over_share)) {
    over_share_ = false;
    refused_ = true;
  }
  return !over_share_;
}

void Connection::serve(wire::Bytes packet) {
  count_brought_no_more();
  auto view = wire::open_packet(packet, brought_.size(), wire::Direction::request);
  if (!view) return drop(wire::malformed_text(view.error()));
  serving_ = true;
  replied_ = yields_ = false;
  transport_.books().packet(*session_, *view);
  serving_ = false;
  discard_brought();
  if (ending_ != Ending::none) return;
  if (!greeted_ && transport_.books().greeted(*session_)) {
    greeted_ = true;
    hello_timer_.cancel();
    transport_.no_longer_silent(*this);
  }
  if (yields_) {
    outbox_->promise(descriptors_to_come(opening_of(packet)));
    transport_.engine().turns.ready(process_, rest_);
  }
  if (waiting_ || yields_) {
    if (packet.data() != held_.data()) held_.assign(packet.begin(), packet.end());
    holding_ = true;
  }
  go_on();
}

void Connection::serve_again() {
  if (ending_ != Ending::none || !waiting_) return;
  waiting_ = false;
  on_writable();
}

void Connection::reply(wire::Bytes packet, std::span<const int> fds) {
  if (ending_ != Ending::none || !serving_ || replied_) return;
  replied_ = true;
  switch (outbox_->reply(packet, fds, fds.empty() ? 0 : transport_.now())) {
    case Outbox::Sent::sent:
    case Outbox::Sent::kept:
    case Outbox::Sent::peer_gone:  // end of file comes as the next arrival
      return;
    case Outbox::Sent::lost:
      return drop("a reply could be neither sent nor kept");
  }
}

void Connection::event(wire::Bytes packet) {
  if (ending_ != Ending::none) return;
  outbox_->event(packet);
}

void Connection::send_events() {
  if (ending_ != Ending::none || !outbox_->has_events()) return;
  outbox_->send_events();
  if (!serving_) go_on();
}

void Connection::on_writable() {
  if (ending_ != Ending::none) return;
  if (outbox_->flush(transport_.now()) == Outbox::Sent::lost) return drop("a reply that was kept could not be sent");
  // The peer has hung up, so no process waits for the answer. The packets behind this request are still served.
  if (waiting_ && hung_up(socket_.get())) {
    waiting_ = holding_ = false;
    if (const auto view = wire::open_packet(held_, brought_.size(), wire::Direction::request))
      transport_.books().given_up(*session_, *view);
  }
  if (holding_ && !waiting_ && !yields_ && may_serve(held_)) {
    holding_ = false;
    return serve(held_);
  }
  go_on();
}

// Its first part was served, so the gate was open; events that were sent since do not close it.
void Connection::on_rest() {
  if (ending_ != Ending::none || !yields_) return;
  holding_ = false;
  serve(held_);
}

void Connection::go_on() {
  if (ending_ != Ending::none) return;
  if (choked_since_ != 0 && !transport_.books().closes_too_many(identity_.facts.uid)) choked_since_ = 0;
  // A busy machine needs some time to close thousands of descriptors. Closes that take this long wait for a process.
  if (choked_since_ != 0 && transport_.now() - choked_since_ >= transport_.config().unread_timeout)
    return drop("closing the descriptors that its user sends takes too long");
  bool edges = (holding_ && !over_share_ && !yields_) || outbox_->wants_edge();
  if (edges != edges_) {
    edges_ = edges;
    transport_.engine().await_writable(*this, edges);
  }
  if (!outbox_->wants_timer() && !(holding_ && over_share_) && choked_since_ == 0) {
    retry_timer_.cancel();
    retry_pause_ = 0;
  } else if (!retry_timer_.armed()) {
    retry_pause_ = std::clamp(2 * retry_pause_, kFirstRetry, kLastRetry);
    transport_.timers().set(retry_timer_, transport_.now() + retry_pause_);
  }
  if (!asked_ && !holding_ && choked_since_ == 0) {
    asked_ = true;
    transport_.engine().receive(*this);
  }
}

void Connection::on_process_end() {
  // A process that exits closes its socket too, and the two are often reported together. Then the end of file that
  // follows ends the session. Only a socket that another process still holds makes heirs (law 2).
  transport_.engine().unwatch(death_);
  if (hung_up(socket_.get())) return on_writable();
  death_told_ = true;
  auto how = sys::how_it_ended(identity_.pidfd.get());
  transport_.books().process_died(*session_, how ? &*how : nullptr);
  identity_.pidfd.reset();
}

void Connection::await_hello() {
  transport_.timers().set(hello_timer_, transport_.now() + transport_.config().hello_timeout);
}

bool Connection::is_silent() const { return !asked_ || !transport_.engine().waits(*this); }

// A connection whose socket the broker does not read is not called silent.
void Connection::on_hello_timeout() {
  return choked_since_ == 0 && is_silent() ? drop("no HELLO in time") : await_hello();
}

void Connection::drop(std::string_view why) {
  if (ending_ != Ending::none) return;
  log::peer_fault("dropped " + who() + ": " + std::string(why));
  end(Ending::end_of_file);
}

void Connection::end(Ending how) {
  if (ending_ != Ending::none) return;
  ending_ = how;
  if (session_ == nullptr) return;  // `start` sees it
  hello_timer_.cancel();
  retry_timer_.cancel();
  transport_.engine().remove(*this);
  transport_.engine().unwatch(death_);
  transport_.engine().turns.forget(rest_);
  transport_.finish_later(*this);
}

Connection::Remains Connection::leave_remains() {
  (void)sys::shutdown(socket_.get());
  outbox_->abandon();
  return {std::move(socket_), std::move(outbox_)};
}

Fd Connection::take_pidfd() {
  if (!identity_.pidfd_is_certain) identity_.pidfd.reset();
  return std::move(identity_.pidfd);
}

std::string Connection::who() const {
  return "uid " + std::to_string(identity_.facts.uid) + " pid " + std::to_string(identity_.facts.pid);
}

}  // namespace shmb::daemon
