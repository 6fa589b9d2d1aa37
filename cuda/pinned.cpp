// SPDX-License-Identifier: Apache-2.0
// The broker hears of a pin first and of its end last, and the mapping is held in between.
#include "cuda/pinned.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "base/text.hpp"
#include "client/forked.hpp"
#include "cuda/context.hpp"

namespace shmb::cuda {
namespace {

// What this process has registered, by handle of the region. Its lock is held over a fork, and while session and driver
// are called, whose locks therefore come after it.
template <class T>
struct Registry final : client::ForkGuarded {
  Registry() { client::enrol(*this, true); }
  void lock_for_fork() override { mutex.lock(); }
  void unlock_after_fork() override { mutex.unlock(); }
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<T>> all;
};

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
  bool read_only() const { return read_only_; }

 private:
  std::shared_ptr<void> mapping_;  // goes last: the handle may be released before
  std::shared_ptr<client::Session> session_;
  shmbw_region_ref ref_;
  std::byte* memory_;
  ContextHold hold_;
  Address address_ = 0;
  bool read_only_ = false, told_ = false, registered_ = false;
};

Result<std::shared_ptr<PinnedHost::Registration>> PinnedHost::Registration::make(client::Region& region,
                                                                                 client::Deadline deadline) {
  auto loaded = Driver::load();
  if (!loaded) return std::unexpected(loaded.error());
  const Driver& driver = **loaded;
  const std::string object =
      "region " + std::to_string(region.ref().id) + "." + std::to_string(region.ref().generation);
  if (region.bytes().empty()) return error(Status::invalid, object + " is not mapped as a whole by this handle");
  if (auto can = driver.need(Feature::timeline); !can) return std::unexpected(can.error());
  auto device = driver.at(handy_device(driver));  // any will do: the registration is for all
  if (!device) return std::unexpected(device.error());
  auto mapping = region.hold_mapping();
  if (!mapping) return system_failure(mapping.error(), "the page that tells of a fork");
  auto made = std::make_shared<Registration>(driver, (*device)->device, region, std::move(*mapping));
  made->read_only_ = (region.rights() & SHMBW_RIGHT_MAP_WRITE) == 0;
  if (made->read_only_ && !(*device)->read_only_register)
    return error(Status::not_supported, (*device)->name + " cannot register memory that is mapped read-only: attach " +
                                            object + " for writing");
  auto scope = made->hold_.enter_primary();
  if (!scope) return std::unexpected(scope.error());
  if (!made->session_->is_local()) {
    if (auto told = client::gpu_pinned(*made->session_, made->ref_, false, deadline); !told)
      return std::unexpected(told.error());
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
  try {
    if (registered_) {
      auto scope = hold_.enter_primary();
      const BesideCaptures beside(*driver);
      driver->calls().host_unregister(memory_);  // also where no context can be had: it is the driver's to refuse
    }
    if (told_) (void)client::gpu_pinned(*session_, ref_, true, client::Deadline::after(0));
  } catch (...) {  // no memory for a packet or a sentence: the broker counts the pin until the session ends
  }
}

Result<PinnedHost::Handle> PinnedHost::pin(client::Region& region, client::Deadline deadline) {
  auto& registry = Registration::registry();
  std::lock_guard lock(registry.mutex);
  std::erase_if(registry.all, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = registry.all.find(region.serial()); found != registry.all.end()) {
    if (auto alive = found->second.lock()) {
      if (auto usable = Driver::load(); !usable) return std::unexpected(usable.error());
      return Handle(new PinnedHost(std::move(alive)));
    }
  }
  auto made = Registration::make(region, deadline);
  if (!made) return std::unexpected(made.error());
  registry.all[region.serial()] = *made;
  return Handle(new PinnedHost(std::move(*made)));
}

// Under the lock, so that nobody registers the mapping again before it is free.
PinnedHost::~PinnedHost() {
  std::lock_guard lock(Registration::registry().mutex);
  registration_.reset();
}
Address PinnedHost::address() const { return registration_->address(); }
bool PinnedHost::read_only() const { return registration_->read_only(); }

}  // namespace shmb::cuda
