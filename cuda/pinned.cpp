// SPDX-License-Identifier: Apache-2.0
// The broker gets the pin first and its end last, and the mapping is held in between.
#include "cuda/pinned.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "client/session/forked.hpp"
#include "cuda/context.hpp"

namespace shmb::cuda {
namespace {

// The registrations of this process, by handle of the region. The lock is held over a fork. It is never held while the
// session or the driver is called. A waiter polls for another thread's registration until its own deadline.
template <class T>
struct Registry final : client::ForkGuarded {
  struct Place {
    std::weak_ptr<T> made;
    bool changing = false;  // being registered or unregistered
  };
  Registry() { client::enrol(*this, true); }
  void lock_for_fork() override { mutex.lock(); }
  void unlock_after_fork() override { mutex.unlock(); }

  // Until then no other thread registers what is at this place.
  void settle(std::uint64_t serial, const std::shared_ptr<T>& made) {
    std::lock_guard lock(mutex);
    if (made == nullptr) all.erase(serial);
    else all[serial] = {made, false};
  }

  std::mutex mutex;
  std::map<std::uint64_t, Place> all;
};

constexpr std::int64_t kLookAgain = 200'000;

}  // namespace

class PinnedHost::Registration {
 public:
  static Registry<Registration>& registry() {
    static auto* const one = new Registry<Registration>;
    return *one;
  }
  static Result<std::shared_ptr<Registration>> make(client::Region& region, client::Deadline deadline);
  Registration(const Driver& driver, Device device, client::Region& region, std::shared_ptr<void> mapping)
      : mapping_(std::move(mapping)),
        session_(region.session().shared_from_this()),
        ref_(region.ref()),
        memory_(region.data()),
        hold_(driver, device) {}
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration();

  Address address() const { return address_; }

 private:
  std::shared_ptr<void> mapping_;  // destroyed last: the handle may be released before
  std::shared_ptr<client::Session> session_;
  shmbw_region_ref ref_;
  std::byte* memory_;
  ContextHold hold_;
  Address address_ = 0;
  bool read_only_ = false, told_ = false, unanswered_ = false, registered_ = false;
};

Result<std::shared_ptr<PinnedHost::Registration>> PinnedHost::Registration::make(client::Region& region,
                                                                                 client::Deadline deadline) {
  SHMB_TRY(loaded, Driver::load());
  const Driver& driver = *loaded;
  const std::string object =
      "region " + std::to_string(region.ref().id) + "." + std::to_string(region.ref().generation);
  if (region.data() == nullptr) return error(Status::invalid, object + " is not mapped as a whole by this handle");
  if (region.length() == 0) return error(Status::invalid, object + " has no bytes that could be registered");
  SHMB_TRY_VOID(driver.need(Feature::timeline));
  SHMB_TRY(device, driver.at(handy_device(driver)));  // any will do: the registration is for all devices
  auto mapping = region.hold_mapping();
  if (!mapping) return system_failure(mapping.error(), "the page that tells of a fork");
  auto made = std::make_shared<Registration>(driver, device->device, region, std::move(*mapping));
  made->read_only_ = (region.rights() & SHMBW_RIGHT_MAP_WRITE) == 0;
  if (made->read_only_ && !device->read_only_register)
    return error(Status::not_supported,
                 device->name + " cannot register memory that is mapped read-only: attach " + object + " for writing");
  SHMB_TRY(scope, made->hold_.enter());
  if (!made->session_->is_local()) {
    if (auto told = client::gpu_pinned(*made->session_, made->ref_, false, deadline); !told) {
      made->told_ = made->unanswered_ = told.error().status == Status::deadline;  // the broker may still get it
      return std::unexpected(told.error());
    }
    made->told_ = true;
  }
  const std::size_t bytes = (region.bytes().size() + kSmallPage - 1) / kSmallPage * kSmallPage;
  const unsigned flags = kHostPortable | kHostDeviceMap | (made->read_only_ ? kHostReadOnly : 0U);
  const BesideCaptures beside(driver);
  if (const Code code = driver->host_register(made->memory_, bytes, flags); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuMemHostRegister", object));
  made->registered_ = true;
  if (const Code code = driver->host_address(&made->address_, made->memory_, 0); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuMemHostGetDevicePointer", object));
  return made;
}

PinnedHost::Registration::~Registration() {
  const Driver* driver = Driver::loaded();
  if (driver == nullptr) return;  // a forked child: pages and pin are the parent's
  if (registered_) {
    try {
      auto scope = hold_.enter();
      const BesideCaptures beside(*driver);
      driver->calls().host_unregister(memory_);  // also without a context: then the driver refuses
    } catch (...) {  // no memory for a sentence: the pages stay registered, and counted, until the process ends
      return;
    }
  }
  if (!told_) return;
  try {
    // A broker that has not replied to the pin is not waited for here too. It gets both in order.
    (void)client::gpu_pinned(*session_, ref_, true, unanswered_ ? client::Deadline::now() : client::Deadline::after(0));
  } catch (...) {  // no memory for a packet or a sentence: the broker counts the pin until the session ends
  }
}

Result<PinnedHost::Handle> PinnedHost::pin(client::Region& region, client::Deadline deadline) {
  // First: a forked child would wait for threads that it does not have.
  SHMB_TRY_VOID(Driver::load());
  auto& registry = Registration::registry();
  const std::uint64_t serial = region.serial();
  for (;;) {
    {
      std::lock_guard lock(registry.mutex);
      auto& place = registry.all[serial];
      if (auto alive = place.made.lock()) return Handle(new PinnedHost(serial, std::move(alive)));
      if (!std::exchange(place.changing, true)) break;
    }
    if (deadline.passed())
      return error(Status::busy, "another thread has been registering this region, or taking that back, all the time");
    sys::rest(kLookAgain);
  }
  Result<std::shared_ptr<Registration>> made{nullptr};
  try {
    made = Registration::make(region, deadline);
    if (!made) {
      registry.settle(serial, nullptr);
      return std::unexpected(made.error());
    }
    Handle handle(new PinnedHost(serial, *made));
    registry.settle(serial, *made);
    return handle;
  } catch (...) {
    made = nullptr;
    registry.settle(serial, nullptr);
    throw;
  }
}

// Nothing registers the mapping again before it is free.
PinnedHost::~PinnedHost() {
  auto& registry = Registration::registry();
  {
    std::lock_guard lock(registry.mutex);
    // Other threads get theirs from the place, under this lock. So none can get one while this is the last.
    if (registration_.use_count() > 1) {
      registration_.reset();
      return;
    }
    const auto place = registry.all.find(serial_);
    if (place != registry.all.end()) {
      place->second.made.reset();
      place->second.changing = true;
    }
  }
  registration_.reset();
  registry.settle(serial_, nullptr);
}
Address PinnedHost::address() const { return registration_->address(); }

}  // namespace shmb::cuda
