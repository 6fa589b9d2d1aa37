// SPDX-License-Identifier: Apache-2.0
// Closes descriptors and mappings on helper threads. The last close of 1 GiB of 4 KiB pages takes 173 ms (measured).
// The close of a file that a client made may wait for the client. No other thread waits for either.
//
// Nothing is closed before `go`. The books name the number of each descriptor that the broker owns, and a closed number
// may be that of another file in a moment. So the books must have forgotten it first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/mapping.hpp"
#include "daemon/kit/helper_threads.hpp"

namespace shmb::daemon {

// One thread, started with the first job.
class Closer {
 public:
  static Sys<void> prepare(Closer& closer);  // its eventfd; without it no finished close is reported
  // Waits at most that long for closes in progress.
  void end(std::chrono::nanoseconds patience) { threads_.end(patience); }
  // False: no thread could be started, the caller closes.
  bool close(std::vector<Fd>& fds, std::uint64_t region = 0);
  bool close(std::vector<Fd>& fds, std::vector<Mapping>& maps, std::uint64_t region = 0);
  bool close(Fd& fd, std::uint64_t region = 0);
  void close_here(Fd fd) { here_.push_back(std::move(fd)); }  // on the thread that calls `go`
  void go() {
    if (!held_.empty() || !here_.empty()) close_held();
  }
  std::size_t waiting() const;  // descriptors whose close has not returned
  int wake_fd() const { return wake_.get(); }
  std::vector<std::uint64_t> finished();  // regions whose close has returned

 private:
  struct Job {
    std::vector<Fd> fds;
    std::vector<Mapping> maps;
    std::uint64_t region = 0;
  };
  struct State : HelperState {
    void run(std::unique_lock<std::mutex>& lock);
    std::vector<Job> jobs;
    std::vector<std::uint64_t> finished;
    std::size_t waiting = 0;
    int wake = -1;
  };
  void close_held();

  Fd wake_;
  HelperThreads<State> threads_;
  std::vector<Job> held_;  // until `go`
  std::vector<Fd> here_;
};

// For descriptors that clients made: a client can make the close wait for ever. So each user has a thread. At the end
// all of them together get the time that one closer gets.
class PerUidCloser {
 public:
  ~PerUidCloser();
  bool close(std::uint32_t uid, std::vector<Fd>& fds);  // now, as it was never in the books; false: as Closer::close()
  void hold(std::uint32_t uid, Fd fd) { held_.emplace_back(uid, std::move(fd)); }
  std::vector<std::pair<std::uint32_t, Fd>> take_held() { return std::exchange(held_, {}); }
  std::size_t waiting(std::uint32_t uid) const;  // descriptors whose close has not returned
  std::size_t waiting() const;                   // of all users

 private:
  std::map<std::uint32_t, Closer> of_;
  std::vector<std::pair<std::uint32_t, Fd>> held_;
};

}  // namespace shmb::daemon
