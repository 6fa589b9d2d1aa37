// SPDX-License-Identifier: Apache-2.0
// See dead_peer_watch.hpp.
#include "daemon/transport/dead_peer_watch.hpp"

#include <algorithm>

#include "base/kernel.hpp"
#include "base/sys_process.hpp"
#include "daemon/transport/transport.hpp"

namespace shmb::daemon {
namespace {

constexpr std::int64_t kReportWaits = kExitWait * 4 / 5;  // before the report goes without an answer
// A pidfd is readable from the exit on, but tells how the process died only after the process has been reaped. Until
// then /proc tells it, where this user may look. The broker asks at intervals, and a report does not even wait for the
// exit. Of a thousand clients that die together none is reaped at once, and their memory waits to be freed. So the
// first question comes late, and the intervals double. A kernel whose pidfd never tells leaves only the time before the
// process is reaped: there the first question comes with the exit.
constexpr std::int64_t kAskAgain = 20'000'000;

}  // namespace

DeadPeerWatch::DeadPeerWatch(Transport& transport, Fd pidfd, const Peer& peer, Session& session, Why why)
    : transport_(transport),
      process_(transport.engine().turns.join(peer.uid, peer.pid)),
      pidfd_(std::move(pidfd)),
      session_(session),
      why_(why),
      uid_(peer.uid),
      counted_(why == Why::report),
      ask_again_(kAskAgain),
      give_up_at_(transport.now() + kReportWaits) {}

DeadPeerWatch::~DeadPeerWatch() {
  transport_.engine().unwatch(*this);
  transport_.engine().turns.leave(process_);
  remains_.outbox.reset();
  if (remains_.socket) close_socket(transport_.books(), uid_, std::move(remains_.socket));
}

void DeadPeerWatch::start() {
  if (why_ == Why::report) {
    transport_.timers().set(*this, transport_.now() + kAskAgain);
    if (!kernel().exit_info) (void)transport_.engine().watch(pidfd_.get(), *this);
    return;
  }
  // The pidfd cannot be watched. Neither a disconnected session nor a place in a pool may live for ever.
  if (!transport_.engine().watch(pidfd_.get(), *this, &process_)) on_readable();
}

void DeadPeerWatch::on_readable() {
  transport_.engine().unwatch(*this);
  if (why_ == Why::report) return ask(transport_.now());
  transport_.books().process_ended(session_);
  if (why_ == Why::awaited && !transport_.books().wants_exit(session_)) return transport_.forget(*this);
  give_up_at_ = transport_.now() + kReportWaits;
  ask(transport_.now());
}

void DeadPeerWatch::on_timer(std::int64_t now) { ask(now); }

void DeadPeerWatch::ask(std::int64_t now) {
  auto how = sys::how_it_ended(pidfd_.get());
  if (!how && now < give_up_at_ && (kernel().exit_info || !has_ended())) {
    transport_.timers().set(*this, std::min(now + ask_again_, give_up_at_));
    ask_again_ *= 2;
    return;
  }
  // A report that gives up on a process that is alive (it only closed its connection) has no death to report.
  if (why_ == Why::disconnected || how || has_ended()) transport_.books().process_died(session_, how ? &*how : nullptr);
  else transport_.books().process_lives(session_);
  transport_.forget(*this);
}

bool DeadPeerWatch::has_ended() const {
  auto ended = sys::poll_readable(pidfd_.get(), 0);
  return !ended || *ended;
}

}  // namespace shmb::daemon
