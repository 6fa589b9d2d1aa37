// SPDX-License-Identifier: Apache-2.0
// Who is served next. What is ready waits here by user and by process, and the turn goes to the user that has had least
// of the broker's time, of this user to the process that has had least, and of this process to what has waited longest.
// So one that asks rarely is served right after what is in service now, however much others ask (law 8). Nothing is
// allocated for a turn.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace shmb::daemon {

class Turns {
 public:
  struct Process;
  // One thing that is ready: a socket with a packet, a process that has ended, a request that was served in part.
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

  // The share of a process; the same one for each connection of it. `leave` once for each `join`.
  Process& join(std::uint32_t uid, std::uint32_t pid);
  void leave(Process& process);
  void ready(Process& process, Item& item);  // nothing, where it waits already
  void forget(Item& item);
  bool empty() const { return waiting_ == 0; }
  // Serves one after the other until nothing waits, or this long (ns) has passed. At least one.
  void serve(std::int64_t longest);

  std::function<void()> after;                             // each turn, on account of whose it was; may be empty
  std::function<std::int64_t()> clock;                     // ns; for tests
  static constexpr std::uint32_t kNewcomers = UINT32_MAX;  // the user of what nobody has asked for yet: connections

 private:
  struct User;
  // What it has been served (ns). Who has been away comes back at the level of those who are served now: time that was
  // not asked for is not saved up.
  struct Share {
    std::int64_t served = 0;
    std::uint32_t members = 0;  // connections; processes
  };

 public:
  struct Process : Share {
    User* user = nullptr;
    std::uint32_t pid = 0;
    Item *first = nullptr, *last = nullptr;
    Process *next = nullptr, *previous = nullptr;  // among those of its user that have something waiting
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
