// SPDX-License-Identifier: Apache-2.0
// Threads for system calls that may wait for another process or a device. Examples: close(2) of a file that a client
// made, a seal that needs the lock of a file, open(2) of a device that sleeps. The broker's own thread never makes such
// a call. A call may wait for ever, so a thread may outlive its owner. They share the state, and the last one frees it.
// At its end the owner waits a bounded time and leaves the threads that still wait to the end of the process.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace shmb::daemon {

inline constexpr std::chrono::seconds kLastWait{1};  // of an owner, for the calls that its threads have begun

// The state that a thread and its owner share. A derived state adds the jobs and the loop of one thread,
// `void run(std::unique_lock<std::mutex>&)`. The loop is called with `mutex` held. It returns with `mutex` held once
// `stop` is set.
struct HelperState {
  std::mutex mutex;
  std::condition_variable ready, gone;
  std::size_t threads = 0;
  bool stop = false;
};

template <class State>
class HelperThreads {
 public:
  HelperThreads() : state_(std::make_shared<State>()) {}
  HelperThreads(const HelperThreads&) = delete;
  HelperThreads& operator=(const HelperThreads&) = delete;
  ~HelperThreads() { end(kLastWait); }

  State* operator->() const { return state_.get(); }
  // One thread more. The caller holds the state's mutex. False: the system has no thread left.
  bool start() {
    try {
      threads_.emplace_back([state = state_] {
        // Signals belong to the main thread.
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        std::unique_lock lock(state->mutex);
        state->run(lock);
        if (--state->threads == 0) state->gone.notify_all();
      });
    } catch (const std::system_error&) {
      return false;
    }
    ++state_->threads;
    return true;
  }
  // Stops the threads and waits at most that long for them. They cannot be started again. A second call does nothing:
  // threads that still wait have been left.
  void end(std::chrono::nanoseconds patience) {
    if (threads_.empty()) return;
    std::unique_lock lock(state_->mutex);
    state_->stop = true;
    state_->ready.notify_all();
    const bool all = state_->gone.wait_for(lock, patience, [this] { return state_->threads == 0; });
    lock.unlock();
    for (std::thread& thread : threads_)
      if (all) thread.join();
      else thread.detach();
    threads_.clear();
  }

 private:
  std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
};

}  // namespace shmb::daemon
