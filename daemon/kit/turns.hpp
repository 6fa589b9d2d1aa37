// SPDX-License-Identifier: Apache-2.0
// Decides which client is served next. All that is ready waits here by user and by process. The turn goes to the user
// that has had the least of the broker's time. Of its processes it goes to the one with the least, and there to the
// item that has waited longest. So a client that asks rarely is served right after the request in service, however much
// others ask (law 8). A turn allocates nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace shmb::daemon {

class Turns {
 public:
  struct Process;
  // One thing that is ready: a socket with a packet, a process that has ended, or a request that was served in part.
  class Item {
   public:
    Item() = default;
    Item(const Item&) = delete;
    Item& operator=(const Item&) = delete;
    bool waits() const { return process_ != nullptr; }

   protected:
    ~Item();

   private:
    friend class Turns;
    virtual void on_turn() = 0;  // the item may be gone after it
    Turns* turns_ = nullptr;
    Process* process_ = nullptr;
    Item *next_ = nullptr, *previous_ = nullptr;
  };

  Turns() = default;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // The share of a process, common to all its connections. Call `leave` once for each `join`.
  Process& join(std::uint32_t uid, std::uint32_t pid);
  void leave(Process& process);
  void ready(Process& process, Item& item);  // no effect if it waits already
  void forget(Item& item);
  bool empty() const { return waiting_ == 0; }
  std::size_t waiting() const { return waiting_; }
  // Serves one item after the other until none waits or `longest` ns have passed. Serves at least one.
  void serve(std::int64_t longest);

  std::function<void()> after;  // called after each turn, on account of the process that was served; may be empty
  std::function<std::int64_t()> clock;                     // ns; for tests
  static constexpr std::uint32_t kNewcomers = UINT32_MAX;  // the user of new connections, which have no request yet

 private:
  struct User;
  // The time that it was served (ns). A user that was idle comes back at the level of those that are served now. Time
  // that it did not use is not saved up.
  struct Share {
    std::int64_t served = 0;
    std::uint32_t members = 0;  // connections; processes
  };

 public:
  struct Process : Share {
    User* user = nullptr;
    std::uint32_t pid = 0;
    Item *first = nullptr, *last = nullptr;
    // neighbours in the list of its user's processes that have something waiting
    Process *next = nullptr, *previous = nullptr;
  };

 private:
  struct User : Share {
    std::uint32_t uid = 0;
    std::int64_t level = 0;
    Process* first = nullptr;  // with something waiting
    User *next = nullptr, *previous = nullptr;
    std::map<std::uint32_t, Process> processes;
  };

  std::int64_t now() const;
  void charge(Process& process, std::int64_t time);

  std::map<std::uint32_t, User> users_;
  User* first_ = nullptr;  // with something waiting
  std::int64_t level_ = 0;
  std::uint64_t waiting_ = 0;
};

}  // namespace shmb::daemon
