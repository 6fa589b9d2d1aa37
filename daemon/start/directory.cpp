// SPDX-License-Identifier: Apache-2.0
// See directory.hpp. Every failure is a sentence that names the path and the remedy, because users meet these failures
// first.
#include "daemon/start/directory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/private_place.hpp"
#include "base/sys_file.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"

namespace shmb::daemon {
namespace {

constexpr std::size_t kLongestPath = 107;  // sockaddr_un holds 108 bytes with the final NUL
constexpr int kBacklog = 4096;             // the kernel cuts it to net.core.somaxconn
constexpr std::int64_t kOtherEnds = 2'000'000'000;

std::unexpected<Error> refused(const std::string& path, const std::string& why) {
  return error(Status::system, "directory " + quoted(path) + " " + why);
}

std::string octal(unsigned mode) {
  std::string digits;
  for (int shift = 9; shift >= 0; shift -= 3) digits += static_cast<char>('0' + ((mode >> shift) & 7));
  return digits;
}

// Advice for the errnos that a runtime directory really gives.
std::string advice(int code) {
  switch (code) {
    case EROFS:
      return "; it is on a read-only file system, choose another with --directory";
    case ENOSPC:
    case EDQUOT:
      return "; the file system is full, free some space or choose another with --directory";
    case ENOENT:
      return "; its parent does not exist";
    case EACCES:
    case EPERM:
      return "; choose one that you may write to with --directory";
    default:
      return "";
  }
}

std::unexpected<Error> call_failed(int code, const std::string& what) {
  auto failure = system_failure(Errno{code}, what);
  failure.error().sentence += advice(code);
  return failure;
}

// The socket of a killed broker may answer for some time more: the kernel ends a ring, and what it refers to, later
// than the process.
bool someone_listens(const std::string& path) {
  for (const std::int64_t patience = sys::now_monotonic() + kOtherEnds;; sys::rest(2'000'000)) {
    auto socket = sys::seqpacket_socket(true);
    auto answered = socket ? sys::connect_path(socket->get(), path) : std::unexpected(socket.error());
    if (!answered && answered.error().value != EAGAIN) return false;
    if (sys::now_monotonic() >= patience) return true;
  }
}

}  // namespace

std::string default_directory(Mode mode) {
  if (mode == Mode::system) return "/run/shmbroker";
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && runtime[0] == '/') {
    auto facts = sys::path_facts(runtime);
    if (facts && facts->is_directory && facts->uid == ::geteuid()) return std::string(runtime) + "/shmbroker";
  }
  const std::uint32_t uid = ::geteuid();
  if (auto second = second_place("/tmp", uid)) return *second;
  const std::string first = first_place("/tmp", uid);
  if (auto facts = sys::path_facts(first.c_str()); facts && facts->uid != uid)
    if (auto made = make_second_place("/tmp", uid)) return *made;
  return first;
}

Result<void> prepare_directory(const std::string& path, Mode mode, std::uint32_t owner, std::uint32_t group) {
  if (path.empty() || path[0] != '/') return refused(path, "is not an absolute path");
  if (path.size() + sizeof("/socket") - 1 > kLongestPath)
    return refused(path, "is too long: a socket's path may have " + std::to_string(kLongestPath) + " bytes");
  unsigned wanted = mode == Mode::system ? 0755 : 0700;
  auto made = sys::make_directory(path.c_str(), wanted);
  if (!made && made.error().value != EEXIST)
    return call_failed(made.error().value, "creating directory " + quoted(path));
  auto facts = sys::path_facts(path.c_str());
  if (!facts) return call_failed(facts.error().value, "directory " + quoted(path));
  if (facts->is_link) return refused(path, "is a symbolic link: somebody else could move it; remove it");
  if (!facts->is_directory) return refused(path, "is not a directory");
  if (made) {
    // The umask may have removed permissions that clients need.
    if (auto set = sys::set_path_mode(path.c_str(), wanted); !set)
      return call_failed(set.error().value, "setting the mode of " + quoted(path));
    if (facts->uid == owner) return {};
    if (auto given = sys::set_path_owner(path.c_str(), owner, group); !given)
      return call_failed(given.error().value, "giving directory " + quoted(path) + " to uid " + std::to_string(owner));
    return {};
  }
  if (facts->uid != owner)
    return refused(path, "belongs to uid " + std::to_string(facts->uid) + ", not to " + std::to_string(owner) +
                             ": remove it or choose another with --directory");
  unsigned open = mode == Mode::system ? 0022 : 0077;
  if ((facts->mode & open) != 0)
    return refused(
        path, "has mode " + octal(facts->mode) + ": others could put a socket there; chmod it to " + octal(wanted));
  return {};
}

Result<Fd> lock_directory(const std::string& path) {
  std::string file = path + "/broker.lock";
  auto lock = sys::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (!lock) return call_failed(lock.error().value, "creating " + quoted(file));
  // The lock is held, but there is no socket. The holder is ending (the socket goes first, the lock last) or has only
  // begun. A client that connected in that moment is starting this broker, and would get the answer that there is none.
  const std::string socket = path + "/socket";
  const std::int64_t patience = sys::now_monotonic() + kOtherEnds;
  for (;;) {
    auto locked = sys::lock_file(lock->get());
    if (locked) break;
    if (locked.error().value != EWOULDBLOCK) return call_failed(locked.error().value, "locking " + quoted(file));
    if (!sys::path_facts(socket.c_str()) && sys::now_monotonic() < patience) {
      sys::rest(2'000'000);
      continue;
    }
    auto holder = sys::read_file(file.c_str(), 64);
    std::string who = holder && !holder->empty() ? " (pid " + holder->substr(0, holder->find('\n')) + ")" : "";
    return error(Status::busy, "another shmbrokerd" + who + " serves " + quoted(path));
  }
  // For people only. A full disk may prevent it.
  std::string pid = std::to_string(::getpid()) + "\n";
  if (sys::truncate(lock->get(), 0)) (void)sys::write_all(lock->get(), std::as_bytes(std::span(pid)));
  return std::move(*lock);
}

Result<SocketFile> SocketFile::create(const std::string& path, unsigned mode) {
  if (path.size() > kLongestPath)
    return error(Status::invalid, "socket path " + quoted(path) + " is longer than " + std::to_string(kLongestPath) +
                                      " bytes: choose a shorter directory with --directory");
  auto socket = sys::seqpacket_socket(true);
  if (!socket) return system_failure(socket.error(), "socket for " + quoted(path));
  if (auto facts = sys::path_facts(path.c_str())) {
    if (!facts->is_socket) return error(Status::system, quoted(path) + " is in the way and is not a socket; remove it");
    if (someone_listens(path))
      return error(Status::busy, quoted(path) +
                                     " has a listener that is no shmbrokerd: stop its socket unit (systemctl stop "
                                     "shmbroker.socket), or let the service manager start the broker");
    if (auto removed = sys::remove_file(path.c_str()); !removed)
      return call_failed(removed.error().value, "removing the stale socket " + quoted(path));
  }
  // bind(2) makes the file with 0777 & ~umask at once, so at no moment can others connect.
  mode_t before = ::umask(0777 & ~mode);
  auto bound = sys::bind_path(socket->get(), path);
  ::umask(before);
  if (!bound) return call_failed(bound.error().value, "binding " + quoted(path));
  SocketFile file(path, std::move(*socket));
  (void)sys::refuse_descriptors(file.socket_.get());  // before any client can connect; Listener reports a failure
  if (auto listening = sys::listen(file.socket_.get(), kBacklog); !listening)
    return call_failed(listening.error().value, "listening on " + quoted(path));
  return file;
}

SocketFile::SocketFile(SocketFile&& other) noexcept
    : path_(std::exchange(other.path_, {})), socket_(std::move(other.socket_)) {}

SocketFile::~SocketFile() {
  if (!path_.empty()) (void)sys::remove_file(path_.c_str());
}

}  // namespace shmb::daemon
