// SPDX-License-Identifier: Apache-2.0
// A forked process that runs one function and is gone when its owner is. Assertions of doctest do not cross a process
// border: the function returns a status and the parent checks it.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <utility>

namespace harness {

class Child {
 public:
  // The child ends with the function's value, without running destructors or exit handlers of the parent's objects.
  static Child run(const std::function<int()>& body);
  // As run, but without privileges: no groups, gid and uid set for good. Ends with kCannotDrop where that fails.
  static Child run_as(uid_t uid, gid_t gid, const std::function<int()>& body);

  static constexpr int kCannotDrop = 97;
  static constexpr int kThrew = 98;
  static constexpr int kHung = 99;

  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pidfd_(std::exchange(other.pidfd_, -1)), status_(other.status_) {}
  Child& operator=(Child&& other) noexcept;
  ~Child() { end(); }

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_; }
  void kill(int signal = SIGKILL) const;
  // The exit status, or 128 + signal. A child that does not end within three minutes is killed and counts as kHung.
  int wait();
  bool wait_ended(int milliseconds) const;  // dead, though perhaps not yet reaped

 private:
  Child(pid_t pid, int pidfd) : pid_(pid), pidfd_(pidfd) {}
  void end();

  pid_t pid_ = -1;
  int pidfd_ = -1;
  int status_ = -1;  // once waited for
};

bool can_change_uid();  // root with the capability, so run_as works

// A door that processes forked after its making share: opened once, it stays open.
class Gate {
 public:
  Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate();
  void open() const;
  bool wait(int milliseconds = 120'000) const;  // false: it did not open in time

 private:
  int fd_;
};

}  // namespace harness
