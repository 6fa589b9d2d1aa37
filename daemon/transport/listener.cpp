// SPDX-License-Identifier: Apache-2.0
// See listener.hpp.
#include "daemon/transport/listener.hpp"

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "daemon/kit/log.hpp"
#include "daemon/transport/transport.hpp"

namespace shmb::daemon {
namespace {

// A descriptor may become free without a notice here: by the ledger or, at ENFILE, in another process.
constexpr std::int64_t kPause = 100'000'000;

}  // namespace

Listener::Listener(Transport& transport, Fd socket, bool admin, std::uint64_t highest)
    : transport_(transport),
      process_(transport.engine().turns.join(Turns::kNewcomers, admin ? 1 : 0)),
      socket_(std::move(socket)),
      admin_(admin),
      highest_(highest) {}

Listener::~Listener() {
  transport_.engine().unwatch(*this);
  transport_.engine().turns.leave(process_);
}

Sys<void> Listener::start() {
  // Each socket that connects inherits it, also before it is accepted.
  if (!sys::refuse_descriptors(socket_.get())) transport_.all_may_send();
  return transport_.engine().watch(socket_.get(), *this, &process_);
}

bool Listener::someone_waits() {
  auto ready = sys::poll_readable(socket_.get(), 0);
  return ready && *ready;
}

// The kernel gives the lowest free number, so a number shows how full the table is. The pidfd needs one more.
bool Listener::has_room(int descriptor) const { return static_cast<std::uint64_t>(descriptor) + 1 < highest_; }

bool Listener::room_again() const {
  auto probe = socket_.dup();
  return probe && has_room(probe->get());
}

void Listener::on_readable() {
  if (!transport_.books().room_for_session(admin_)) return table_full();
  if (!admin_ && transport_.too_many_silent()) {
    if (!someone_waits()) return;
    if (!transport_.make_room_among_silent()) return pause();
  }
  auto accepted = sys::accept(socket_.get());
  if (accepted) {
    if (has_room(accepted->get())) return transport_.admit(std::move(*accepted), admin_);
    parked_ = std::move(*accepted);
    return table_full();
  }
  switch (accepted.error().value) {
    case EAGAIN:
    case ECONNABORTED:
      return;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return table_full();
    default:
      log::line(log::error, "accept: " + errno_text(accepted.error().value));
      return pause();
  }
}

void Listener::pause() {
  if (paused_) return;
  paused_ = true;
  transport_.engine().unwatch(*this);
  transport_.timers().set(*this, transport_.now() + kPause);
}

void Listener::table_full() {
  transport_.tell_full();
  pause();
}

void Listener::resume() {
  if (!paused_) return;
  if ((parked_ && !room_again()) || !transport_.books().room_for_session(admin_)) {
    if (!armed()) transport_.timers().set(*this, transport_.now() + kPause);
    return;
  }
  cancel();
  if (parked_) transport_.admit(std::move(parked_), admin_);
  if (!transport_.engine().watch(socket_.get(), *this, &process_)) {
    transport_.timers().set(*this, transport_.now() + kPause);
    return;
  }
  paused_ = false;
}

void Listener::on_timer(std::int64_t) { resume(); }

}  // namespace shmb::daemon
