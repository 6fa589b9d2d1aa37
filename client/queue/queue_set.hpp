// SPDX-License-Identifier: Apache-2.0
// Waiting on several queues. For queues of one pool the wait is a futex, as for one queue. For several pools, and for
// event loops, there is a descriptor. It is readable when a peer has rung this process' doorbell, or when the broker
// has sent something, such as a death. It is also readable when a look found something at once. It stays armed across
// spurious wake-ups, and misses nothing that comes between two looks.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/fd.hpp"
#include "client/queue/queue.hpp"

namespace shmb::client {

class QueueSet {
 public:
  QueueSet() = default;
  ~QueueSet();
  QueueSet(const QueueSet&) = delete;
  QueueSet& operator=(const QueueSet&) = delete;

  struct Entry {
    Queue* queue = nullptr;
    void* tag = nullptr;
    std::shared_ptr<Pool> pool;
    std::uint64_t incarnation = 0;
  };
  Result<void> add(Queue& queue, void* tag);
  Result<void> remove(Queue& queue);
  Result<Entry> wait(std::int64_t wait);
  Result<int> descriptor();
  // The descriptor also reports room in these queues, until the next call replaces them. They are writers' handles in
  // pools of the set. For descriptor() and rearm() only: wait() is for messages.
  void tell_of_room(std::vector<Queue*> queues);
  // Call after a look that found nothing. Thread-safe: if another thread is already re-arming, the call returns at
  // once. SESSION_LOST: the broker is gone, and a program that polls would not learn of the death of a peer.
  Result<void> rearm();

  // For the pool, with its lock held.
  bool something_there(Pool& pool);
  void collect_masks(Pool& pool, std::vector<std::atomic<std::uint64_t>*>& masks);
  void pass_on(Pool& pool);  // passes what woke this process, and what it does not take now, on to other consumers
  void signal();

 private:
  const Entry* ready();
  const Entry* chosen();  // ready(), and passes on what else is there
  Result<void> watch(Pool& pool);
  Result<void> make_descriptor();
  void forget(const std::shared_ptr<Pool>& pool);  // if the set has no other queue of it
  Result<bool> await_descriptor(Deadline deadline);
  bool arm_all();  // false: something is there
  void disarm_all();
  void quiet();
  std::vector<std::shared_ptr<Pool>> pools() const;
  void forget_parent();
  void unwatch(int fd);
  void close_descriptor();

  // Other threads see these while the set is armed. It is disarmed before they change.
  std::vector<Entry> entries_;
  std::vector<Queue*> for_room_;
  std::size_t next_ = 0;
  Fd epoll_, event_;
  std::atomic<bool> rearming_ = false;
  std::vector<int> watched_;
  struct Told {
    std::shared_ptr<Session> session;  // it signals event_
    int watched;                       // its descriptor, also after the session is lost
  };
  std::vector<Told> told_;
};

}  // namespace shmb::client
