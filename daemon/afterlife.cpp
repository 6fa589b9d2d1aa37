// SPDX-License-Identifier: Apache-2.0
// See afterlife.hpp.
#include "daemon/afterlife.hpp"

#include <algorithm>

#include "base/kernel.hpp"
#include "base/sys_process.hpp"
#include "daemon/transport.hpp"

namespace shmb::daemon {
namespace {

constexpr std::int64_t kReportWaits = 1'000'000'000;
// A pidfd is readable from the exit on, and stays so: how the process died is asked for at intervals, not by polling.
// They double, because a thousand clients that die together are not reaped at once, and the freeing is waiting.
constexpr std::int64_t kAskAgain = 20'000'000;

}  // namespace

Afterlife::Afterlife(Transport& transport, Fd pidfd, Session& session, Why why)
    : transport_(transport),
      pidfd_(std::move(pidfd)),
      session_(session),
      why_(why),
      ask_again_(kAskAgain),
      give_up_at_(transport.now() + kReportWaits) {}

Afterlife::~Afterlife() { transport_.engine().unwatch(*this); }

void Afterlife::start() {
  if (why_ == Why::report) transport_.timers().set(*this, give_up_at_);
  // Not watchable: a report goes out without its cause; a disconnected session cannot be let live for ever.
  if (!transport_.engine().watch(pidfd_.get(), *this)) on_readable();
}

void Afterlife::on_readable() {
  transport_.engine().unwatch(*this);
  give_up_at_ = transport_.now() + kReportWaits;
  ask(transport_.now());
}

void Afterlife::on_timer(std::int64_t now) { ask(now); }

void Afterlife::ask(std::int64_t now) {
  auto how = sys::pidfd_exit_info(pidfd_.get());
  if (!how && kernel().exit_info && now < give_up_at_) {
    transport_.timers().set(*this, std::min(now + ask_again_, give_up_at_));
    ask_again_ *= 2;
    return;
  }
  // A report that gives up on a process still alive (it only closed its connection) has no death to tell.
  auto ended = sys::poll_readable(pidfd_.get(), 0);
  if (why_ == Why::disconnected || how || !ended || *ended)
    transport_.books().process_died(session_, how ? &*how : nullptr);
  transport_.forget(*this);
}

}  // namespace shmb::daemon
