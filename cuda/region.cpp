// SPDX-License-Identifier: Apache-2.0
// The operations of an existing region. allocate.cpp and import.cpp make regions, publish.cpp gives them to others.
#include "cuda/region.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "client/session/call.hpp"
#include "cuda/leaving.hpp"
#include "cuda/notices.hpp"

namespace shmb::cuda {

Device current_device(const Driver& driver) {
  Context context = nullptr;
  Device device = -1;
  if (driver->context_get(&context) != kSuccess || context == nullptr || driver->context_device(&device) != kSuccess)
    return -1;
  return device;
}

Result<void> wait_for(const Driver& driver, const Sync& sync, std::span<const Device> devices,
                      const std::string& object, client::Deadline deadline) {
  if (sync.how == Sync::How::none) return {};
  if (sync.how == Sync::How::device) return Backlog::of_devices(driver, devices, object).wait(deadline);
  SHMB_TRY(device, device_of(driver, sync.stream, devices.front()));
  return Backlog::of_stream(driver, device, sync.stream, object).wait(deadline);
}

namespace {

// The end of a last reference has no deadline argument and no result, and asks the driver nothing. A caller that needs
// these calls release().
struct Ending {
  client::Deadline deadline;
  Result<void> outcome;
};
thread_local Ending* asked_ending = nullptr;

}  // namespace

Region::Region(const Driver& driver, Memory memory, std::shared_ptr<client::Session> session)
    : driver_(&driver),
      memory_(std::move(memory)),
      session_(std::move(session)),
      notices_(session_ == nullptr ? nullptr : Notices::of(session_)) {}

Region::Handle Region::make(const Driver& driver, Memory memory, std::shared_ptr<client::Session> session) {
  return Handle(new Region(driver, std::move(memory), std::move(session)), &Region::end);
}

Result<void> Region::release(Handle region, client::Deadline deadline) {
  Ending ending{deadline, {}};
  Ending* const outer = std::exchange(asked_ending, &ending);
  region.reset();
  asked_ending = outer;
  return ending.outcome;
}

Backlog Region::backlog() const { return Backlog::of_devices(*driver_, devices_, called()); }

// Waits until the devices are done. False: they are not, or there was no memory to find out.
static bool over_in_time(Region& region, Ending& asked) noexcept {
  try {
    Backlog before = region.backlog();
    auto waited = before.wait(asked.deadline);
    if (before.over()) return true;
    Error why = waited ? Error{} : waited.error();
    why.sentence +=
        "; its mapping and its reference stay until the device is through, then shmb_dispatch or a later "
        "call that frees gives them back";
    asked.outcome = std::unexpected(std::move(why));
  } catch (const std::bad_alloc&) {
    asked.outcome = std::unexpected(Error{Status::no_memory, 0, {}, "out of memory"});  // short enough to need none
  }
  return false;
}

void Region::end(Region* region) noexcept {
  std::unique_ptr<Region> last(region);
  if (Driver::loaded() == nullptr || last->pointer() == 0) return;  // a forked child has no GPU memory
  Ending* const asked = std::exchange(asked_ending, nullptr);
  // Unless the end was asked for, nobody knows what the program's streams do right now.
  if (asked == nullptr || !over_in_time(*last, *asked)) Leaving::add(std::move(last));
}

Region::~Region() {
  if (Driver::loaded() == nullptr) return;  // a forked child: all of it is the parent's
  // While it is mapped the broker must count it: until this process ends.
  if (!unmap()) return;
  if (lent_ != nullptr) notices_->give_back(lent_);
  else if (published() && !session_->lost())
    (void)client::insist([&] { return client::post_release(*session_, ref_, 0); });
}

Result<std::unique_lock<Turn>> Region::change(client::Deadline deadline) const {
  constexpr std::int64_t kRest = 200'000;
  for (;;) {
    std::unique_lock lock(changing_, std::try_to_lock);
    if (lock) return lock;
    if (deadline.passed())
      return error(Status::busy, called() + " is being published, put to sleep or woken by another thread");
    sys::rest(kRest);
  }
}

std::string Region::called() const {
  if (!published()) return "a GPU region of " + std::to_string(memory_.length) + " bytes";
  return "GPU region " + std::to_string(ref_.id) + "." + std::to_string(ref_.generation);
}

std::unexpected<Error> Region::unmapped() const {
  return error(Status::invalid, called() + (range_ ? " is asleep: wake it first"
                                                   : " is the handle of a set, which has no mapping: import the set"));
}

Result<void> Region::bind(const std::shared_ptr<client::Session>& session) {
  SHMB_TRY(lock, change(client::Deadline::after(0)));
  if (session_ == session) return {};
  if (session_ != nullptr)
    return error(Status::busy, called() + " is in use with another session of this process: use that one");
  session_ = session;
  notices_ = Notices::of(session);
  return {};
}

Result<ContextHold::Scope> Region::enter() {
  if (!hold_) hold_.emplace(*driver_, devices_.front());
  return hold_->enter();
}

Result<void> Region::map(std::span<const Allocation> allocations, Address at) {
  if (!range_) {
    SHMB_TRY(range,
             AddressRange::reserve(*driver_, devices_.front(), memory_.bytes, memory_.granularity, at, called()));
    range_ = std::move(range);
  }
  return range_.map(allocations, memory_.sizes, called());
}

Result<void> Region::set_access(Access access) {
  SHMB_TRY_VOID(range_.set_access(devices_, access == Access::read ? kReadAccess : kReadWriteAccess, called()));
  access_.store(access, std::memory_order_release);
  pointer_.store(range_.address() + memory_.offset, std::memory_order_release);
  return {};
}

// The memory of a foreign allocator has a mapping that is not this library's to change.
void Region::close_own() {
  bool closed = !close_own_;
  try {
    closed = closed || (range_ && set_access(Access::read));
  } catch (const std::bad_alloc&) {  // no memory for the driver's refusal
  }
  if (!closed) not_closed_.store(true, std::memory_order_release);
}

// A reference to each allocation, for exporting, or to keep it through a sleep.
Result<std::vector<Allocation>> Region::allocations() const {
  std::vector<Allocation> all;
  Address next = range_ ? range_.address() : pointer() - memory_.offset;
  for (const std::uint64_t bytes : memory_.sizes) {
    SHMB_TRY(one, Allocation::at(*driver_, devices_.front(), next, called()));
    all.push_back(std::move(one));
    next += bytes;
  }
  return all;
}

bool Region::unmap() noexcept {
  bool gone = true;
  if (opened_ != 0) {
    try {
      auto scope = hold_->enter();
      const BesideCaptures beside(*driver_);
      gone = scope && driver_->calls().ipc_close_memory(opened_) == kSuccess;
    } catch (const std::bad_alloc&) {
      gone = false;
    }
    opened_ = 0;
  }
  range_.reset();
  pointer_.store(0, std::memory_order_release);
  return gone && !range_.stuck();
}

// States only advance, so it does not matter which of two threads writes first.
static int progress(State state) {
  switch (state) {
    case State::unpublished:
      return 0;
    case State::incomplete:
      return 1;
    case State::ok:
      return 2;
    case State::poisoned:
      return 3;
    case State::device_lost:
    case State::invalid:
      return 4;
    case State::retired:
      return 5;
    case State::producer_dead:
      return 6;
    case State::detached:
      return 7;
  }
  return 7;
}

void Region::note_state(State state, Code code) {
  State known = state_.load(std::memory_order_acquire);
  while (progress(state) > progress(known))
    if (state_.compare_exchange_weak(known, state, std::memory_order_acq_rel)) {
      code_.store(code, std::memory_order_release);
      return;
    }
}

// Reports the lost device, so that others on it need not find out by themselves.
std::unexpected<Error> Region::told(Error failure) {
  failure = driver_->looked_after(std::move(failure), memory_.device);
  if (failure.status == Status::device_lost && session_ != nullptr) {
    client::GpuUuid uuid;
    std::ranges::copy(memory_.uuid.bytes, uuid.begin());
    const client::GpuReport report = lost_report(uuid);
    (void)client::gpu_report_later(*session_, {&report, 1}, client::Deadline::after(0));
  }
  return std::unexpected(std::move(failure));
}

client::GpuReport lost_report(const client::GpuUuid& uuid) {
  client::GpuReport report;
  report.what = SHMBW_GPU_FINDING_DEVICE_LOST;
  report.code = kUnknown;
  report.uuid = uuid;
  return report;
}

Result<void> Region::written(Sync sync, const Patience& patience) {
  SHMB_TRY(driver, Driver::load());
  SHMB_TRY(lock, change(patience.device()));
  if (!published())
    return error(Status::invalid, called() + " is not published yet: publish it without SHMB_GPU_PUBLISH_WRITING");
  if (!writer_) return error(Status::denied, called() + " is not written through this handle");
  if (pointer() == 0) return unmapped();
  if (auto waited = wait_for(*driver, sync, devices_, called(), patience.device()); !waited)
    return told(waited.error());
  client::GpuReport report;
  report.region = ref_;
  report.what = SHMBW_GPU_FINDING_WRITTEN;
  auto told = client::gpu_report(*session_, report, patience.broker());
  // Others may read it by now, although no reply came.
  if (!told && (told.error().status == Status::deadline || told.error().status == Status::session_lost)) {
    maybe_written_ = true;
    Error failure = told.error();
    failure.sentence += "; the broker may have heard it all the same: say so again";
    return std::unexpected(std::move(failure));
  }
  // An earlier request had arrived: there is no right left to give up.
  const bool before = maybe_written_ && !told && told.error().status == Status::denied;
  if (!told && !before) return std::unexpected(told.error());
  rights_ &= ~static_cast<std::uint32_t>(SHMBW_RIGHT_MAP_WRITE);
  writer_.store(false, std::memory_order_release);
  close_own();
  return {};
}

Result<void> Region::sleep(const Patience& patience) {
  SHMB_TRY(driver, Driver::load());
  SHMB_TRY(lock, change(patience.device()));
  if (!range_ && pointer() == 0) return unmapped();
  if (!range_)
    return error(Status::invalid,
                 called() + " is mapped by its owner or as lent memory, which cannot be undone for a time");
  if (pointer() == 0) return error(Status::invalid, called() + " is asleep already");
  // First the address is cleared, then the views are counted. A thread that takes one in between sees that the region
  // sleeps, or is counted.
  const Address awake = pointer_.exchange(0);
  Result<void> slept;
  try {
    slept = fall_asleep(patience.device());
  } catch (...) {  // without an address its end would take it for asleep, and not wait for the device
    pointer_.store(awake);
    throw;
  }
  if (!slept && range_.mapped()) pointer_.store(awake);
  return slept;
}

Result<void> Region::fall_asleep(client::Deadline deadline) {
  if (const int views = views_.load(); views != 0)
    return error(Status::busy,
                 called() + " is in use by " + std::to_string(views) + " DLPack tensors: let them go first");
  // Unmapping alone does not wait for running kernels.
  if (auto through = backlog().wait(deadline); !through) return told(through.error());
  if (!published()) {
    SHMB_TRY(kept, allocations());
    held_ = std::move(kept);
  }
  if (const Code code = range_.unmap(); code != kSuccess) {
    held_.clear();
    return told(driver_->failure(code, "cuMemUnmap", called()));
  }
  return {};
}

Result<void> Region::wake(client::Deadline deadline) {
  SHMB_TRY(driver, Driver::load());
  SHMB_TRY(lock, change(deadline));
  if (pointer() != 0 || !range_) return error(Status::invalid, called() + " is not asleep");
  if (range_.stuck())
    return error(Status::driver_failed, called() +
                                            " was not taken away whole when it was put to sleep, so it cannot "
                                            "come back: release it and import it again");
  SHMB_TRY(scope, enter());
  std::vector<Allocation> found;
  if (published()) {
    client::GpuRequest wish;
    wish.by = SHMBW_ATTACH_BY_ID;
    wish.region = ref_;
    // The lease has its rights already. A process that may not ask for writing again keeps those that it has.
    wish.rights = SHMBW_RIGHT_MAP_READ;
    wish.few = true;
    SHMB_TRY(opened, client::gpu_open(*session_, {&wish, 1}, deadline));
    auto& one = opened.front();
    if (!one) return std::unexpected(one.error());
    const client::GpuRelease second{ref_, 1, false};  // the handle has its reference already
    (void)client::insist([&] { return client::gpu_release(*session_, {&second, 1}, client::Deadline::after(0)); });
    if (one->chunks != memory_.sizes.size())
      return error(Status::protocol, "the broker's descriptors of " + called() + " are not those that it had");
    const DeviceInfo* const here = driver->at(devices_.front()).value_or(&driver->devices().front());
    auto imported = import_all(*session_, *driver, *here, *one, called(), deadline);
    if (!imported) return told(imported.error());
    found = std::move(*imported);
    note_state(state_of(one->state), code_.load());
  } else {
    found = std::move(held_);
  }
  Result<void> mapped;
  try {
    mapped = range_.map(found, memory_.sizes, called());
    if (mapped) mapped = set_access(published() && !writer_ ? Access::read : access());
  } catch (...) {  // for memory that was never published this is the only reference
    range_.unmap();
    if (!published()) held_ = std::move(found);
    throw;
  }
  if (!mapped) {
    range_.unmap();
    if (!published()) held_ = std::move(found);
    return told(mapped.error());
  }
  return {};
}

// A copy on the same device, of the caller alone and writable.
Result<Region::Handle> Region::copy(const Patience& patience) {
  SHMB_TRY(driver, Driver::load());
  AllocateSpec spec;
  spec.device = devices_.front();
  spec.zero = false;
  SHMB_TRY(lock, change(patience.device()));  // it does not fall asleep meanwhile
  if (pointer() == 0) return unmapped();
  SHMB_TRY(made, allocate(session_, memory_.length, spec));
  SHMB_TRY(scope, made->enter());
  SHMB_TRY(own, OwnStream::make(*driver, spec.device, called()));
  const Stream stream = made->working_.emplace(std::move(own)).get();  // as in allocate()
  const Code code = (*driver)->copy_on_device_async(made->pointer(), pointer(), memory_.length, stream);
  if (code != kSuccess) return std::unexpected(driver->failure(code, "cuMemcpyDtoDAsync", called()));
  SHMB_TRY_VOID(Backlog::of_stream(*driver, spec.device, stream, called()).wait(patience.device()));
  made->working_.reset();
  return made;
}

Result<client::Region::Ticket> Region::make_ticket(std::uint32_t rights, std::uint32_t uses, std::int64_t lifetime,
                                                   client::Deadline deadline) {
  if (!published()) return error(Status::invalid, called() + " is not published yet: nobody could import it");
  return client::make_ticket(*session_, ref_, rights, uses, lifetime, deadline);
}

Result<Fd> Region::dma_buf(std::uint64_t offset, std::uint64_t length) {
  constexpr int kDmaBuf = 1;  // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
  SHMB_TRY(driver, Driver::load());
  SHMB_TRY_VOID(driver->need(Feature::rdma));
  if (memory_.device == nullptr || !memory_.device->dma_buf)
    return error(Status::not_supported, "the device of " + called() + " has no dma-buf export");
  if (!memory_.rdma)
    return error(Status::not_supported,
                 called() + " was not made for network cards: allocate it with SHMB_GPU_ALLOCATE_RDMA");
  SHMB_TRY(lock, change(client::Deadline::after(0)));
  if (pointer() == 0) return unmapped();
  if (offset % kSmallPage != 0 || length % kSmallPage != 0 || length == 0 || offset > memory_.length ||
      length > memory_.bytes - memory_.offset - offset)
    return error(Status::invalid, "a dma-buf covers whole pages of 4096 bytes inside the region");
  SHMB_TRY(scope, enter());
  int fd = -1;
  if (const Code code = (*driver)->range_handle(&fd, pointer() + offset, length, kDmaBuf, 0); code != kSuccess)
    return std::unexpected(driver->failure(code, "cuMemGetHandleForAddressRange", called()));
  Fd made = Fd::adopt(fd);
  // No document says whether the driver sets close-on-exec itself.
  if (auto set = sys::set_close_on_exec(made.get()); !set)
    return system_failure(set.error(), "the dma-buf of " + called());
  return made;
}

Result<void> Region::unname() {
  if (!published()) return {};
  // The name gets a reference of its own, because DLPack tensors may keep this one for long.
  client::GpuRequest wish;
  wish.by = SHMBW_ATTACH_BY_ID;
  wish.region = ref_;
  wish.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_RELEASE;
  wish.no_fd = true;
  SHMB_TRY(second, client::gpu_open(*session_, {&wish, 1}, client::Deadline::after(0)));
  if (!second.front()) return std::unexpected(second.front().error());
  return client::insist([&] { return client::release_with_name(*session_, ref_, 0); });
}

}  // namespace shmb::cuda
