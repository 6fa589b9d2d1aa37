// SPDX-License-Identifier: Apache-2.0
// The page is shared memory: a private page would be copied on a fork, and the device would write to the wrong copy.
#include "cuda/stream_marks.hpp"

#include <atomic>
#include <string>

#include "base/sys_memory.hpp"

namespace shmb::cuda {
namespace {

constexpr std::size_t kPlaces = kSmallPage / sizeof(std::uint64_t);

}  // namespace

Result<void> StreamMarks::begin(const Driver& driver, const std::string& object) {
  auto fd = sys::memfd_create("shmb-streams", true);
  if (!fd) return system_failure(fd.error(), "memfd_create for the marks of streams");
  auto sized = sys::truncate(fd->get(), kSmallPage);
  if (sized) sized = sys::allocate(fd->get(), 0, kSmallPage);  // a lack of memory is then an errno, not a signal
  if (!sized) return system_failure(sized.error(), "the page for the marks of streams");
  auto page = Mapping::map(fd->get(), 0, kSmallPage, Access::read_write);
  if (!page) return system_failure(page.error(), "mapping the marks of streams");
  const BesideCaptures beside(driver);
  if (const Code code = driver->host_register(page->data(), kSmallPage, kHostPortable | kHostDeviceMap);
      code != kSuccess)
    return std::unexpected(driver.failure(code, "cuMemHostRegister", object));
  if (const Code code = driver->host_address(&address_, page->data(), 0); code != kSuccess) {
    driver->host_unregister(page->data());
    return std::unexpected(driver.failure(code, "cuMemHostGetDevicePointer", object));
  }
  page_ = std::move(*page);
  return {};
}

void StreamMarks::end(const Driver& driver) noexcept {
  if (page_) {
    const BesideCaptures beside(driver);
    driver->host_unregister(page_.data());
  }
  page_.reset();
}

Result<std::size_t> StreamMarks::place(const Driver& driver, Stream stream) {
  SHMB_TRY(key, StreamKey::of(driver, stream));
  if (const auto found = places_.find(key); found != places_.end()) return found->second;
  std::size_t free = last_.size();
  if (free < kPlaces) {
    last_.push_back(0);
  } else {
    auto old = places_.begin();
    while (old != places_.end() && !passed(old->second)) ++old;
    if (old == places_.end())
      return error(Status::limit, "all " + std::to_string(kPlaces) +
                                      " places of this handle are taken by streams that have not come past their last "
                                      "signal or wait: use fewer streams with it, or open it again for more");
    free = old->second;
    places_.erase(old);
  }
  return places_.emplace(key, free).first->second;
}

void StreamMarks::put(const Driver& driver, std::size_t place, Stream stream) noexcept {
  const Address at = address_ + place * sizeof(std::uint64_t);
  if (driver->stream_write64(stream, at, ++last_[place], kWriteDefault) != kSuccess) lost_ = true;
}

bool StreamMarks::passed(std::size_t place) const noexcept {
  const auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(page_.data());
  return words[place].load(std::memory_order_acquire) == last_[place];
}

bool StreamMarks::passed() const noexcept {
  for (std::size_t i = 0; i < last_.size(); ++i)
    if (!passed(i)) return false;
  return !lost_;
}

}  // namespace shmb::cuda
