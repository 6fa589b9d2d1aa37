// SPDX-License-Identifier: Apache-2.0
// The broker's notices about GPU memory of a session, and what follows from them, without a thread. States are written
// into the regions. Lent memory without users is passed to its owner's `free`. Released regions end when their devices
// are done. It happens in shmb_dispatch, and at the end of calls that may wait for the device anyway. Memory is never
// freed while the broker, or this process, counts a user.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "client/calls/gpu_calls.hpp"
#include "cuda/region.hpp"

namespace shmb::cuda {

// Memory of the program that it has lent to others.
struct Lent {
  // kept until the memory is freed: without a session its users are not counted
  std::shared_ptr<client::Session> session;
  shmbw_region_ref ref{};
  Address pointer = 0;
  std::uint64_t length = 0;
  void (*free)(void* context, std::uint64_t pointer) = nullptr;
  void* context = nullptr;
  // The Notices' lock guards the rest.
  bool retired = false;
  bool answered = false;  // the broker has replied to that
  bool drained = false;   // the broker's count is zero
  int users = 0;          // imports in this process
};

class Notices {
 public:
  struct Done {
    std::size_t freed = 0, waiting = 0;
  };

  static std::shared_ptr<Notices> of(const std::shared_ptr<client::Session>& session);
  // For one session, or (null) all: takes the notices that have come. Cheap if there are none and nothing was lent.
  static Done run(const client::Session* session);
  // As run, if lent memory or a released region waits. Returns how many were freed.
  static std::size_t run_deferred();

  // Keeps the device initialised from here on, so that its memory outlives this process.
  Result<void> pin_device(const DeviceInfo& device, client::Deadline deadline);

  // While one lives, notices about regions that are not registered yet are kept for them: the broker books a lease
  // before this process has the reply.
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
  // While one lives, memory is about to be lent: the broker knows of it before this process has the reply.
  class Lending {
   public:
    Lending();
    Lending(const Lending&) = delete;
    Lending& operator=(const Lending&) = delete;
    ~Lending();
  };
  void lend(const std::shared_ptr<Lent>& lent);
  // Memory that this process lent under that identity, with one more user. Null: another process lent it. Waits for a
  // loan in progress in this process.
  std::shared_ptr<Lent> find_lent(shmbw_region_ref ref, client::Deadline deadline);
  void give_back(const std::shared_ptr<Lent>& lent);
  // From now on it is freed when the last user is gone. An error is the broker's, which is asked again later.
  Result<void> retire(const std::shared_ptr<Lent>& lent, client::Deadline deadline);

 private:
  explicit Notices(const std::shared_ptr<client::Session>& session) : session_(session) {}
  Done take();
  std::shared_ptr<Lent> next_free(bool nobody_counts);  // null: none can be freed now
  void take_event(const client::GpuEvent& event);
  bool look_again(client::Session& session);  // false: no reply, to be tried again
  Result<void> ask(client::Session& session, const std::shared_ptr<Lent>& lent, client::Deadline deadline);
  bool over();  // nothing is left here, and the session is gone

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
