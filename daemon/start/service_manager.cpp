// SPDX-License-Identifier: Apache-2.0
// See service_manager.hpp.
#include "daemon/start/service_manager.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <span>

#include "base/result.hpp"
#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"

namespace shmb::daemon {
namespace {

constexpr int kFirst = 3;  // SD_LISTEN_FDS_START
constexpr std::int64_t kPatience = 1'000'000'000;
constexpr std::string_view kNames[] = {"broker", "admin"};

// No later part of this process, and no program that it might start, must take the variable for its own.
std::optional<std::string> take_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  std::string text = value;
  ::unsetenv(name);
  return text;
}

std::optional<int> number_of(const std::optional<std::string>& text) {
  int number = 0;
  if (!text) return std::nullopt;
  auto [end, failure] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (failure != std::errc{} || end != text->data() + text->size()) return std::nullopt;
  return number;
}

std::unexpected<Error> not_ours(int fd, const std::string& name, const std::string& why) {
  return error(Status::invalid, "the service manager passed descriptor " + std::to_string(fd) + " as " + quoted(name) +
                                    ", which " + why);
}

// The text from the start of `rest` to the next colon.
std::string next_name(std::string_view& rest) {
  const std::size_t end = std::min(rest.find(':'), rest.size());
  std::string name(rest.substr(0, end));
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return name;
}

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace

Result<ServiceManager> ServiceManager::from_environment() {
  ServiceManager manager;
  SHMB_TRY_VOID(manager.take_sockets());
  manager.open_notify();
  return manager;
}

Result<void> ServiceManager::take_sockets() {
  const auto pid = take_variable("LISTEN_PID"), count = take_variable("LISTEN_FDS"),
             names = take_variable("LISTEN_FDNAMES");
  (void)take_variable("LISTEN_PIDFDID");
  if (!pid && !count) return {};
  // A parent's variables: its descriptors were not passed on.
  if (number_of(pid) != ::getpid()) return {};
  const auto passed = number_of(count);
  if (!passed || *passed < 0)
    return error(Status::invalid, "LISTEN_FDS=" + quoted(count.value_or("")) + " is no number of sockets");
  std::string_view rest = names ? std::string_view(*names) : std::string_view();
  for (int fd = kFirst; fd < kFirst + *passed; ++fd) {
    const std::string name = next_name(rest);
    if (std::ranges::find(kNames, name) == std::end(kNames))
      return not_ours(fd, name, "is neither 'broker' nor 'admin': set FileDescriptorName= in its socket unit");
    if (std::ranges::find(sockets_, name, &Passed::name) != sockets_.end())
      return not_ours(fd, name, "is the second of that name: remove one of the socket units");
    auto facts = sys::socket_facts(fd);
    if (!facts && facts.error().value == ENOTSOCK) return not_ours(fd, name, "is not a socket");
    if (!facts && facts.error().value == EBADF)
      return not_ours(fd, name, "is not open: LISTEN_FDS says " + std::to_string(*passed) + " sockets");
    if (!facts) return system_failure(facts.error(), "descriptor " + std::to_string(fd) + " of the service manager");
    if (facts->domain != AF_UNIX)
      return not_ours(fd, name, "is no UNIX socket: write ListenSequentialPacket= with a path");
    if (facts->type != SOCK_SEQPACKET)
      return not_ours(fd, name, "carries no packets: write ListenSequentialPacket= instead of another Listen...=");
    if (!facts->listening) return not_ours(fd, name, "does not listen: write Accept=no in its socket unit");
    Passed one{name, Fd::adopt(fd)};
    for (auto set : {sys::set_close_on_exec(fd), sys::set_nonblocking(fd)})
      if (!set) return system_failure(set.error(), "descriptor " + std::to_string(fd) + " of the service manager");
    sockets_.push_back(std::move(one));
  }
  return {};
}

void ServiceManager::open_notify() {
  const auto address = take_variable("NOTIFY_SOCKET");
  if (!address || address->empty()) return;
  address_ = *address;
  auto socket = sys::datagram_socket_to(*address);
  if (socket) notify_ = std::move(*socket);
  else
    loss_ = "the service manager is not notified: NOTIFY_SOCKET " + quoted(*address) + ": " +
            errno_text(socket.error().value);
}

Fd ServiceManager::take(std::string_view name) {
  const auto found = std::ranges::find(sockets_, name, &Passed::name);
  return found == sockets_.end() ? Fd() : std::move(found->socket);
}

void ServiceManager::ready(const std::string& status) { say("READY=1\nSTATUS=" + one_line(status)); }

void ServiceManager::reloading() { say("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(sys::now_monotonic() / 1000)); }

void ServiceManager::stopping(const std::string& status) { say("STOPPING=1\nSTATUS=" + one_line(status)); }

void ServiceManager::failed(const std::string& sentence) { say("STATUS=" + one_line(sentence)); }

void ServiceManager::say(const std::string& message) {
  if (!notify_) return;
  const auto bytes = std::as_bytes(std::span(message));
  auto sent = sys::send(notify_.get(), bytes, {}, {}, false);
  if (sent || sent.error().value != EAGAIN) return;
  if (sys::poll_for(notify_.get(), POLLOUT, kPatience)) (void)sys::send(notify_.get(), bytes, {}, {}, false);
}

}  // namespace shmb::daemon
