// SPDX-License-Identifier: Apache-2.0
// What the broker tells a session of its GPU memory, and what has to be done about it, without a thread: states are
// written into the regions, lent memory that nobody holds any more is given to its owner's `free`, and what is leaving
// ends. It happens in shmb_dispatch and at the end of those calls that may wait for the device anyway. Memory is never
// freed while the broker, or this process, counts a user.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "client/gpu_calls.hpp"
#include "cuda/region.hpp"

namespace shmb::cuda {

// Memory of the program's own, lent to others.
struct Lent {
  std::shared_ptr<client::Session> session;  // kept until it is freed: without a session nobody counts
  shmbw_region_ref ref{};
  Address pointer = 0;
  std::uint64_t length = 0;
  void (*free)(void* context, std::uint64_t pointer) = nullptr;
  void* context = nullptr;
  // The rest belongs to the Notices' lock.
  bool retired = false;
  bool answered = false;  // the broker knows that it is
  bool drained = false;   // by the broker's count
  int users = 0;          // imports in this process
};

class Notices {
 public:
  struct Done {
    std::size_t freed = 0, waiting = 0;
  };

  static std::shared_ptr<Notices> of(const std::shared_ptr<client::Session>& session);
  // Of one session, or (null) of all: takes what has come. Cheap where nothing waits and nothing was lent.
  static Done run(const client::Session* session);
  // As run, where lent memory waits to be freed or a region to end; how many were.
  static std::size_t run_deferred();

  // Somebody holds the device open from here on, so that its memory outlives this process.
  Result<void> pin_device(const DeviceInfo& device, client::Deadline deadline);

  // While one lives, what is told of regions that are not entered yet is kept for them: the broker knows of a lease
  // before we do.
  class Opening {
   public:
    explicit Opening(const std::shared_ptr<Notices>& notices);
    Opening(const Opening&) = delete;
    Opening& operator=(const Opening&) = delete;
    ~Opening();

   private:
    const std::shared_ptr<Notices> notices_;
  };
  void enter(const std::shared_ptr<Region>& region);
  // While one lives, memory is on its way to being lent: the broker knows of it before we do.
  class Lending {
   public:
    Lending();
    Lending(const Lending&) = delete;
    Lending& operator=(const Lending&) = delete;
    ~Lending();
  };
  void lend(const std::shared_ptr<Lent>& lent);
  // Memory that this process itself lent under that identity, with one more user; null: another process'. What is just
  // being lent here is waited for.
  std::shared_ptr<Lent> find_lent(shmbw_region_ref ref, client::Deadline deadline);
  void give_back(const std::shared_ptr<Lent>& lent);
  // From now on it is freed when the last user is gone. The error is the broker's; it is asked again later.
  Result<void> retire(const std::shared_ptr<Lent>& lent, client::Deadline deadline);

 private:
  explicit Notices(const std::shared_ptr<client::Session>& session) : session_(session) {}
  Done take();
  std::shared_ptr<Lent> next_free(bool nobody_counts);  // null: none is to be freed now
  void take_event(const client::GpuEvent& event);
  bool look_again(client::Session& session);  // false: no answer, to be tried again
  Result<void> ask(client::Session& session, const std::shared_ptr<Lent>& lent, client::Deadline deadline);
  bool over();  // nothing here, and the session is gone

  const std::weak_ptr<client::Session> session_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Region>> regions_;
  std::vector<std::shared_ptr<Lent>> lent_;
  std::vector<Uuid> pinned_;
  int openings_ = 0;
  std::vector<client::GpuEvent> early_;
  bool events_lost_ = false;
};

}  // namespace shmb::cuda
