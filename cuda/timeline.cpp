// SPDX-License-Identifier: Apache-2.0
// The order matters in three places. The write is enqueued before it is announced. The counter is read before the
// status, because the broker writes them the other way round. Streams have passed before the page is unregistered.
#include "cuda/timeline.hpp"

#include <algorithm>
#include <climits>
#include <iterator>
#include <map>
#include <new>
#include <thread>
#include <tuple>
#include <utility>

#include "base/sys_futex.hpp"
#include "base/text.hpp"
#include "client/session/call.hpp"
#include "cuda/backlog.hpp"

namespace shmb::cuda {
namespace {

using timeline::reached;
using timeline::Word;

constexpr std::int64_t kSettle = 5'000'000'000;
constexpr std::int64_t kFirstPause = 20'000, kLongestPause = 1'000'000;
constexpr std::size_t kWordBytes = sizeof(Word);
constexpr std::uint64_t kLongestStep = timeline::kRelease / 2;

// Whether the producer reached it, and not the broker's release, which lies 2^62 ahead.
bool truly_reached(std::uint64_t counter, std::uint64_t value) {
  return reached(counter, value) && counter - value < kLongestStep;
}

// Once the broker has written a status: whether the producer had reached the value before it ended.
bool was_reached(const Word& word, std::uint64_t value) {
  return truly_reached(word.last.load(std::memory_order_acquire), value);
}

// Sleeps until the word's `wakes` moves, or for a short time, because a GPU's write wakes no thread.
void pause(Word& word, std::uint32_t wakes, std::int64_t& length, client::Deadline deadline) {
  length = std::clamp(length * 2, kFirstPause, kLongestPause);
  const std::int64_t left = deadline.left();
  const std::int64_t now = left < 0 ? length : std::min(length, left);
  (void)sys::futex_wait(word.wakes, wakes, sys::now_monotonic() + now);  // checked again, whatever the result
}

}  // namespace

// A stream. Its handle may be used again for another one, and the handles of default streams stand for many.
using StreamKey = std::tuple<Device, unsigned long long, std::thread::id>;

struct Timeline::OnDevices {
  std::map<Device, ContextHold> holds;  // primary contexts by which streams were entered, and that of the page
  Device home = -1;                     // the device in whose primary context the page is registered
  Address words = 0;                    // 0: not registered yet
  std::map<StreamKey, Backlog> uses;    // the work of each stream at its last use
  bool lost = false;                    // a use is not in there

  ContextHold& hold(const Driver& driver, Device device) {
    return holds.try_emplace(device, driver, device).first->second;
  }
  // Work that was enqueued cannot be taken back. If it fails, the end of the stream's work can never be known.
  void used(const Driver& driver, const StreamKey& key, Stream stream) noexcept {
    constexpr std::size_t kMany = 64;
    try {
      Backlog now = Backlog::of_stream(driver, std::get<Device>(key), stream, "a timeline");
      uses.erase(key);
      for (auto use = uses.begin(); uses.size() >= kMany && use != uses.end();)
        use = use->second.over() ? uses.erase(use) : std::next(use);
      uses.emplace(key, std::move(now));
    } catch (...) {
      lost = true;
    }
  }
};

// The stream's context is current, the page is registered, and the word has this address on the device.
struct Timeline::Way {
  const Driver* driver;
  ContextHold::Scope scope;
  Address address;
  StreamKey stream;
};

Timeline::Timeline(std::shared_ptr<client::Session> session, std::uint32_t words)
    : session_(std::move(session)), words_(words) {}

Result<Timeline::Handle> Timeline::create(const std::shared_ptr<client::Session>& session, const Spec& spec,
                                          client::Deadline deadline) {
  if (session->is_local())
    return error(Status::local_only, "a timeline needs a broker, which releases its waiters when the producer dies");
  if (spec.words == 0 || spec.words > timeline::kMaxWords)
    return error(Status::invalid, "a timeline has 1 to " + std::to_string(timeline::kMaxWords) + " words, not " +
                                      std::to_string(spec.words));
  auto mark = client::ForkMark::make();
  if (!mark) return system_failure(mark.error(), "the page that tells of a fork");
  client::GpuTimelineRequest wish;
  wish.group = spec.group;
  wish.keep = spec.keep;
  wish.words = spec.words;
  wish.replace = spec.replace;
  wish.name = spec.name;
  Handle handle(new Timeline(session, spec.words));  // before the broker knows: a timeline that was made is not lost
  handle->mark_ = std::move(*mark);
  SHMB_TRY(made, client::gpu_timeline(*session, wish, deadline));
  auto mapping = Mapping::map(made.memory.get(), 0, timeline::bytes_of(spec.words), Access::read_write);
  if (!mapping) {
    const client::GpuRelease back{made.region, 1, true};
    (void)client::insist([&] { return client::gpu_release(*session, {&back, 1}, client::Deadline::after(0)); });
    return system_failure(mapping.error(), "mapping a timeline");
  }
  handle->own_ = std::move(*mapping);
  handle->memory_ = handle->own_.data();
  handle->ref_ = made.region;
  return handle;
}

Result<Timeline::Handle> Timeline::open(const std::shared_ptr<client::Session>& session, const client::Target& target,
                                        std::int64_t timeout, std::int64_t wait) {
  auto mark = client::ForkMark::make();
  if (!mark) return system_failure(mark.error(), "the page that tells of a fork");
  client::AttachItem item{target, SHMBW_RIGHT_MAP_READ, client::kAttachTimeline};
  SHMB_TRY(region, client::attach_region(session, item, timeout, wait));
  const std::uint64_t length = region->facts().length;
  if (length == 0 || length % kWordBytes != 0 || length / kWordBytes > timeline::kMaxWords)
    return error(Status::invalid, "the region is no timeline: it has " + format_size(length));
  Handle handle(new Timeline(session, static_cast<std::uint32_t>(length / kWordBytes)));
  handle->ref_ = region->ref();
  handle->mark_ = std::move(*mark);
  handle->memory_ = region->data();
  handle->region_ = std::move(region);
  return handle;
}

Timeline::~Timeline() {
  if (!mark_.intact()) return;  // the parent has all of it
  const bool was_producer = producer();
  if (devices_ && devices_->words != 0 && !let_go()) {
    (void)devices_.release();
    (void)own_.release();
    if (region_) (void)new (std::nothrow) client::Region::Handle(std::move(region_));  // never given back
  }
  own_.reset();
  // the handles of others give their leases back themselves
  if (was_producer && ref_.id != 0) client::post_timeline_end(*session_, ref_);
}

bool Timeline::let_go() noexcept {
  const Driver* driver = Driver::loaded();
  if (driver == nullptr || devices_->lost) return false;
  try {
    const client::Deadline deadline = client::Deadline::after(kSettle);
    for (auto& [stream, use] : devices_->uses) {
      (void)use.wait(deadline);
      if (!use.over()) return false;
    }
    devices_->uses.clear();
    auto scope = devices_->hold(*driver, devices_->home).enter();  // the caller may have no context any more
    const BesideCaptures beside(*driver);
    (*driver)->host_unregister(memory_);
    return true;
  } catch (...) {  // no memory for a sentence
    return false;
  }
}

std::string Timeline::name(std::uint32_t word) const {
  return "word " + std::to_string(word) + " of timeline " + std::to_string(ref_.id) + "." +
         std::to_string(ref_.generation);
}

Result<void> Timeline::check(std::uint32_t word) const {
  if (!mark_.intact())
    return error(Status::forked_child,
                 "this process was forked from the one that has the timeline: open it here, in a session of this "
                 "process, or start it with exec where the parent had used the GPU");
  if (word < words_) return {};
  return error(Status::invalid, "the timeline has " + std::to_string(words_) +
                                    " words, counted from 0: there is none " + std::to_string(word));
}

std::unexpected<Error> Timeline::ended(std::uint32_t word, std::uint64_t value) const {
  const std::uint32_t status = at(word).status.load(std::memory_order_acquire);
  const std::string what = name(word) + " will not reach " + std::to_string(value) + ": ";
  if (status == SHMBW_GPU_WORD_STATUS_DEVICE_LOST) return error(Status::device_lost, what + "the device is lost");
  if (status == SHMBW_GPU_WORD_STATUS_CLOSED)
    return error(Status::producer_dead, what + "its producer has closed it. Open the name again for a newer one");
  return error(Status::producer_dead, what + "its producer has died. Open the name again when it has a successor");
}

Result<Timeline::Look> Timeline::look(std::uint32_t word) const {
  SHMB_TRY_VOID(check(word));
  const Word& one = at(word);
  Look seen;
  seen.counter = one.counter.load(std::memory_order_acquire);  // before the status, which the broker writes first
  seen.announced = one.announced.load(std::memory_order_acquire);
  seen.status = static_cast<shmbw_gpu_word_status>(one.status.load(std::memory_order_acquire));
  if (seen.status != SHMBW_GPU_WORD_STATUS_OK) seen.counter = one.last.load(std::memory_order_acquire);
  return seen;
}

Result<void> Timeline::register_page(const Driver& driver) {
  if (devices_->words != 0) return {};
  const Device home = handy_device(driver);
  SHMB_TRY(device, driver.at(home));
  if (!producer() && !device->read_only_register)
    return error(Status::not_supported,
                 device->name + " cannot register memory that is mapped read-only: wait on the host instead");
  const std::string object = "timeline " + std::to_string(ref_.id) + "." + std::to_string(ref_.generation);
  // The primary context: the caller's own may end before the timeline does.
  SHMB_TRY(scope, devices_->hold(driver, home).enter());
  const std::size_t bytes = (timeline::bytes_of(words_) + kSmallPage - 1) / kSmallPage * kSmallPage;
  const unsigned flags = kHostPortable | kHostDeviceMap | (producer() ? 0U : kHostReadOnly);
  const BesideCaptures beside(driver);
  if (const Code code = driver->host_register(memory_, bytes, flags); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuMemHostRegister", object));
  Address words = 0;
  if (const Code code = driver->host_address(&words, memory_, 0); code != kSuccess) {
    driver->host_unregister(memory_);
    return std::unexpected(driver.failure(code, "cuMemHostGetDevicePointer", object));
  }
  devices_->home = home;
  devices_->words = words;
  return {};
}

Result<Timeline::Way> Timeline::enter(std::uint32_t word, Stream stream) {
  constexpr std::uintptr_t kPerThread = 2;  // CU_STREAM_PER_THREAD
  SHMB_TRY(loaded, Driver::load());
  const Driver& driver = *loaded;
  SHMB_TRY_VOID(driver.need(Feature::timeline));
  if (!devices_) devices_ = std::make_unique<OnDevices>();
  Device current = -1;  // of a default stream
  if (driver->context_device(&current) != kSuccess) current = handy_device(driver);
  SHMB_TRY(ordinal, device_of(driver, stream, current));
  SHMB_TRY(scope, devices_->hold(driver, ordinal).enter());
  SHMB_TRY(device, driver.at(ordinal));
  if (!device->mem_ops_64)
    return error(Status::not_supported, device->name + " has no 64-bit stream operations: wait on the host instead");
  SHMB_TRY_VOID(register_page(driver));
  int capturing = 0;
  if (const Code code = driver->stream_capturing(stream, &capturing); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuStreamIsCapturing", name(word)));
  if (capturing != 0) return std::unexpected(driver.failure(kCaptureUnsupported, "a timeline", name(word)));
  unsigned long long id = 0;
  if (const Code code = driver->stream_id(stream, &id); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuStreamGetId", name(word)));
  const bool of_thread = reinterpret_cast<std::uintptr_t>(stream) == kPerThread;
  return Way{&driver,
             std::move(scope),
             devices_->words + word * kWordBytes,
             {ordinal, id, of_thread ? std::this_thread::get_id() : std::thread::id()}};
}

Result<void> Timeline::signal(std::uint32_t word, std::uint64_t value, Stream stream) {
  SHMB_TRY_VOID(check(word));
  if (!producer())
    return error(Status::denied, "only the producer of a timeline signals: this handle was opened, not created");
  std::lock_guard lock(mutex_);
  Word& one = at(word);
  const std::uint64_t announced = one.announced.load(std::memory_order_relaxed);
  if (value == announced || !reached(value, announced))
    return error(Status::invalid, name(word) + " has announced " + std::to_string(announced) + ": " +
                                      std::to_string(value) + " is not greater. Values only grow");
  if (value - announced >= kLongestStep)
    return error(Status::invalid, name(word) + " has announced " + std::to_string(announced) + ": " +
                                      std::to_string(value) + " is too far ahead, one step is less than 2^61");
  SHMB_TRY(way, enter(word, stream));
  const Driver& driver = *way.driver;
  if (const Code code = driver->stream_write64(stream, way.address, value, kWriteDefault); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuStreamWriteValue64", name(word)));
  one.announced.store(value, std::memory_order_release);
  one.wakes.fetch_add(1, std::memory_order_release);
  (void)sys::futex_wake(one.wakes, INT_MAX);   // threads that wait in `wait` for the announcement
  devices_->used(driver, way.stream, stream);  // it is announced: no failure from here on
  return {};
}

Result<void> Timeline::wait(std::uint32_t word, std::uint64_t value, Stream stream, client::Deadline announced) {
  SHMB_TRY_VOID(check(word));
  Word& one = at(word);
  for (std::int64_t length = 0;;) {
    const std::uint32_t wakes = one.wakes.load(std::memory_order_acquire);
    if (one.status.load(std::memory_order_acquire) != SHMBW_GPU_WORD_STATUS_OK) {
      if (was_reached(one, value)) return {};
      return ended(word, value);
    }
    if (reached(one.announced.load(std::memory_order_acquire), value)) break;
    if (announced.passed())
      return error(Status::deadline, name(word) + " was not announced to reach " + std::to_string(value) +
                                         " in time: the producer has not enqueued that signal yet");
    pause(one, wakes, length, announced);
  }
  std::lock_guard lock(mutex_);
  SHMB_TRY(way, enter(word, stream));
  const Driver& driver = *way.driver;
  if (const Code code = driver->stream_wait64(stream, way.address, value, kWaitGeq); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuStreamWaitValue64", name(word)));
  devices_->used(driver, way.stream, stream);
  return {};
}

Result<void> Timeline::wait_host(std::uint32_t word, std::uint64_t value, client::Deadline deadline) const {
  SHMB_TRY_VOID(check(word));
  Word& one = at(word);
  for (std::int64_t length = 0;;) {
    const std::uint32_t wakes = one.wakes.load(std::memory_order_acquire);
    if (truly_reached(one.counter.load(std::memory_order_acquire), value)) return {};
    if (one.status.load(std::memory_order_acquire) != SHMBW_GPU_WORD_STATUS_OK)
      return was_reached(one, value) ? Result<void>() : Result<void>(ended(word, value));
    if (deadline.passed())
      return error(Status::deadline, name(word) + " has not reached " + std::to_string(value) + " in time, it is at " +
                                         std::to_string(one.counter.load(std::memory_order_relaxed)));
    pause(one, wakes, length, deadline);
  }
}

}  // namespace shmb::cuda
