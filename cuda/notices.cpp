// SPDX-License-Identifier: Apache-2.0
// No lock is held during a call of the owner's `free` or to the broker: both may call back into this file.
#include "cuda/notices.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "base/sys_gpu.hpp"
#include "base/sys_process.hpp"
#include "client/session/views.hpp"
#include "cuda/leaving.hpp"

namespace shmb::cuda {
namespace {

struct AllNotices {
  std::mutex mutex;
  std::vector<std::shared_ptr<Notices>> sessions;
  std::atomic<std::size_t> retired = 0;  // lent memory that waits for its last user
  // calls that lend, from before the broker books the loan until this process has registered it
  std::atomic<std::size_t> lending = 0;
};

// Never destroyed: a thread of the program may still release while its static objects go.
AllNotices& all_notices() {
  static AllNotices* const all = new AllNotices;
  return *all;
}

bool same_ref(shmbw_region_ref a, shmbw_region_ref b) { return a.id == b.id && a.generation == b.generation; }

// Opens the device's node for a broker that may not open it.
Result<Fd> open_node(const DeviceInfo& device) {
  auto minor = sys::gpu_minor(device.bus_id);
  if (!minor) return system_failure(minor.error(), "looking for GPU '" + device.bus_id + "' in /proc/driver/nvidia");
  auto node = sys::open_gpu_node(*minor);
  if (!node) return system_failure(node.error(), "opening " + sys::gpu_node_path(*minor));
  return std::move(*node);
}

}  // namespace

std::shared_ptr<Notices> Notices::of(const std::shared_ptr<client::Session>& session) {
  AllNotices& all = all_notices();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.sessions, [](const auto& notices) { return notices->over(); });
  for (const auto& notices : all.sessions)
    if (notices->session_.lock() == session) return notices;
  return all.sessions.emplace_back(std::shared_ptr<Notices>(new Notices(session)));
}

bool Notices::over() {
  std::lock_guard lock(mutex_);
  return session_.expired() && lent_.empty();
}

Notices::Done Notices::run(const client::Session* session) {
  Done done;
  if (Driver::loaded() == nullptr) return done;  // nothing can have been made, or it is the parent's
  // First, because an import of this process keeps lent memory in use.
  const Leaving::Counts left = Leaving::run(session);
  done.freed = left.ended;
  done.waiting = left.waiting;
  std::vector<std::shared_ptr<Notices>> chosen;
  {
    AllNotices& all = all_notices();
    std::lock_guard lock(all.mutex);
    for (const auto& notices : all.sessions)
      if (session == nullptr || notices->session_.lock().get() == session) chosen.push_back(notices);
  }
  for (const auto& notices : chosen) {
    const Done one = notices->take();
    done.freed += one.freed;
    done.waiting += one.waiting;
  }
  return done;
}

std::size_t Notices::run_deferred() {
  const bool any = all_notices().retired.load(std::memory_order_acquire) != 0 || Leaving::any();
  return any ? run(nullptr).freed : 0;
}

Notices::Done Notices::take() {
  const std::shared_ptr<client::Session> session = session_.lock();
  if (session != nullptr) {
    bool lost = false;
    try {
      for (const client::GpuEvent& event : session->take_gpu_events()) {
        if (event.kind == client::GpuEvent::Kind::gap) lost = true;
        else take_event(event);
      }
    } catch (...) {  // the list is read the next time
      std::lock_guard lock(mutex_);
      events_lost_ = true;
      throw;
    }
    {
      std::lock_guard lock(mutex_);
      lost = std::exchange(events_lost_, false) || lost;
    }
    const bool looked = !lost || session->lost() || look_again(*session);
    std::lock_guard lock(mutex_);
    // Notices that are still on their way were not read.
    if (!looked || (lost && openings_ != 0)) events_lost_ = true;
  }
  if (session != nullptr && !session->lost()) {
    std::vector<std::shared_ptr<Lent>> unanswered;
    {
      std::lock_guard lock(mutex_);
      std::ranges::copy_if(lent_, std::back_inserter(unanswered),
                           [](const auto& lent) { return lent->retired && !lent->answered; });
    }
    // In one call, a broker that has not replied once is not waited for again.
    for (const auto& lent : unanswered)
      if (!ask(*session, lent, client::Deadline::after(0))) break;
  }
  // The users are not counted any more. Only the driver guarantees that importers keep their mappings.
  const bool nobody_counts = session == nullptr || session->lost();
  std::size_t most = 0;  // a `free` that lends again is served another time
  {
    std::lock_guard lock(mutex_);
    most = lent_.size();
  }
  Done done;
  std::exception_ptr thrown;
  // One after the other: meanwhile another thread, or a `free` that finds no memory itself, may take the next.
  for (std::size_t i = 0; i < most; ++i) {
    const auto lent = next_free(nobody_counts);
    if (lent == nullptr) break;
    all_notices().retired.fetch_sub(1, std::memory_order_acq_rel);
    try {
      if (lent->free != nullptr) lent->free(lent->context, lent->pointer);
    } catch (...) {
      if (!thrown) thrown = std::current_exception();  // the others are freed all the same
    }
    ++done.freed;
  }
  if (thrown) std::rethrow_exception(thrown);
  std::lock_guard lock(mutex_);
  done.waiting = static_cast<std::size_t>(std::ranges::count_if(lent_, [](const auto& lent) { return lent->retired; }));
  return done;
}

std::shared_ptr<Lent> Notices::next_free(bool nobody_counts) {
  std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(lent_, [&](const std::shared_ptr<Lent>& lent) {
    return lent->retired && lent->users == 0 && (lent->drained || nobody_counts);
  });
  if (found == lent_.end()) return nullptr;
  std::shared_ptr<Lent> lent = std::move(*found);
  lent_.erase(found);
  return lent;
}

void Notices::take_event(const client::GpuEvent& event) {
  // this may be the last reference to one, which must not end under the lock
  std::vector<std::shared_ptr<Region>> known;
  {
    std::lock_guard lock(mutex_);
    if (event.kind == client::GpuEvent::Kind::drained) {
      for (const auto& lent : lent_)
        if (same_ref(lent->ref, event.region)) lent->drained = true;
      return;
    }
    std::erase_if(regions_, [](const auto& region) { return region.expired(); });
    for (const auto& weak : regions_)
      if (auto region = weak.lock(); region != nullptr) known.push_back(std::move(region));
    if (openings_ != 0) early_.push_back(event);
  }
  for (auto& region : known) {
    if (same_ref(region->ref(), event.region)) region->note_state(state_of(event.state), event.code);
    // the end of the last one waits for no device here
    (void)Region::release(std::move(region), client::Deadline::now());
  }
}

// Events were lost: reads the same facts from the broker's lists.
bool Notices::look_again(client::Session& session) {
  std::vector<std::shared_ptr<Lent>> waiting;
  std::vector<std::shared_ptr<Region>> regions;
  {
    std::lock_guard lock(mutex_);
    std::ranges::copy_if(lent_, std::back_inserter(waiting), [](const auto& lent) { return lent->retired; });
    for (const auto& weak : regions_)
      if (auto region = weak.lock(); region != nullptr) regions.push_back(std::move(region));
  }
  bool answered = true;
  for (const auto& lent : waiting) answered = answered && ask(session, lent, client::Deadline::after(0));
  for (auto& region : regions) {
    client::Selection only;
    only.region = region->ref();
    if (answered) {
      const auto listed = client::list_gpu_regions(session, only, client::Deadline::after(0));
      answered = listed.has_value();
      if (answered && !listed->rows.empty())
        region->note_state(state_of(static_cast<shmbw_gpu_state>(listed->rows.front().record.state)),
                           listed->rows.front().record.code);
    }
    (void)Region::release(std::move(region), client::Deadline::now());  // it may be the last reference
  }
  return answered;
}

Result<void> Notices::pin_device(const DeviceInfo& device, client::Deadline deadline) {
  {
    std::lock_guard lock(mutex_);
    if (std::ranges::find(pinned_, device.uuid) != pinned_.end()) return {};
  }
  const std::shared_ptr<client::Session> session = session_.lock();
  if (session == nullptr) return error(Status::session_lost, "the session is over");
  client::GpuUuid uuid;
  std::ranges::copy(device.uuid.bytes, uuid.begin());
  auto held = client::gpu_device(*session, uuid, device.bus_id, -1, deadline);
  if (!held && held.error().status == Status::device_not_pinned) {
    // The broker may not open the node, or is in another container: this process' descriptor will do.
    auto node = open_node(device);
    if (!node) {
      Error failure = held.error();
      failure.sentence += "; opening it here for the broker failed too: " + node.error().sentence;
      return std::unexpected(std::move(failure));
    }
    Error failure = held.error();
    held = client::gpu_device(*session, uuid, device.bus_id, node->get(), deadline);
    if (!held && held.error().status == Status::bad_fd) {
      failure.sentence += "; it does not take what this process opened as the node either: " + held.error().sentence;
      return std::unexpected(std::move(failure));
    }
  }
  if (!held) return std::unexpected(held.error());
  std::lock_guard lock(mutex_);
  pinned_.push_back(device.uuid);
  return {};
}

Notices::Opening::Opening(const std::shared_ptr<Notices>& notices) : notices_(notices) {
  std::lock_guard lock(notices_->mutex_);
  ++notices_->openings_;
}
Notices::Opening::~Opening() {
  std::lock_guard lock(notices_->mutex_);
  if (--notices_->openings_ == 0) notices_->early_.clear();
}

void Notices::enter(const std::shared_ptr<Region>& region) {
  std::lock_guard lock(mutex_);
  for (const client::GpuEvent& event : early_)
    if (same_ref(region->ref(), event.region)) region->note_state(state_of(event.state), event.code);
  std::erase_if(regions_, [](const auto& known) { return known.expired(); });
  regions_.push_back(region);
}

void Notices::lend(const std::shared_ptr<Lent>& lent) {
  std::lock_guard lock(mutex_);
  lent_.push_back(lent);
}

Notices::Lending::Lending() { all_notices().lending.fetch_add(1, std::memory_order_acq_rel); }
Notices::Lending::~Lending() { all_notices().lending.fetch_sub(1, std::memory_order_acq_rel); }

std::shared_ptr<Lent> Notices::find_lent(shmbw_region_ref ref, client::Deadline deadline) {
  constexpr std::int64_t kRest = 200'000;
  AllNotices& all = all_notices();
  const std::shared_ptr<client::Session> session = session_.lock();
  for (;;) {
    const bool more = all.lending.load(std::memory_order_acquire) != 0 && !deadline.passed();  // before the look
    {
      std::lock_guard lock(all.mutex);
      for (const auto& notices : all.sessions) {
        std::lock_guard inner(notices->mutex_);
        for (const auto& lent : notices->lent_)
          if (same_ref(lent->ref, ref) && session != nullptr && lent->session->epoch() == session->epoch()) {
            ++lent->users;
            return lent;
          }
      }
    }
    if (!more) return nullptr;
    sys::rest(kRest);
  }
}

void Notices::give_back(const std::shared_ptr<Lent>& lent) {
  // Nothing is allocated here, because destructors call it.
  AllNotices& all = all_notices();
  std::lock_guard lock(all.mutex);
  for (const auto& notices : all.sessions) {
    std::lock_guard inner(notices->mutex_);
    if (std::ranges::find(notices->lent_, lent) == notices->lent_.end()) continue;
    --lent->users;
    return;
  }
}

Result<void> Notices::retire(const std::shared_ptr<Lent>& lent, client::Deadline deadline) {
  all_notices().retired.fetch_add(1, std::memory_order_acq_rel);
  {
    std::lock_guard lock(mutex_);
    lent->retired = true;
  }
  return ask(*lent->session, lent, deadline);
}

Result<void> Notices::ask(client::Session& session, const std::shared_ptr<Lent>& lent, client::Deadline deadline) {
  const auto users = client::gpu_retire(session, lent->ref, deadline);
  // Gone: the end of the last user removed it.
  const bool gone = !users && users.error().status == Status::not_found;
  if (!users && !gone) return std::unexpected(users.error());
  std::lock_guard lock(mutex_);
  lent->answered = true;
  if (gone || *users == 0) lent->drained = true;
  return {};
}

}  // namespace shmb::cuda
