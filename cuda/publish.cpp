// SPDX-License-Identifier: Apache-2.0
// From a region of this process to one of the broker. The contents are complete before others can read them. The device
// is waited for first. This process' mapping stays as it is: a driver may unmap a moment to change it, and a kernel
// that reads then faults. Only with CLOSE_OWN it becomes read-only, once the broker has the region.
#include <algorithm>
#include <exception>
#include <new>
#include <set>

#include "client/session/call.hpp"
#include "cuda/leaving.hpp"
#include "cuda/manifest_file.hpp"
#include "cuda/notices.hpp"
#include "cuda/publication.hpp"

namespace shmb::cuda {

// One publication of one region.
class Publication {
 public:
  Publication(const Region::Handle& region, const PublishSpec& spec) : region_(*region), keep_(region), spec_(spec) {}

  std::size_t chunks() const { return region_.memory_.sizes.size(); }
  const Region& region() const { return region_; }
  const PublishSpec& spec() const { return spec_; }
  const std::shared_ptr<Notices>& notices() const { return region_.notices_; }
  Result<void> outcome;

  Result<void> begin(client::Deadline deadline) {
    lock_ = std::unique_lock(region_.changing_, std::try_to_lock);
    if (!lock_) return error(Status::busy, region_.called() + " is being published or put to sleep by another thread");
    if (region_.published()) return error(Status::invalid, region_.called() + " is published already");
    if (region_.pointer() == 0) return region_.unmapped();
    if (region_.session_ == nullptr) return error(Status::invalid, "no session was given");
    if (region_.session_->is_local()) return client::needs_broker("GPU regions that others can import");
    if (spec_.many_writers && !spec_.writing)
      return error(
          Status::invalid,
          "SHMB_GPU_PUBLISH_MANY_WRITERS is for regions that are still written: say SHMB_GPU_PUBLISH_WRITING too");
    SHMB_TRY(manifest, Manifest::of(spec_.tensors, region_.memory_.length));
    manifest_ = std::move(manifest);
    return region_.notices_->pin_device(*region_.memory_.device, deadline);
  }

  Result<void> wait(std::set<Device>& settled, client::Deadline deadline) {
    const Device device = region_.memory_.device->device;
    if (spec_.sync.how == Sync::How::device && settled.contains(device)) return {};
    auto waited = wait_for(*region_.driver_, spec_.sync, {&device, 1}, region_.called(), deadline);
    if (!waited) return region_.told(waited.error());
    if (spec_.sync.how == Sync::How::device) settled.insert(device);
    return waited;
  }

  // Makes the descriptors.
  Result<client::GpuPublish> prepare() {
    const Region::Memory& memory = region_.memory_;
    if (region_.held_.empty()) {
      SHMB_TRY(found, region_.allocations());
      own_ = std::move(found);
    }
    exports_.add(region_.held_.empty() ? own_ : region_.held_);
    client::GpuPublish request = publish_request(*region_.driver_, memory, spec_);
    SHMB_TRY(first, exports_.from(0, region_.called()));
    request.chunks = std::move(first);
    const auto encoded = manifest_.encode();
    if (!encoded.empty()) {
      SHMB_TRY(file, manifest_file(encoded));
      list_ = std::move(file);
      request.manifest = list_.get();
      request.manifest_bytes = encoded.size();
    }
    request.bytes = memory.length;
    request.allocation = memory.bytes;
    request.offset = memory.offset;
    request.chunk_bytes = memory.sizes.size() > 1 ? memory.sizes.front() : 0;
    if (spec_.writing) request.flags |= SHMBW_GPU_PUBLISH_WRITING;
    if (spec_.many_writers) request.flags |= SHMBW_GPU_PUBLISH_MANY_WRITERS;
    if (memory.rdma) request.flags |= SHMBW_GPU_PUBLISH_RDMA;
    if (memory.kind == Kind::adopted) request.flags |= SHMBW_GPU_PUBLISH_ADOPTED;
    return request;
  }

  // The chunks that are left to send. Then the region knows as many chunks as the broker, or neither does for lack of
  // memory.
  void finish(client::Session& session, const client::GpuPublished& made, client::Deadline deadline) {
    Result<void> sent;
    try {
      sent = exports_.send_rest(session, made.region, region_.called(), deadline);
      if (sent) return end(made);
    } catch (const std::bad_alloc&) {
      give_back(session, made, true);
      throw;
    }
    give_back(session, made, false);
    fail(unknown_if_unanswered(sent.error()));
  }

  void fail(Error why) {
    close();
    outcome = std::unexpected(std::move(why));
  }

 private:
  static void give_back(client::Session& session, const client::GpuPublished& made, bool with_name) {
    const client::GpuRelease back{made.region, 1, with_name};
    (void)client::insist([&] { return client::gpu_release(session, {&back, 1}, client::Deadline::after(0)); });
  }

  void end(const client::GpuPublished& made) {
    region_.ref_ = made.region;
    region_.notices_->enter(keep_);  // first, because it allocates
    region_.rights_ = made.rights;
    region_.writer_.store(spec_.writing, std::memory_order_release);
    region_.close_own_ = spec_.close_own;
    region_.manifest_ = std::move(manifest_);
    region_.note_state(State::ok, 0);
    region_.published_.store(true, std::memory_order_release);
    region_.held_.clear();  // the broker has them
    close();
    if (!spec_.writing) region_.close_own();
  }

  void close() {
    own_.clear();
    list_.reset();
    exports_ = {};
  }

  Region& region_;
  Region::Handle keep_;
  const PublishSpec& spec_;
  std::unique_lock<Turn> lock_;
  Manifest manifest_;
  std::vector<Allocation> own_;  // references for the exports, where the region has none
  Fd list_;
  Exports exports_;
};

namespace {

void publish_packet(client::Session& session, std::span<Publication* const> batch, client::Deadline deadline) {
  std::vector<client::GpuPublish> requests;
  std::vector<Publication*> sent;
  for (Publication* one : batch) {
    auto request = one->prepare();
    if (!request) {
      one->fail(request.error());
      continue;
    }
    requests.push_back(std::move(*request));
    sent.push_back(one);
  }
  if (sent.empty()) return;
  const Notices::Opening opening(sent.front()->notices());
  auto made = client::gpu_publish(session, requests, deadline);
  std::exception_ptr thrown;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (!made) sent[i]->fail(unknown_if_unanswered(made.error()));
    else if (!(*made)[i]) sent[i]->fail((*made)[i].error());
    else try {
        sent[i]->finish(session, *(*made)[i], deadline);
      } catch (...) {  // they must learn what the broker has of the others
        thrown = std::current_exception();
      }
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace

std::vector<Result<void>> Region::publish(std::span<const Handle> regions, std::span<const PublishSpec> specs,
                                          const Patience& patience) {
  std::vector<Result<void>> results(regions.size());
  auto loaded = Driver::load();
  if (!loaded) {
    std::ranges::fill(results, Result<void>(std::unexpected(loaded.error())));
    return results;
  }
  (void)Leaving::run(nullptr);
  std::vector<std::unique_ptr<Publication>> all;
  std::set<const Region*> seen;
  std::set<Device> settled;
  std::vector<Publication*> batch;
  std::size_t chunks = 0;
  client::Session* session = nullptr;
  const auto send = [&] {
    if (!batch.empty()) publish_packet(*session, batch, patience.broker());
    batch.clear();
    chunks = 0;
  };
  // All are checked, and their devices have finished, before the first is sent.
  for (std::size_t i = 0; i < regions.size(); ++i) {
    auto& one = *all.emplace_back(std::make_unique<Publication>(regions[i], specs[i]));
    if (!seen.insert(regions[i].get()).second)
      one.outcome = error(Status::invalid, regions[i]->called() + " is in the list twice");
    else one.outcome = one.begin(patience.broker());
    // Not before its turn: another thread may be giving it a session.
    if (one.outcome && session != nullptr && regions[i]->session_.get() != session)
      one.outcome = error(Status::invalid, "the regions of one call are of one session");
    if (one.outcome) one.outcome = one.wait(settled, patience.device());
    if (one.outcome) session = regions[i]->session_.get();
  }
  for (const auto& one : all) {
    if (!one->outcome) continue;
    const std::size_t first = std::min(one->chunks(), Exports::kOfPacket);
    if (chunks + first > Exports::kOfPacket || batch.size() == Exports::kOfPacket / 2) send();
    batch.push_back(one.get());
    chunks += first;
  }
  send();
  for (std::size_t i = 0; i < all.size(); ++i) results[i] = std::move(all[i]->outcome);
  return results;
}

}  // namespace shmb::cuda
