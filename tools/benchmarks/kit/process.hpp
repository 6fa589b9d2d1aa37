// SPDX-License-Identifier: Apache-2.0
// The other processes of a measurement: forked floors and clients, each on a known core, each gone when the bench
// goes. A bench that cannot measure says why and ends; a made-up number is worse than none.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.hpp"

namespace shmb::bench {

// Prints "bench: WHAT: errno text" and exits with 1 (in a forked child: _exit).
[[noreturn]] void give_up(const std::string& what);
int must(int result, const char* what);  // result of a system call; gives up on -1

// The two ends of an exchange sit on the first and the last core this process may use.
enum class Core { client, server, any };
void pin(Core core);
void favour();  // nice -20 for this process, where that is allowed

class Child {
 public:
  Child() = default;
  // Forks; the body runs on `core`, its return value is the exit status. Killed with the parent.
  static Child start(Core core, const std::function<int()>& body);
  // Forks and executes, with the hard descriptor limit as the library's launcher sets it. `log`: its standard error.
  // `own_session`: setsid(2), as the launcher does; the scheduler then shares the cores between sessions first.
  static Child execute(Core core, const std::string& program, const std::vector<std::string>& arguments, int log,
                       bool own_session = false);
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~Child();
  pid_t pid() const { return pid_; }
  void kill(int signal) const;
  int wait();  // exit status, or 128 + signal

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;
};

// A socket pair between the bench and a child; one byte or one value at a time.
struct Channel {
  Fd ours, theirs;
  static Channel make();
};
void send_value(int socket, const void* data, std::size_t size);
void receive_value(int socket, void* data, std::size_t size);
template <class T>
void tell(int socket, const T& value) {
  send_value(socket, &value, sizeof value);
}
template <class T>
T hear(int socket) {
  T value{};
  receive_value(socket, &value, sizeof value);
  return value;
}
void send_fd(int socket, const void* data, std::size_t size, int fd);  // fd -1: none
Fd receive_fd(int socket, void* data, std::size_t size);

double process_cpu_us(pid_t pid);  // CPU time of all its threads
enum class Memory { resident, anonymous };
std::size_t memory_of(pid_t pid, Memory what);  // bytes
// Its share of pages that several processes have counts for each of them. nullopt: only root may look.
std::optional<std::size_t> proportional_memory_of(pid_t pid);

// A private folder that goes with the bench.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(TemporaryFolder&&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace shmb::bench
