// SPDX-License-Identifier: Apache-2.0
// See process_pair.hpp.
#include "spawn/ranks/process_pair.hpp"

#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"

namespace shmb::spawn {
namespace {

constexpr int kEnding[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
constexpr int kForwarded[] = {SIGUSR1, SIGUSR2};

bool ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Sys<Fd> memory_file(const char* name, const std::string& bytes) {
  auto file = sys::memfd_create(name, true);
  if (!file) return file;
  SHMB_TRY_VOID(sys::write_all(file->get(), std::as_bytes(std::span(bytes))));
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  SHMB_TRY_VOID(sys::add_seals(file->get(), kSeals));
  return file;
}

// With read(2): before Linux 6.7 a file that is sealed against writing cannot be mapped shared (fcntl(2),
// F_SEAL_WRITE).
Sys<std::string> contents(int memory_file) {
  SHMB_TRY(facts, sys::file_facts(memory_file));
  std::string bytes(facts.size, '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t size = ::pread(memory_file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return sys_error(size < 0 ? errno : EIO);
    done += static_cast<std::size_t>(size);
  }
  return bytes;
}

template <class T>
bool tell(int socket, const T& message) {
  for (;;) {
    // A peer that takes no more orders has enough of them.
    if (::send(socket, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof message))
      return true;
    if (errno != EINTR) return false;
  }
}

template <class T>
std::optional<T> hear(int socket, bool& closed) {
  T message;
  for (;;) {
    const ssize_t size = ::recv(socket, &message, sizeof message, MSG_DONTWAIT);
    if (size == static_cast<ssize_t>(sizeof message)) return message;
    if (size < 0 && errno == EINTR) continue;
    closed = size >= 0 || errno != EAGAIN;
    return std::nullopt;
  }
}

template bool tell(int, const Order&);
template bool tell(int, const Note&);
template std::optional<Order> hear(int, bool&);
template std::optional<Note> hear(int, bool&);

Signals::Signals(bool all) {
  ::sigprocmask(SIG_BLOCK, nullptr, &former_mask_);
  if (all) {
    sigset_t every;
    ::sigfillset(&every);
    ::sigprocmask(SIG_BLOCK, &every, nullptr);
  }
  // If the reader of the output goes away, write(2) fails. That is no reason to leave the ranks.
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::sigprocmask(SIG_BLOCK, &pipe, nullptr);
  // With an inherited SIG_IGN children would vanish without a status (sigaction(2), SIGCHLD).
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &standard, &former_child_action_);
  std::vector<int> wanted{SIGCHLD};
  for (int signal : kEnding)
    if (!ignored(signal)) wanted.push_back(signal);
  for (int signal : kForwarded)
    if (!ignored(signal)) wanted.push_back(signal);
  if (auto fd = sys::signal_fd(wanted)) fd_ = std::move(*fd);
}

Signals::~Signals() {
  fd_.reset();
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  const timespec none{};
  while (::sigismember(&former_mask_, SIGPIPE) == 0 && ::sigtimedwait(&pipe, nullptr, &none) > 0) {
  }
  ::sigaction(SIGCHLD, &former_child_action_, nullptr);
  ::sigprocmask(SIG_SETMASK, &former_mask_, nullptr);
}

std::optional<Signals::Arrived> Signals::next() {
  signalfd_siginfo info{};
  for (;;) {
    const ssize_t size = ::read(fd_.get(), &info, sizeof info);
    if (size == static_cast<ssize_t>(sizeof info))
      return Arrived{static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL};
    if (size < 0 && errno == EINTR) continue;
    return std::nullopt;
  }
}

bool ends_the_tree(int signal) { return std::ranges::find(kEnding, signal) != std::end(kEnding); }

}  // namespace shmb::spawn
