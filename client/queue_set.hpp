// SPDX-License-Identifier: Apache-2.0
// Waiting on several queues. Those of one pool are slept for by futex, as one queue is. For several pools, and for the
// event loops of others, there is a descriptor: readable when a peer has rung this process' doorbell, when the broker
// has sent something (it tells so of the dead), or when a look found something at once. It stays armed across spurious
// wake-ups, and nothing that comes between two looks is missed.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/fd.hpp"
#include "client/queue.hpp"

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
  // The descriptor also tells of room in these, until it is told of others. They are writers' handles in pools of the
  // set. For descriptor() and rearm(): wait() is for messages.
  void tell_of_room(std::vector<Queue*> queues);
  // After a look that found nothing. Several threads may come: who finds another one at it leaves it to that one.
  void rearm();

  // For the pool, with its lock held.
  bool something_there(Pool& pool);
  void collect_masks(Pool& pool, std::vector<std::atomic<std::uint64_t>*>& masks);
  void pass_on(Pool& pool);  // to consumers of others, what this process was woken for and does not take now
  void signal();

 private:
  const Entry* ready();
  const Entry* chosen();  // ready(), and what else there is passed on
  Result<void> watch(Pool& pool);
  Result<void> make_descriptor();
  void forget(const std::shared_ptr<Pool>& pool);  // if it has no queue here any more
  Result<bool> await_descriptor(Deadline deadline);
  bool arm_all();  // false: something is there
  void disarm_all();
  void quiet();
  std::vector<std::shared_ptr<Pool>> pools() const;
  void forget_parent();
  void unwatch(int fd);
  void close_descriptor();

  // What threads of other sets see while this one is armed: it is disarmed before they change.
  std::vector<Entry> entries_;
  std::vector<Queue*> for_room_;
  std::size_t next_ = 0;
  Fd epoll_, event_;
  std::atomic<bool> rearming_ = false;
  std::vector<int> watched_;
  struct Told {
    std::shared_ptr<Session> session;  // signals event_
    int watched;                       // its descriptor, also after it was lost
  };
  std::vector<Told> told_;
};

}  // namespace shmb::client
