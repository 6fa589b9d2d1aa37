// SPDX-License-Identifier: Apache-2.0
// See bystander.hpp.
#include "spawn/ranks/bystander.hpp"

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"

namespace shmb::spawn {
namespace {

constexpr std::int64_t kLookAgain = 20'000'000;  // a connect(2) each time; a younger broker may be signalled

// The process that listens on the socket, as the kernel noted it there (unix(7), SO_PEERCRED).
std::optional<Process> listener(const std::string& path) {
  auto socket = sys::seqpacket_socket(true);
  if (!socket || !sys::connect_path(socket->get(), path)) return std::nullopt;
  auto credentials = sys::peer_credentials(socket->get());
  if (!credentials || credentials->pid == 0) return std::nullopt;
  auto found = process(static_cast<pid_t>(credentials->pid));
  if (!found) return std::nullopt;
  return std::move(*found);
}

}  // namespace

std::vector<pid_t> Bystander::pids() {
  if (broker_) {
    auto now = process(broker_->pid);
    if (!now || now->start_time != broker_->start_time) broker_.reset();
  }
  const std::int64_t now = sys::now_monotonic();
  if (!broker_ && now - looked_at_ >= kLookAgain) {
    looked_at_ = now;
    broker_ = listener(socket_);
  }
  return broker_ ? std::vector<pid_t>{broker_->pid} : std::vector<pid_t>{};
}

}  // namespace shmb::spawn
