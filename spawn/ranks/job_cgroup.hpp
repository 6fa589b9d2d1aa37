// SPDX-License-Identifier: Apache-2.0
// A cgroup of version 2 for the ranks of one job, below the caller's own, where the caller may make one. The kernel
// then knows which processes belong to the job, whatever they fork or daemonise, and whether /proc shows them or not:
//
// - cgroup.kill ends all of them in one call, also those that are being forked (Linux 5.14);
// - cgroup.events says when none is left, and polls.
//
// Where none may be made (version 1, a read-only tree, a unit that systemd has not delegated) the object is empty, and
// each call does nothing. The tree of processes (spawn/ranks/tree.hpp) is ended in any case: the cgroup is the faster
// and the surer way, never the only one. Guard and supervisor stay outside, because they must outlive it. Limits do not
// change: no controller is enabled for it, so its processes count where they counted before.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "base/fd.hpp"

namespace shmb::spawn {

class JobCgroup {
 public:
  JobCgroup() = default;
  // For the ranks of this process, the guard. It first removes the empty folders of jobs whose guard and supervisor
  // were both killed. `root` is put before every path (tests lay out a tree of their own).
  static JobCgroup make(const std::string& root = {});
  explicit operator bool() const { return static_cast<bool>(events_); }
  const std::string& folder() const { return folder_; }

  // fork(2) with the child in the cgroup. `executes`: the child executes a program soon. Then it is born in the cgroup.
  // Otherwise it enters afterwards, which takes longer: the C library does not know of a child that was born in this
  // way, so the child could not go on in the caller's program. A child that cannot enter stays outside, and its tree is
  // ended without the cgroup.
  pid_t fork(bool executes) const;
  // Moves those of the processes that are in it out again, to where the guard is. Others stay where they are: a broker,
  // or a child of the program, may have a cgroup of its own.
  void spare(std::span<const pid_t> processes) const;
  void kill() const;
  // Whether a live process is in it or below it. A zombie is none.
  bool populated() const;
  // Readable as an exception (POLLPRI) once `populated` has changed since it was asked last. -1: none.
  int events() const { return events_.get(); }
  // Removes the folder, and those of killed jobs within the job. It does nothing while a process is in the folder.
  void remove();
  void forget() { events_.reset(); }  // in a forked rank

 private:
  std::string folder_, above_;
  Fd events_;
};

}  // namespace shmb::spawn
